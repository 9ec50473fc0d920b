const isNumber = (value: unknown): value is number => typeof value === 'number'

/**
 * Ids as an engine listed them. What is no number (a list in a list, a text) keeps its place as NaN, which is no id, so
 * that the turn is not exact; nothing after this has to expect anything but numbers.
 */
export function sampledIds(list: unknown[]): number[] {
  return list.every(isNumber) ? list : list.map((value) => (isNumber(value) ? value : Number.NaN))
}
