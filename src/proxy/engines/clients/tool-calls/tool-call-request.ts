/** What a call in token mode wants of tool calls, for an engine that can be held to it. */
import type { Tool } from '../../../../protocol/canonical/messages.ts'
import type { TokenRequest } from '../wire/request.ts'

export interface ToolCallRequest {
  /** How the model writes calls: the name of the proxy's parser. */
  readonly format: string
  readonly tools: readonly FunctionTool[]
  readonly choice: ToolCallChoice
  /** `parallel_tool_calls: false`: at most one call, whatever the choice. */
  readonly onlyOne: boolean
}

/** `forced`: one function by its name, which is the only one of the tools. */
type ToolCallChoice = 'auto' | 'required' | 'forced'

export interface FunctionTool {
  readonly name: string
  readonly strict: boolean | undefined
  /** A JSON schema; undefined: the agent gave none. */
  readonly parameters: Schema | undefined
}

export type Schema = Readonly<Record<string, unknown>>

/** undefined of a call that is offered no function. */
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

/** Whether more is wanted than that calls are possible. */
export function wantsMore({ tools, choice, onlyOne }: ToolCallRequest): boolean {
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
