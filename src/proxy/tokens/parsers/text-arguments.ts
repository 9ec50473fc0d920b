/**
 * Arguments that a model writes as plain text between tags, without JSON's quotes. What each text means depends on
 * the type that the tool's schema gives the parameter: the same `5` is a number or a string.
 */
import { parseJson } from '../../../base/json.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { readPythonValue } from './python-tool-calls.ts'

export interface TextArgument {
  name: string
  text: string
  /** Where the markup itself says it. */
  type?: 'string' | 'json'
}

/** The arguments as a JSON object; texts that are JSON of another type than string are taken over as written. */
export function toJsonArguments(
  toolName: string,
  textArguments: readonly TextArgument[],
  tools: readonly Tool[] | null | undefined,
  /** What a value is whose type the schema does not say. */
  untyped: 'string' | 'json' = 'string',
): string {
  const schemas = parameterSchemas(toolName, tools)
  const members = textArguments.map(
    ({ name, text, type }) =>
      `${JSON.stringify(name)}: ${toJsonValue(text, type ? [type] : getTypes(schemas[name]), untyped)}`,
  )
  return `{${members.join(', ')}}`
}

/**
 * The first of the types, from null to string, that the text can be: so `5` for an integer or a string is a number. The
 * order is vLLM's (0.33, `coerce_to_schema_type`).
 * @param types JSON Schema's types that the value may have; none if unknown
 */
export function toJsonValue(
  text: string,
  types: readonly string[],
  untyped: 'string' | 'json' = 'string',
): string {
  const may = (type: string) => types.includes(type)
  if (may('null') && /^(?:null|None)$/i.test(text)) return 'null'
  const bare = text.trim()
  const number = may('integer') || may('number') ? jsonNumber(bare, may('number')) : undefined
  if (number !== undefined) return number
  if (may('boolean') && BOOLEANS.has(bare.toLowerCase())) return BOOLEANS.get(bare.toLowerCase())!
  if ((may('object') || may('array')) && isJson(bare)) return bare
  const mayBeString = types.length === 0 ? untyped === 'string' : types.some((type) => STRING.test(type))
  if (mayBeString) return JSON.stringify(text)
  if (isJson(bare)) return bare
  // Templates that write values with Python's `str` teach the model that.
  return (PYTHON.test(bare) ? readPythonValue(bare) : undefined) ?? JSON.stringify(text)
}

/** What schemas are seen to call it. */
const STRING = /^\s*(?:string|str|text|varchar|char|enum)\s*$/i

/** What Python writes in another way than JSON: a list, an object, or a constant. */
const PYTHON = /^(?:[[{(]|(?:True|False|None)$)/

const BOOLEANS = new Map([
  ['true', 'true'],
  ['1', 'true'],
  ['false', 'false'],
  ['0', 'false'],
])

/** As Python reads one: `+5` and `007` are whole numbers, `.5` is one with a fraction. */
function jsonNumber(text: string, mayBeFraction: boolean): string | undefined {
  const whole = /^([+-]?)0*(\d+)$/.exec(text)
  if (whole !== null) return `${whole[1] === '-' && whole[2] !== '0' ? '-' : ''}${whole[2]}`
  if (!mayBeFraction || !/^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/.test(text)) return undefined
  if (isJson(text)) return text
  return Number.isFinite(Number(text)) ? String(Number(text)) : undefined
}

function isJson(text: string): boolean {
  return parseJson(text) !== undefined
}

/** A part of a JSON Schema, as an agent sent it: it may be anything. */
export interface ArgumentSchema {
  type?: string | string[]
  properties?: Record<string, unknown>
  additionalProperties?: unknown
  items?: unknown
  enum?: unknown[]
  anyOf?: unknown[]
  oneOf?: unknown[]
  allOf?: unknown[]
}

export function parameterSchemas(
  toolName: string,
  tools: readonly Tool[] | null | undefined,
): Record<string, unknown> {
  for (const tool of tools ?? []) {
    if (tool.type !== 'function' || tool.function.name !== toolName) continue
    return (tool.function.parameters as ArgumentSchema | null | undefined)?.properties ?? {}
  }
  return {}
}

/** JSON Schema's types that the parameter may have; none if the schema does not say. */
export function getTypes(schema: unknown): string[] {
  if (typeof schema !== 'object' || schema === null) return []
  const { type = [], enum: values, anyOf = [], oneOf = [], allOf = [] } = schema as ArgumentSchema
  const own = Array.isArray(values) ? values.map(getType) : []
  return [type, own, [anyOf, oneOf, allOf].flat().flatMap(getTypes)].flat()
}

function getType(value: unknown): string {
  if (value === null) return 'null'
  if (Array.isArray(value)) return 'array'
  return typeof value === 'number' && Number.isInteger(value) ? 'integer' : typeof value
}
