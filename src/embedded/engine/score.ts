/** Scores tokens with the embedded model. */
import type { TokenScore } from '../../proxy/engines/port/score.ts'
import type { NextTokenDistribution, NgramModel } from './ngram-model.ts'
import { findIndexOfLargest } from './sampler.ts'

/** A token's score and rank. */
export interface TokenRank extends TokenScore {
  /** The rank among all tokens, from 1. */
  readonly rank: number
  /** The most probable tokens in descending order. */
  readonly top: readonly { id: number; logprob: number }[]
}

/**
 * Scores and ranks tokens. The logprobs are the model's own, before temperature and all other sampling parameters, and
 * bitwise equal to those that are reported while sampling.
 * @param from the index of the first token to score; earlier ones are context
 * @param count the number of most probable tokens to return with each token
 */
export function rankTokens(
  model: NgramModel,
  ids: readonly number[],
  from: number,
  count: number,
): TokenRank[] {
  const probabilities = new Float64Array(model.vocabularySize)
  return ids.slice(from).map((id, index) => {
    const next = model.getNextDistribution(ids, from + index)
    next.fill(probabilities)
    const own = probabilities[id]!
    const rank = 1 + probabilities.reduce((more, probability) => more + Number(probability > own), 0)
    const order = selectMostProbable(next, model.vocabularySize, count)
    const top = order.map((other) => ({ id: other, logprob: next.getLogprob(other) }))
    return {
      logprob: next.getLogprob(id),
      rank,
      top,
      alternatives: top.map(({ logprob }) => logprob),
      alternativeIds: order,
    }
  })
}

/**
 * Returns the most probable tokens in descending order, and by id if they are equally probable. One pass over the
 * vocabulary for each token is far cheaper than sorting it.
 */
export function selectMostProbable(
  next: NextTokenDistribution,
  vocabularySize: number,
  count: number,
): number[] {
  if (count === 0) return []
  const probabilities = new Float64Array(vocabularySize)
  next.fill(probabilities)
  return Array.from({ length: Math.min(count, vocabularySize) }, () => {
    const id = findIndexOfLargest(probabilities)
    probabilities[id] = -1
    return id
  })
}
