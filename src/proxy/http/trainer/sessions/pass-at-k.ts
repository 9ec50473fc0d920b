/** Estimates pass@k: the probability that at least one of k samples of a task passes. */

/** The counts of the samples of one task. */
interface SampleCounts {
  /** The number of samples that have a reward. */
  readonly rewards: { readonly count: number }
  /** The number of samples whose reward passes. */
  readonly passed?: number
}

/**
 * Returns pass@k for k of 1, 2, 4 and so on: the mean over all tasks with at least k samples of the unbiased estimator
 * of Chen et al., "Evaluating Large Language Models Trained on Code" (2021), section 2.1.
 */
export function computePassAtK(tasks: readonly SampleCounts[]): Record<string, number> {
  const found: Record<string, number> = {}
  for (let k = 1; ; k *= 2) {
    const enough = tasks.filter(({ rewards }) => rewards.count >= k)
    if (enough.length === 0) return found
    const sum = enough.reduce(
      (sum, { rewards, passed = 0 }) => sum + computeChance(rewards.count, passed, k),
      0,
    )
    found[k] = sum / enough.length
  }
}

/** Returns the probability that k of n samples, drawn without replacement, include one of the c that pass. */
function computeChance(n: number, c: number, k: number): number {
  if (n - c < k) return 1
  let none = 1
  for (let index = n - c + 1; index <= n; index += 1) none *= 1 - k / index
  return 1 - none
}
