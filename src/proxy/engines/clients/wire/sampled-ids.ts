const isNumber = (value: unknown): value is number => typeof value === 'number'

/**
 * Returns the ids of an engine's list. A value that is not a number becomes NaN, an invalid id, so that the turn is
 * inexact and later code can rely on numbers.
 */
export function readSampledIds(list: unknown[]): number[] {
  return list.every(isNumber) ? list : list.map((value) => (isNumber(value) ? value : Number.NaN))
}
