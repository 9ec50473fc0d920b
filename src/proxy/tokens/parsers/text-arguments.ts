/**
 * Converts arguments that a model writes as plain text between tags to JSON. The type in the tool's schema determines
 * the meaning of a text: `5` may be a number or a string.
 */
import { parseJson } from '../../../base/json.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { readPythonValue } from './python-tool-calls.ts'

/** An argument as written. */
export interface TextArgument {
  name: string
  text: string
  /** The type, if the markup declares it. */
  type?: 'string' | 'json'
}

/**
 * Converts arguments to a JSON object. Texts that are valid JSON of their parameter's type are not changed.
 * @param untyped the type of a value for which neither the markup nor the tool's schema declares one
 */
export function toJsonArguments(
  toolName: string,
  textArguments: readonly TextArgument[],
  tools: readonly Tool[] | null | undefined,
  untyped: 'string' | 'json' = 'string',
): string {
  const schemas = readParameterSchemas(toolName, tools)
  const members = textArguments.map(
    ({ name, text, type }) =>
      `${JSON.stringify(name)}: ${toJsonValue(text, type ? [type] : getTypes(schemas[name]), untyped)}`,
  )
  return `{${members.join(', ')}}`
}

/**
 * Converts a text to the first of its possible types that it can represent, in the order of this function, which is
 * vLLM's (0.33, `coerce_to_schema_type`): `5` is a number if its type may be integer or string.
 * @param types the JSON Schema types that the value may have; empty if unknown
 * @param untyped the type if `types` is empty
 */
export function toJsonValue(
  text: string,
  types: readonly string[],
  untyped: 'string' | 'json' = 'string',
): string {
  const may = (type: string) => types.includes(type)
  if (may('null') && /^(?:null|None)$/i.test(text)) return 'null'
  const bare = text.trim()
  const number = may('integer') || may('number') ? toJsonNumber(bare, may('number')) : undefined
  if (number !== undefined) return number
  if (may('boolean') && BOOLEANS.has(bare.toLowerCase())) return BOOLEANS.get(bare.toLowerCase())!
  if ((may('object') || may('array')) && isJson(bare)) return bare
  const mayBeString = types.length === 0 ? untyped === 'string' : types.some((type) => STRING.test(type))
  if (mayBeString) return JSON.stringify(text)
  if (isJson(bare)) return bare
  // Some templates format values with Python's `str`, so the models do so, too.
  return (PYTHON.test(bare) ? readPythonValue(bare) : undefined) ?? JSON.stringify(text)
}

/** The names that schemas use for strings. */
const STRING = /^\s*(?:string|str|text|varchar|char|enum)\s*$/i

/** Matches Python's constants, and the beginning of a list, tuple or dictionary. */
const PYTHON = /^(?:[[{(]|(?:True|False|None)$)/

const BOOLEANS = new Map([
  ['true', 'true'],
  ['1', 'true'],
  ['false', 'false'],
  ['0', 'false'],
])

/**
 * Matches a number in Python's or JSON's notation. Only one part of each expression can match a digit, because
 * backtracking between two would take quadratic time for many digits before another character.
 */
const INTEGER = /^([+-]?)(\d+)$/
const FRACTION = /^[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?$/

/**
 * Converts a number in Python's or JSON's notation, such as `+5`, `007` and `.5`, to JSON; undefined for other text.
 */
function toJsonNumber(text: string, mayBeFraction: boolean): string | undefined {
  const integer = INTEGER.exec(text)
  if (integer !== null) {
    const digits = integer[2]!.replace(/^0+(?=\d)/, '')
    return `${integer[1] === '-' && digits !== '0' ? '-' : ''}${digits}`
  }
  if (!mayBeFraction || !FRACTION.test(text)) return undefined
  if (isJson(text)) return text
  return Number.isFinite(Number(text)) ? String(Number(text)) : undefined
}

function isJson(text: string): boolean {
  return parseJson(text) !== undefined
}

/** A part of a JSON Schema from a request, which has not been validated. */
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

/** Returns the schemas of a tool's parameters by name. Empty if the request has no such tool. */
export function readParameterSchemas(
  toolName: string,
  tools: readonly Tool[] | null | undefined,
): Record<string, unknown> {
  for (const tool of tools ?? []) {
    if (tool.type !== 'function' || tool.function.name !== toolName) continue
    return (tool.function.parameters as ArgumentSchema | null | undefined)?.properties ?? {}
  }
  return {}
}

/** Returns the JSON Schema types that a parameter may have; empty if the schema declares none. */
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
