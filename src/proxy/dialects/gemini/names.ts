/**
 * Conversion of member names, which Google's APIs accept in camelCase and in snake_case
 * (https://protobuf.dev/programming-guides/json/).
 */
import { isRecord } from '../../../base/json.ts'

/**
 * Returns an object with the names of its members in camelCase: the given one, if it has such names, or a copy. Names
 * inside the members' values are unchanged.
 */
export function toCamelNames(object: Record<string, unknown>): Record<string, unknown> {
  let isCamel = true
  for (const name in object) if (name.includes('_')) isCamel = false
  if (isCamel) return object
  return Object.fromEntries(Object.entries(object).map(([name, value]) => [toCamelCase(name), value]))
}

export function toCamelCase(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase())
}

/**
 * Returns an object with the names of its members in camelCase, and without members that are null, which means "not
 * set" in protobuf's JSON. Any other value is returned unchanged, for a schema to reject.
 */
export function convertMembers(object: unknown): unknown {
  if (!isRecord(object)) return object
  const named = toCamelNames(object)
  if (!Object.values(named).includes(null)) return named
  return Object.fromEntries(Object.entries(named).filter(([, value]) => value !== null))
}
