/** Compares recorded logprobs with those that an engine now computes for the same tokens. Pure. */
import type { TokenScore } from '../engines/port/score.ts'

/**
 * The distribution of recorded logprobs: the model's own (`raw`, vLLM's default), after temperature (`temperature`,
 * SGLang's default, and vLLM's `processed_logprobs` without filters), or over the tokens that remain after top_p, top_k
 * and min_p (`mask`, vLLM's `processed_logprobs`, and those recorded as `sampling_logprobs`).
 */
export type LogprobsKind = 'raw' | 'temperature' | 'mask'

export interface Tolerance {
  /** Largest mean difference of a turn, in nats. */
  readonly mean: number
  /** Largest difference of one token, in nats. */
  readonly token: number
}

/** The recorded and the recomputed logprob of a token. */
export interface TokenPair {
  readonly recorded: number
  /** If the exact value is unknown, the value of its interval that is nearest to the recorded one. */
  readonly recomputed: number
}

export interface TokenDifference {
  /** Index in the completion, from 0. */
  index: number
  token_id: number
  recorded: number
  recomputed: number
}

/**
 * Differences in nats; a ratio is the recomputed probability divided by the recorded one. Names are those of the public
 * JSON.
 */
export interface Comparison {
  tokens: number
  mean_difference: number
  max_difference: number
  /** Recomputed minus recorded: a negative value means that the recorded probabilities are too high. */
  mean_shift: number
  ratio: Record<'min' | 'p01' | 'p10' | 'p50' | 'p90' | 'p99' | 'max', number>
  /** Fraction of ratios outside 0.9 to 1.1. */
  ratio_outside: number
}

/**
 * An upper bound: no larger vocabulary is known. The larger it is, the wider the interval for tokens that were not
 * reported.
 */
const VOCABULARY_SIZE = 262_144

/** @param temperature sampling temperature of the recorded tokens; 0 and 1 do not change the distribution */
export function pairTokens(
  recorded: ArrayLike<number>,
  scored: readonly TokenScore[],
  of: LogprobsKind,
  temperature: number,
): TokenPair[] {
  const isScaled = isScaling(of, temperature)
  return scored.map((token, index) => {
    const was = recorded[index]!
    if (!isScaled) return { recorded: was, recomputed: token.logprob }
    const { low, high } = applyTemperature(token, temperature)
    return { recorded: was, recomputed: Math.min(Math.max(was, low), high) }
  })
}

/** The remaining ids for each token; null: not recorded, compared as if no token had been filtered out. */
export type SamplingMask = readonly (readonly number[] | null)[]

/** The recorded logprobs of sampled tokens, with their masks. */
interface MaskTable {
  readonly recorded: ArrayLike<number>
  readonly tokenIds: ArrayLike<number>
  readonly mask: SamplingMask
}

/** @param scored tokens with alternatives; if a mask has ids that are not among them, the result is an interval */
export function pairMasked(
  { recorded, tokenIds, mask }: MaskTable,
  scored: readonly TokenScore[],
  temperature: number,
): TokenPair[] {
  const power = temperature === 0 ? 1 : temperature
  return scored.map((token, index) => {
    const was = recorded[index]!
    const left = mask[index]
    const isLeft = left?.includes(tokenIds[index]!) === true
    const { low, high } = isLeft
      ? computeOverMask(token, tokenIds[index]!, left!, power)
      : applyTemperature(token, power)
    return { recorded: was, recomputed: Math.min(Math.max(was, low), high) }
  })
}

/** Returns the token's logprob among the remaining ids, after temperature, as an interval. */
function computeOverMask(token: TokenScore, id: number, left: readonly number[], temperature: number) {
  const power = 1 / temperature
  const known = new Map(
    token.alternativeIds.map((other, index) => [other, token.alternatives[index]!] as const),
  )
  known.set(id, token.logprob)
  const reported = left.flatMap((other) => known.get(other) ?? [])
  const scaled = reported.reduce((sum, logprob) => sum + Math.exp(logprob * power), 0)
  // No unreported token is more probable than the last reported one.
  const largest = Math.exp(Math.min(0, ...token.alternatives))
  const most = (left.length - reported.length) * largest ** power
  const own = token.logprob * power
  return { low: own - Math.log(scaled + most), high: own - Math.log(scaled) }
}

/** Returns whether computing a token's logprob needs alternatives. */
export function isScaling(of: LogprobsKind, temperature: number): boolean {
  return of === 'mask' || (of === 'temperature' && temperature !== 0 && temperature !== 1)
}

/**
 * Returns the token's logprob after temperature, as an interval. The sum over the vocabulary is exact for the
 * alternatives and bounded for the rest: its total mass is known, and none of its tokens is more probable than the last
 * alternative.
 */
export function applyTemperature(token: TokenScore, temperature: number): { low: number; high: number } {
  const power = 1 / temperature
  const known = token.alternatives.includes(token.logprob)
    ? token.alternatives
    : [...token.alternatives, token.logprob]
  const mass = known.reduce((sum, logprob) => sum + Math.exp(logprob), 0)
  const scaled = known.reduce((sum, logprob) => sum + Math.exp(logprob * power), 0)
  // The rounded sum may exceed what is left.
  const rest = Math.max(0, 1 - mass) + known.length * Number.EPSILON
  const count = Math.max(1, VOCABULARY_SIZE - known.length)
  const largest = Math.exp(Math.min(...(token.alternatives.length > 0 ? token.alternatives : [0])))
  // The sum of p^power over the rest is largest if its mass is in few tokens (power above 1) or spread out (below 1).
  const inFew = rest * largest ** (power - 1)
  const spread = count ** (1 - power) * rest ** power
  const [least, most] = inFew < spread ? [inFew, spread] : [spread, inFew]
  const own = token.logprob * power
  return { low: own - Math.log(scaled + most), high: own - Math.log(scaled + least) }
}

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
