/**
 * The deepest allowed nesting. JSON of any depth can be parsed, but serializing, comparing or copying it takes stack
 * space, which varies: the same value could pass in one function and fail in the next. Tool schemas, the deepest values
 * that agents send, stay below fifty.
 */
export const MAX_NESTING = 1_000

/** Returns whether a parsed JSON value has more than {@link MAX_NESTING} levels of arrays and objects. */
export function isNestedTooDeeply(value: unknown, levels = MAX_NESTING): boolean {
  if (typeof value !== 'object' || value === null) return false
  if (levels === 0) return true
  if (Array.isArray(value)) {
    // A recursive call for each item would take most of the time for a prompt of a million ids.
    for (const item of value) if (typeof item === 'object' && isNestedTooDeeply(item, levels - 1)) return true
    return false
  }
  // Without allocating a list of the values: every request is traversed.
  for (const key in value)
    if (isNestedTooDeeply((value as Record<string, unknown>)[key], levels - 1)) return true
  return false
}
