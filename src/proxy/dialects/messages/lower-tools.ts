/** Conversion of Anthropic's tools and tool choice to the form of Chat Completions. */
import Type from 'typebox'
import { createInvalidError, createUnsupportedError } from '../../../base/errors.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { createChecker } from '../common/check.ts'
import type { ToolChoice, ToolParam } from './schema.ts'

const checkNamed = createChecker(Type.Object({ name: Type.String({ minLength: 1 }) }))

/**
 * Returns the tools that the model is shown from the start. It finds deferred tools by a search, whose result
 * references them.
 * @throws ProxyError `unsupported` for tools whose schema only Claude knows
 */
export function lowerTools(tools: readonly ToolParam[]): Tool[] {
  return tools.flatMap((tool, index) => {
    if (isServerTool(tool)) return []
    const lowered = lowerTool(tool, index)
    return tool.defer_loading === true ? [] : [lowered]
  })
}

/** Tools that Anthropic's servers run: the model is not shown them, so it does not call them. */
const SERVER_TOOL = /^(web_search|web_fetch|code_execution|tool_search_tool)_|^mcp_toolset$/

function isServerTool({ type, input_schema: schema }: ToolParam): boolean {
  return schema === undefined && SERVER_TOOL.test(type ?? '')
}

/** Returns the types of the tools that {@link lowerTools} omits. */
export function listDroppedTools(tools: readonly ToolParam[]): string[] {
  return tools.filter(isServerTool).map(({ type }) => type!)
}

/** Formats a tool that a search has found as JSON, in the form of the other tools. */
export function describeTool(tool: ToolParam): string {
  return JSON.stringify(lowerTool(tool, 0))
}

function lowerTool(tool: ToolParam, index: number): Tool {
  const { description, input_schema: parameters, strict, type } = tool
  if (parameters === undefined) {
    const what = type ? `a tool of type '${type}'` : 'a tool without input_schema'
    throw createUnsupportedError(
      `tools.${index}: ${what} is not supported: declare it as a custom tool with a name and an input_schema`,
      `tools.${index}.${type ? 'type' : 'input_schema'}`,
    )
  }
  const { name } = checkNamed(tool, `tools.${index}`)
  return {
    type: 'function',
    function: {
      name,
      ...(description && { description }),
      parameters,
      // Omitted if false, because templates write every field of a tool into the prompt.
      ...(strict && { strict }),
    },
  }
}

/**
 * Returns the fields of a canonical request that allow or demand tool calls.
 * @throws ProxyError `invalid_request` for a choice that names no tool
 */
export function lowerToolChoice(choice: ToolChoice): Record<string, unknown> {
  return {
    tool_choice: toToolChoice(choice),
    ...(choice.disable_parallel_tool_use && { parallel_tool_calls: false }),
  }
}

function toToolChoice({ type, name }: ToolChoice): unknown {
  if (type === 'any') return 'required'
  if (type !== 'tool') return type
  if (name) return { type: 'function', function: { name } }
  throw createInvalidError("'tool_choice.name' is required", 'tool_choice.name')
}
