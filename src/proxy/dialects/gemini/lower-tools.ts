/** Gemini's tools, their schemas and the choice between them as those of Chat Completions. */
import { ProxyError } from '../../../base/errors.ts'
import { isRecord } from '../../../base/json.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { isNestedTooDeeply } from '../../../protocol/json/nesting.ts'
import { unsupported } from '../common/refusals.ts'
import { camelCased, camelMembers } from './names.ts'
import type { FunctionCallingConfig, FunctionDeclaration } from './schema.ts'

/** Returns the functions. Tools that Google's servers run are left out: the model does not call what it is not shown. */
export function lowerTools(tools: readonly Record<string, unknown>[]): Tool[] {
  return tools.flatMap((tool) => ((tool.functionDeclarations ?? []) as FunctionDeclaration[]).map(lowerTool))
}

/** Returns the names of the tools that {@link lowerTools} leaves out. */
export function droppedTools(tools: readonly Record<string, unknown>[]): string[] {
  return tools.flatMap((tool) => Object.keys(tool).filter((name) => name !== 'functionDeclarations'))
}

/** Names in camelCase, before a schema sees them. */
export function camelTool(tool: unknown): unknown {
  const named = camelMembers(tool)
  if (!isRecord(named) || !Array.isArray(named.functionDeclarations)) return named
  return { ...named, functionDeclarations: named.functionDeclarations.map(camelMembers) }
}

function lowerTool({ name, description, parameters, parametersJsonSchema }: FunctionDeclaration): Tool {
  const schema = parametersJsonSchema ?? (parameters ? jsonSchema(parameters) : undefined)
  return {
    type: 'function',
    function: {
      name,
      ...(description && { description }),
      parameters: (schema as Record<string, unknown>) ?? { type: 'object', properties: {} },
    },
  }
}

/** Counts, which Google's APIs write as text: they are of 64 bits. */
const COUNTS = new Set(['minItems', 'maxItems', 'minLength', 'maxLength', 'minProperties', 'maxProperties'])

/**
 * Google's `Schema` as a JSON schema: types in lower case, `nullable` as a type, the order of properties left to them.
 * @throws ProxyError `invalid_request`
 */
export function jsonSchema(schema: unknown): unknown {
  if (isNestedTooDeeply(schema, 200)) throw new ProxyError('invalid_request', 'A schema is nested too deeply')
  return converted(schema)
}

function converted(schema: unknown): unknown {
  if (!isRecord(schema)) return schema
  const { nullable, propertyOrdering: _, ...members } = camelCased(schema)
  const entries = Object.entries(members).map(([name, value]) => [name, memberOf(name, value)] as const)
  const made: Record<string, unknown> = Object.fromEntries(entries)
  if (nullable === true && typeof made.type === 'string') made.type = [made.type, 'null']
  return made
}

function memberOf(name: string, value: unknown): unknown {
  if (name === 'type' && typeof value === 'string') return value.toLowerCase()
  if (COUNTS.has(name) && typeof value === 'string') return Number(value)
  if (name === 'items') return converted(value)
  if (name === 'anyOf' && Array.isArray(value)) return value.map(converted)
  if (name !== 'properties' || !isRecord(value)) return value
  return Object.fromEntries(Object.entries(value).map(([property, of]) => [property, converted(of)]))
}

/** @throws ProxyError `unsupported` for a choice between some of the functions */
export function lowerToolChoice(
  { mode, allowedFunctionNames: names }: FunctionCallingConfig,
  tools: readonly Tool[],
): { tool_choice?: unknown } {
  if (mode === 'NONE') return { tool_choice: 'none' }
  if (mode !== 'ANY') return mode ? { tool_choice: 'auto' } : {}
  if (!names || names.length === 0) return { tool_choice: 'required' }
  if (names.length === 1) return { tool_choice: { type: 'function', function: { name: names[0] } } }
  const allowed = new Set(names)
  if (tools.every((tool) => 'function' in tool && allowed.has(tool.function.name)))
    return { tool_choice: 'required' }
  const param = 'toolConfig.functionCallingConfig.allowedFunctionNames'
  throw unsupported(`${param}: one function may be named, or all of them`, param)
}
