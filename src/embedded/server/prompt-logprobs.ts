import type { ServedEngine } from './served-engine.ts'

interface PromptLogprob {
  logprob: number
  rank: number
  decoded_token: string
}

/**
 * By token id, for each token of the prompt itself and so many of the most probable ones; null for the first, which
 * follows nothing (`PromptLogprobs` of `vllm/logprobs.py`).
 */
export function promptLogprobs(
  engine: ServedEngine,
  prompt: ArrayLike<number>,
  count: number,
): (Record<string, PromptLogprob> | null)[] {
  const ids = Array.from(prompt)
  const ranked = engine.rankTokens(ids, 1, count).map(({ logprob, rank, top }, at) => {
    const entries = top.map((other, place): [number, PromptLogprob] => [
      other.id,
      { logprob: other.logprob, rank: place + 1, decoded_token: engine.detokenize([other.id]) },
    ])
    const id = ids[at + 1]!
    const own: [number, PromptLogprob] = [id, { logprob, rank, decoded_token: engine.detokenize([id]) }]
    return Object.fromEntries([...entries, own])
  })
  return [null, ...ranked]
}
