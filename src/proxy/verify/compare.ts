/** Compares recorded logprobs with those that an engine gives the same tokens now. Pure. */
import type { TokenScore } from '../engines/port/score.ts'

/**
 * What the recorded logprobs are of: the model's own distribution (`raw`, vLLM's default), or the one after temperature
 * (`temperature`, SGLang's default, and vLLM's `processed_logprobs` without filters), or that among the tokens which
 * top_p, top_k and min_p had left (`mask`, vLLM's `processed_logprobs`, and what is recorded as `sampling_logprobs`).
 */
export type LogprobsKind = 'raw' | 'temperature' | 'mask'

export interface Tolerance {
  /** The mean of all differences of a turn may be so much, in nats. */
  readonly mean: number
  /** One token's difference may be so much. */
  readonly token: number
}

/** A token of a turn, recorded and scored again. */
export interface TokenPair {
  readonly recorded: number
  /** Where the truth is not known to the last digit, the value nearest to the recorded one that it may have. */
  readonly recomputed: number
}

export interface TokenDifference {
  /** In the completion, from 0. */
  index: number
  token_id: number
  recorded: number
  recomputed: number
}

/** In nats; a ratio is the recomputed probability over the recorded one. Names as in the JSON that users get. */
export interface Comparison {
  tokens: number
  mean_difference: number
  max_difference: number
  /** Recomputed less recorded: below 0, the record is too sure. */
  mean_shift: number
  ratio: Record<'min' | 'p01' | 'p10' | 'p50' | 'p90' | 'p99' | 'max', number>
  /** Share of ratios outside 0.9 to 1.1. */
  ratio_outside: number
}

/** Larger vocabularies are not known; the more, the less certain is what was not reported. */
const VOCABULARY_SIZE = 262_144

/** @param temperature at which the recorded token was sampled; 0 and 1 leave the distribution as it is */
export function pairTokens(
  recorded: ArrayLike<number>,
  scored: readonly TokenScore[],
  of: LogprobsKind,
  temperature: number,
): TokenPair[] {
  const isScaled = isScaling(of, temperature)
  return scored.map((token, at) => {
    const was = recorded[at]!
    if (!isScaled) return { recorded: was, recomputed: token.logprob }
    const { low, high } = atTemperature(token, temperature)
    return { recorded: was, recomputed: Math.min(Math.max(was, low), high) }
  })
}

/** The ids that were left for a token; null: not on record, and it is compared as if none had been taken away. */
export type SamplingMask = readonly (readonly number[] | null)[]

/** What is on record of the tokens that were sampled, and over which masks. */
interface MaskTable {
  readonly recorded: ArrayLike<number>
  readonly tokenIds: ArrayLike<number>
  readonly mask: SamplingMask
}

/** @param scored with alternatives; where a mask has ids that are not among them, the truth is an interval */
export function pairMasked(
  { recorded, tokenIds, mask }: MaskTable,
  scored: readonly TokenScore[],
  temperature: number,
): TokenPair[] {
  const power = temperature === 0 ? 1 : temperature
  return scored.map((token, at) => {
    const was = recorded[at]!
    const left = mask[at]
    const isLeft = left?.includes(tokenIds[at]!) === true
    const { low, high } = isLeft ? overMask(token, tokenIds[at]!, left!, power) : atTemperature(token, power)
    return { recorded: was, recomputed: Math.min(Math.max(was, low), high) }
  })
}

/** The token's logprob among those that were left, after temperature, as an interval. */
function overMask(token: TokenScore, id: number, left: readonly number[], temperature: number) {
  const power = 1 / temperature
  const known = new Map(token.alternativeIds.map((other, at) => [other, token.alternatives[at]!] as const))
  known.set(id, token.logprob)
  const reported = left.flatMap((other) => known.get(other) ?? [])
  const scaled = reported.reduce((sum, logprob) => sum + Math.exp(logprob * power), 0)
  // None of those that were not reported is more probable than the last that was.
  const largest = Math.exp(Math.min(0, ...token.alternatives))
  const most = (left.length - reported.length) * largest ** power
  const own = token.logprob * power
  return { low: own - Math.log(scaled + most), high: own - Math.log(scaled) }
}

/** Whether alternatives are needed to tell a token's logprob. */
export function isScaling(of: LogprobsKind, temperature: number): boolean {
  return of === 'mask' || (of === 'temperature' && temperature !== 0 && temperature !== 1)
}

/**
 * The token's logprob after temperature, as an interval: the sum over the vocabulary is known for the alternatives, and
 * for the rest only within bounds, for its mass is known and that none of it is more probable than the last
 * alternative.
 */
export function atTemperature(token: TokenScore, temperature: number): { low: number; high: number } {
  const power = 1 / temperature
  const known = token.alternatives.includes(token.logprob)
    ? token.alternatives
    : [...token.alternatives, token.logprob]
  const mass = known.reduce((sum, logprob) => sum + Math.exp(logprob), 0)
  const scaled = known.reduce((sum, logprob) => sum + Math.exp(logprob * power), 0)
  // The sum is rounded, and what is left may be less than that.
  const rest = Math.max(0, 1 - mass) + known.length * Number.EPSILON
  const count = Math.max(1, VOCABULARY_SIZE - known.length)
  const largest = Math.exp(Math.min(...(token.alternatives.length > 0 ? token.alternatives : [0])))
  // The sum of p^power over the rest is largest where it is all in few tokens (power above 1) or spread out (below).
  const inFew = rest * largest ** (power - 1)
  const spread = count ** (1 - power) * rest ** power
  const [least, most] = inFew < spread ? [inFew, spread] : [spread, inFew]
  const own = token.logprob * power
  return { low: own - Math.log(scaled + most), high: own - Math.log(scaled + least) }
}

export function compare(pairs: readonly TokenPair[]): Comparison {
  const shifts = pairs.map(({ recorded, recomputed }) => recomputed - recorded)
  const differences = shifts.map(Math.abs)
  const ratios = Float64Array.from(shifts, Math.exp).sort()
  const at = (share: number) => ratios[Math.round(share * (ratios.length - 1))]!
  return {
    tokens: pairs.length,
    mean_difference: mean(differences),
    max_difference: differences.reduce((most, difference) => Math.max(most, difference), 0),
    mean_shift: mean(shifts),
    ratio: { min: at(0), p01: at(0.01), p10: at(0.1), p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1) },
    ratio_outside: mean(Array.from(ratios, (ratio) => Number(ratio < 0.9 || ratio > 1.1))),
  }
}

export function isWithin(
  { mean_difference, max_difference }: Pick<Comparison, 'mean_difference' | 'max_difference'>,
  tolerance: Tolerance,
): boolean {
  return mean_difference <= tolerance.mean && max_difference <= tolerance.token
}

/** The first token that differs by more than the mean may; null: none does. */
export function firstDifference(
  pairs: readonly TokenPair[],
  tokenIds: ArrayLike<number>,
  tolerance: Tolerance,
): TokenDifference | null {
  const index = pairs.findIndex(
    ({ recorded, recomputed }) => !(Math.abs(recomputed - recorded) <= tolerance.mean),
  )
  return index === -1 ? null : { index, token_id: tokenIds[index]!, ...pairs[index]! }
}

function mean(values: readonly number[]): number {
  return values.length === 0 ? 0 : values.reduce((sum, value) => sum + value, 0) / values.length
}
