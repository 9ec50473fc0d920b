/** Compares recorded logprobs with those that an engine computes for the same tokens. Pure functions. */
import type { TokenScore } from '../engines/port/score.ts'

/**
 * The distribution of recorded logprobs:
 * - `raw`: the model's own distribution, vLLM's default.
 * - `temperature`: after temperature, SGLang's default, and vLLM's `processed_logprobs` without filters.
 * - `mask`: over the tokens that remain after top_p, top_k and min_p, vLLM's `processed_logprobs`, and the token data
 *   `sampling_logprobs`.
 */
export type LogprobsKind = 'raw' | 'temperature' | 'mask'

/** The differences up to which logprobs are considered equal. */
export interface Tolerance {
  /** The maximum mean difference of a turn's tokens, in nats. */
  readonly mean: number
  /** The maximum difference of one token, in nats. */
  readonly token: number
}

/** The recorded and the recomputed logprob of a token, in nats. */
export interface TokenPair {
  readonly recorded: number
  /** The recomputed logprob. If only an interval is known, the value in it that is nearest to the recorded logprob. */
  readonly recomputed: number
}

/** A token whose logprobs differ. */
export interface TokenDifference {
  /** The index in the completion, from 0. */
  index: number
  token_id: number
  recorded: number
  recomputed: number
}

/**
 * Statistics of the differences between logprobs, in nats. A ratio is the recomputed probability divided by the
 * recorded one. The names are those of the public JSON.
 */
export interface Comparison {
  tokens: number
  mean_difference: number
  max_difference: number
  /** The mean of recomputed minus recorded logprobs. It is negative if the recorded probabilities are too high. */
  mean_shift: number
  ratio: Record<'min' | 'p01' | 'p10' | 'p50' | 'p90' | 'p99' | 'max', number>
  /** The fraction of ratios outside 0.9 to 1.1. */
  ratio_outside: number
}

/**
 * The assumed vocabulary size, which no known model exceeds. A larger bound would widen the intervals for tokens that
 * are not reported.
 */
const VOCABULARY_SIZE = 262_144

/**
 * Pairs recorded logprobs with those of the engine.
 * @param kind the distribution of the recorded logprobs
 * @param temperature the temperature with which the tokens were sampled; 0 and 1 do not change the distribution
 */
export function pairTokens(
  recorded: ArrayLike<number>,
  scored: readonly TokenScore[],
  kind: LogprobsKind,
  temperature: number,
): TokenPair[] {
  const isScaled = isScaling(kind, temperature)
  return scored.map((token, index) => {
    const was = recorded[index]!
    if (!isScaled) return { recorded: was, recomputed: token.logprob }
    const { low, high } = applyTemperature(token, temperature)
    return { recorded: was, recomputed: Math.min(Math.max(was, low), high) }
  })
}

/** For each token, the ids that remain after top_p, top_k and min_p; null if unknown, which is treated as no filter. */
export type SamplingMask = readonly (readonly number[] | null)[]

/** The recorded logprobs and masks of sampled tokens. */
interface MaskTable {
  readonly recorded: ArrayLike<number>
  readonly tokenIds: ArrayLike<number>
  readonly mask: SamplingMask
}

/**
 * Pairs recorded logprobs over masks with those of the engine.
 * @param scored the engine's scores with alternatives. If these lack an id of a mask, the logprob is known as an
 *   interval
 */
export function pairMasked(
  { recorded, tokenIds, mask }: MaskTable,
  scored: readonly TokenScore[],
  temperature: number,
): TokenPair[] {
  const divisor = temperature === 0 ? 1 : temperature
  return scored.map((token, index) => {
    const was = recorded[index]!
    const remaining = mask[index]
    const isInMask = remaining?.includes(tokenIds[index]!) === true
    const { low, high } = isInMask
      ? computeOverMask(token, tokenIds[index]!, remaining!, divisor)
      : applyTemperature(token, divisor)
    return { recorded: was, recomputed: Math.min(Math.max(was, low), high) }
  })
}

