import type { TokenLogprob } from '../../protocol/canonical/messages.ts'
import type { TokenTable } from '../../protocol/details/details.ts'
import type { Tokenizer } from '../../proxy/tokens/tokenizer/tokenizer.ts'
import type { NextToken } from './ngram-model.ts'
import { indexOfLargest } from './sampler.ts'
import type { LogprobsWish } from './sampling-params.ts'

/** A token with its logprob and its most probable alternatives, as OpenAI and vLLM list them. */
export function describeToken(
  tokenizer: Tokenizer,
  next: NextToken,
  id: number,
  wish: LogprobsWish,
): TokenLogprob {
  return {
    ...describe(tokenizer, next, id, wish),
    top_logprobs: mostProbable(next, tokenizer.vocabSize, wish.top).map((other) =>
      describe(tokenizer, next, other, wish),
    ),
  }
}

/** With `return_tokens_as_token_ids` the bytes are still the text's. */
function describe(tokenizer: Tokenizer, next: NextToken, id: number, wish: LogprobsWish) {
  const text = tokenizer.pieceOf(id).text ?? tokenizer.decode([id])
  return {
    token: wish.asTokenIds ? `token_id:${id}` : text,
    logprob: next.logprob(id),
    bytes: [...Buffer.from(text)],
  }
}

/** The most probable tokens, as a row of a detail. */
export function alternativesOf(tokenizer: Tokenizer, next: NextToken, count: number): TokenTable {
  const ids = mostProbable(next, tokenizer.vocabSize, Math.min(count, tokenizer.vocabSize))
  return { counts: [ids.length], ids, logprobs: ids.map((id) => next.logprob(id)) }
}

/** Most probable first, lower id first among equals. One pass each: far cheaper than sorting the vocabulary. */
function mostProbable(next: NextToken, vocabularySize: number, count: number): number[] {
  if (count === 0) return []
  const probabilities = new Float64Array(vocabularySize)
  next.fill(probabilities)
  return Array.from({ length: count }, () => {
    const id = indexOfLargest(probabilities)
    probabilities[id] = -1
    return id
  })
}
