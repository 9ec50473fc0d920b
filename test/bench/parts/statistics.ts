/**
 * Returns a quantile.
 * @param share 0.5 for the median, 0.99 for the 99th percentile
 * @returns NaN if there are no values
 */
export function quantile(values: ArrayLike<number>, share: number): number {
  const sorted = Float64Array.from(values).sort()
  if (sorted.length === 0) return Number.NaN
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))]!
}

/** One figure over several rounds. */
export interface Spread {
  median: number
  min: number
  max: number
}

export function computeSpread(values: readonly number[]): Spread {
  return { median: quantile(values, 0.5), min: Math.min(...values), max: Math.max(...values) }
}