/** Returns the interval of a token's logprob over the remaining ids, after temperature. */
function computeOverMask(token: TokenScore, id: number, remaining: readonly number[], temperature: number) {
  const power = 1 / temperature
  const known = new Map(
    token.alternativeIds.map((other, index) => [other, token.alternatives[index]!] as const),
  )
  known.set(id, token.logprob)
  const reported = remaining.flatMap((other) => known.get(other) ?? [])
  const scaled = reported.reduce((sum, logprob) => sum + Math.exp(logprob * power), 0)
  // No unreported token is more probable than the least probable alternative.
  const largest = Math.exp(Math.min(0, ...token.alternatives))
  const most = (remaining.length - reported.length) * largest ** power
  const own = token.logprob * power
  return { low: own - Math.log(scaled + most), high: own - Math.log(scaled) }
}

/** Returns whether a recomputed logprob must be converted to the recorded distribution, which requires alternatives. */
export function isScaling(kind: LogprobsKind, temperature: number): boolean {
  return kind === 'mask' || (kind === 'temperature' && temperature !== 0 && temperature !== 1)
}

/**
 * Returns the interval of a token's logprob after temperature. The sum over the vocabulary is exact for the
 * alternatives and bounded for all other tokens: their total probability is known, and none of them is more probable
 * than the least probable alternative.
 */
export function applyTemperature(token: TokenScore, temperature: number): { low: number; high: number } {
  const power = 1 / temperature
  const known = token.alternatives.includes(token.logprob)
    ? token.alternatives
    : [...token.alternatives, token.logprob]
  const mass = known.reduce((sum, logprob) => sum + Math.exp(logprob), 0)
  const scaled = known.reduce((sum, logprob) => sum + Math.exp(logprob * power), 0)
  // Because of rounding, the sum may exceed 1.
  const rest = Math.max(0, 1 - mass) + known.length * Number.EPSILON
  const count = Math.max(1, VOCABULARY_SIZE - known.length)
  const largest = Math.exp(Math.min(...(token.alternatives.length > 0 ? token.alternatives : [0])))
  // The sum of p^power over the other tokens is largest if few tokens have all their probability (for a power above 1),
  // or if it is spread evenly (below 1).
  const inFew = rest * largest ** (power - 1)
  const spread = count ** (1 - power) * rest ** power
  const [least, most] = inFew < spread ? [inFew, spread] : [spread, inFew]
  const own = token.logprob * power
  return { low: own - Math.log(scaled + most), high: own - Math.log(scaled + least) }
}

/** Computes statistics of the differences. */
export function comparePairs(pairs: readonly TokenPair[]): Comparison {
  const shifts = pairs.map(({ recorded, recomputed }) => recomputed - recorded)
  const differences = shifts.map(Math.abs)
  const ratios = Float64Array.from(shifts, Math.exp).sort()
  const at = (share: number) => ratios[Math.round(share * (ratios.length - 1))]!
  return {
    tokens: pairs.length,
    mean_difference: computeMean(differences),
    max_difference: differences.reduce((most, difference) => Math.max(most, difference), 0),
    mean_shift: computeMean(shifts),
    ratio: { min: at(0), p01: at(0.01), p10: at(0.1), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1) },
    ratio_outside: computeMean(Array.from(ratios, (ratio) => Number(ratio < 0.9 || ratio > 1.1))),
  }
}

/** Returns whether the mean and the maximum difference are within the tolerance. */
export function isWithin(
  { mean_difference, max_difference }: Pick<Comparison, 'mean_difference' | 'max_difference'>,
  tolerance: Tolerance,
): boolean {
  return mean_difference <= tolerance.mean && max_difference <= tolerance.token
}

/** Returns the first token whose difference exceeds the mean tolerance; null if there is none. */
export function findFirstDeviation(
  pairs: readonly TokenPair[],
  tokenIds: ArrayLike<number>,
  tolerance: Tolerance,
): TokenDifference | null {
  const index = pairs.findIndex(
    ({ recorded, recomputed }) => !(Math.abs(recomputed - recorded) <= tolerance.mean),
  )
  return index === -1 ? null : { index, token_id: tokenIds[index]!, ...pairs[index]! }
}

function computeMean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length
}
