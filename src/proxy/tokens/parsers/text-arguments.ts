/**
 * Arguments that a model writes as plain text between tags, without JSON's quotes. What each text means depends on
 * the type that the tool's schema gives the parameter: the same `5` is a number or a string.
 */
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { readPythonValue } from './python-calls.ts'

export interface TextArgument {
  name: string
  text: string
  /** Where the markup itself says it. */
  type?: 'string' | 'json'
}

/** The arguments as a JSON object; texts that are JSON of another type than string are taken over as written. */
export function jsonOfTextArguments(
  toolName: string,
  textArguments: readonly TextArgument[],
  tools: readonly Tool[] | null | undefined,
  /** What a value is whose type the schema does not say. */
  untyped: 'string' | 'json' = 'string',
): string {
  const schemas = parameterSchemas(toolName, tools)
  const members = textArguments.map(
    ({ name, text, type }) =>
      `${JSON.stringify(name)}: ${jsonOfText(text, type ? [type] : typesOf(schemas[name]), untyped)}`,
  )
  return `{${members.join(', ')}}`
}

/** @param types JSON Schema's types that the value may have; none if unknown */
export function jsonOfText(
  text: string,
  types: readonly string[],
  untyped: 'string' | 'json' = 'string',
): string {
  const trimmed = text.trim()
  if (types.includes('string')) {
    return types.includes('null') && /^(null|None)$/.test(trimmed) ? 'null' : JSON.stringify(text)
  }
  if (types.length === 0 && untyped === 'string') return JSON.stringify(text)
  const json = PYTHON_LITERALS.get(trimmed) ?? trimmed
  if (isJson(json)) return json
  // Templates that write lists and objects with Python's `str` teach the model that.
  return (/^[[{(]/.test(trimmed) ? readPythonValue(trimmed) : undefined) ?? JSON.stringify(text)
}

function isJson(text: string): boolean {
  try {
    JSON.parse(text)
    return true
  } catch {
    return false
  }
}

/** Templates that write values with Python's `str` teach the model these. */
const PYTHON_LITERALS = new Map([
  ['True', 'true'],
  ['False', 'false'],
  ['None', 'null'],
])

/** A part of a JSON Schema, as an agent sent it: it may be anything. */
export interface Schema {
  type?: string | string[]
  properties?: Record<string, unknown>
  additionalProperties?: unknown
  items?: unknown
  anyOf?: unknown[]
  oneOf?: unknown[]
}

export function parameterSchemas(
  toolName: string,
  tools: readonly Tool[] | null | undefined,
): Record<string, unknown> {
  for (const tool of tools ?? []) {
    if (tool.type !== 'function' || tool.function.name !== toolName) continue
    return (tool.function.parameters as Schema | null | undefined)?.properties ?? {}
  }
  return {}
}

/** JSON Schema's types that the parameter may have; none if the schema does not say. */
export function typesOf(schema: unknown): string[] {
  if (typeof schema !== 'object' || schema === null) return []
  const { type, anyOf = [], oneOf = [] } = schema as Schema
  return type === undefined ? [anyOf, oneOf].flat().flatMap(typesOf) : [type].flat()
}
