/** What the embedded model thinks of given tokens. */
import type { ScoredToken } from '../../proxy/engines/port/score.ts'
import type { NgramModel } from './ngram-model.ts'

/** A token with the most probable ones in its place, and its own rank among all, from 1. */
export interface RankedToken extends ScoredToken {
  readonly rank: number
  /** Most probable first. */
  readonly top: readonly { id: number; logprob: number }[]
}

/**
 * Bit for bit the logprobs that are reported while sampling.
 * @param from the first place that is scored; what stands before it is context
 */
export function rankTokens(
  model: NgramModel,
  ids: readonly number[],
  from: number,
  count: number,
): RankedToken[] {
  const probabilities = new Float64Array(model.vocabularySize)
  return ids.slice(from).map((id, at) => {
    const next = model.next(ids, from + at)
    next.fill(probabilities)
    const own = probabilities[id]!
    const rank = 1 + probabilities.reduce((more, probability) => more + Number(probability > own), 0)
    const order = count === 0 ? [] : mostProbable(probabilities, count)
    const top = order.map((other) => ({ id: other, logprob: next.logprob(other) }))
    return {
      logprob: next.logprob(id),
      rank,
      top,
      alternatives: top.map(({ logprob }) => logprob),
      alternativeIds: order,
    }
  })
}

function mostProbable(probabilities: Float64Array, count: number): number[] {
  const ids = Array.from(probabilities.keys())
  return ids.sort((a, b) => probabilities[b]! - probabilities[a]! || a - b).slice(0, count)
}
