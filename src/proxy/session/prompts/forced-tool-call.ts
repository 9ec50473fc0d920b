/**
 * Forced tool calls: `tool_choice` is `required` or names a function. An engine that cannot constrain decoding to the
 * model's markup (`callFormat` of the request) receives a JSON schema as `response_format`, which vLLM and SGLang
 * accept together with token ids. It describes an array of `{"name": …, "parameters": …}`. Source: SGLang's
 * `get_json_schema_constraint` of `function_call/utils.py`; vLLM's for `required` is the same.
 */
import { createInvalidError, createUnsupportedError } from '../../../base/errors.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import type { ChatBody } from '../../../protocol/canonical/request.ts'

type FunctionTool = Extract<Tool, { type: 'function' }>

/**
 * Returns the schema that the completion must match; undefined: the agent forces no tool call.
 * @throws ProxyError `unsupported` or `invalid_request`, naming the field
 */
export function findForcedToolCallSchema(body: ChatBody): object | undefined {
  const { tool_choice: choice } = body
  if (choice === undefined || choice === null || choice === 'auto' || choice === 'none') return undefined
  const tools = (body.tools ?? []).filter(isFunction)
  if (tools.length === 0)
    throw createInvalidError("'tool_choice' forces a tool call, and 'tools' has no function", 'tool_choice')
  rejectSecondConstraint(body)
  if (choice === 'required') return toCallsSchema(tools, body.parallel_tool_calls === false)
  const name = getFunctionName(choice)
  if (name === undefined) {
    throw createUnsupportedError(
      "in token mode 'tool_choice' must be auto, none, required or a function",
      'tool_choice',
    )
  }
  const tool = tools.find(({ function: { name: offered } }) => offered === name)
  if (tool === undefined)
    throw createInvalidError(`'tool_choice' names ${name}, which is not one of the tools`, 'tool_choice')
  return toCallsSchema([tool], true)
}

/** Returns the body with the schema as `response_format`. */
export function constrainBody(body: ChatBody, schema: object): ChatBody {
  const format = { type: 'json_schema', json_schema: { name: 'tool_calls', schema } }
  return { ...body, response_format: format }
}

/** Rejects a second constraint. An engine accepts only one, and without the other the completion could violate it. */
function rejectSecondConstraint(body: ChatBody): void {
  const format = body.response_format as { type?: unknown } | null | undefined
  const second = CONSTRAINTS.find((field) => body[field] !== undefined && body[field] !== null)
  const field = format && format.type !== 'text' ? 'response_format' : second
  if (field !== undefined)
    throw createUnsupportedError(`'${field}' cannot be combined with a forced tool call`, field)
}

const CONSTRAINTS = [
  'structured_outputs',
  'guided_json',
  'guided_regex',
  'guided_choice',
  'guided_grammar',
  'regex',
  'ebnf',
]

function getFunctionName(choice: unknown): string | undefined {
  const { type, function: named } = choice as { type?: unknown; function?: { name?: unknown } | null }
  return type === 'function' && typeof named?.name === 'string' ? named.name : undefined
}

/**
 * Returns the schema of a list of calls of these tools. The tools' definitions move to the root of the schema, to which
 * references are relative.
 */
function toCallsSchema(tools: readonly FunctionTool[], onlyOne: boolean): object {
  const definitions: Record<string, unknown> = {}
  const items = tools.map((tool) => {
    const { $defs, ...parameters } = getParameters(tool)
    for (const [name, definition] of Object.entries($defs ?? {})) {
      const existing = Object.hasOwn(definitions, name) ? JSON.stringify(definitions[name]) : undefined
      if (existing !== undefined && existing !== JSON.stringify(definition)) {
        throw createUnsupportedError(
          `two tools have different definitions of ${name}: force one by its name`,
          'tools',
        )
      }
      definitions[name] = definition
    }
    return {
      type: 'object',
      properties: { name: { type: 'string', enum: [tool.function.name] }, parameters },
      required: ['name', 'parameters'],
    }
  })
  return {
    type: 'array',
    minItems: 1,
    ...(onlyOne && { maxItems: 1 }),
    items: { type: 'object', anyOf: items },
    ...(Object.keys(definitions).length > 0 && { $defs: definitions }),
  }
}

function getParameters({ function: { parameters } }: FunctionTool): { $defs?: object } {
  return parameters ?? { type: 'object', properties: {} }
}

function isFunction(tool: Tool): tool is FunctionTool {
  return tool.type === 'function'
}
