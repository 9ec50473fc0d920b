/**
 * How deep a value may be nested. JSON of any depth can be read; to write, compare or copy it takes stack, of which
 * there is more or less, so that the same value would pass in one place and fail in the next. Tool schemas, the deepest
 * that agents send, stay below fifty.
 */
export const MAX_NESTING = 1_000

/** Whether a value out of JSON has more than {@link MAX_NESTING} levels of arrays and objects. */
export function isNestedTooDeeply(value: unknown, levels = MAX_NESTING): boolean {
  if (typeof value !== 'object' || value === null) return false
  if (levels === 0) return true
  if (Array.isArray(value)) {
    // A call for each item would be most of the time that a prompt of a million ids takes.
    for (const item of value) if (typeof item === 'object' && isNestedTooDeeply(item, levels - 1)) return true
    return false
  }
  // Without a list of the values: each request is walked through.
  for (const key in value)
    if (isNestedTooDeeply((value as Record<string, unknown>)[key], levels - 1)) return true
  return false
}
