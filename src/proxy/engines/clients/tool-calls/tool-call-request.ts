/** The requirements of a request in token mode on tool calls, for an engine with constrained decoding. */
import type { Tool } from '../../../../protocol/canonical/messages.ts'
import type { TokenRequest } from '../wire/request.ts'

/** The requirements of one request on its tool calls. */
export interface ToolCallRequest {
  /** The model's notation of tool calls, as the name of the proxy's parser. */
  readonly format: string
  readonly tools: readonly FunctionTool[]
  readonly choice: ToolCallChoice
  /** `parallel_tool_calls: false`: at most one tool call, whatever the choice. */
  readonly onlyOne: boolean
}

/** `forced`: one function was chosen by name; `tools` contains only it. */
type ToolCallChoice = 'auto' | 'required' | 'forced'

/** A function that the request offers. */
export interface FunctionTool {
  readonly name: string
  readonly strict: boolean | undefined
  /** A JSON schema; undefined if the agent sent none. */
  readonly parameters: JsonSchema | undefined
}

export type JsonSchema = Readonly<Record<string, unknown>>

/**
 * Returns the requirements of a request; undefined if it offers no function, if its tool choice is `none` or names no
 * function that it offers, or if the model's notation of tool calls is unknown.
 */
export function getToolCallRequest({ body, callFormat: format }: TokenRequest): ToolCallRequest | undefined {
  if (format === undefined || body.tool_choice === 'none') return undefined
  const choice = parseToolChoice(body.tool_choice)
  const all = (body.tools ?? []).filter(isFunction).map(({ function: { name, strict, parameters } }) => {
    return { name, strict: strict ?? undefined, parameters: parameters ?? undefined }
  })
  const tools = typeof choice === 'string' ? all : all.filter(({ name }) => name === choice.name)
  if (tools.length === 0) return undefined
  return {
    format,
    tools,
    choice: typeof choice === 'string' ? choice : 'forced',
    onlyOne: body.parallel_tool_calls === false,
  }
}

/** Returns whether the request constrains tool calls instead of only allowing them. */
export function needsConstraint({ tools, choice, onlyOne }: ToolCallRequest): boolean {
  return choice !== 'auto' || onlyOne || tools.some(({ strict }) => strict === true)
}

function parseToolChoice(choice: unknown): 'auto' | 'required' | { name: unknown } {
  if (choice === 'required') return choice
  const named = (choice as { function?: { name?: unknown } | null } | null | undefined)?.function
  return named ? { name: named.name } : 'auto'
}

function isFunction(tool: Tool): tool is Extract<Tool, { type: 'function' }> {
  return tool.type === 'function'
}
