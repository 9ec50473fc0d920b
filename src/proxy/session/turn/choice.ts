/** One of the answers to a request that asks for several (`n` above 1): a turn of its own. */
import type { CanonicalRequest } from '../../../protocol/canonical/request.ts'

/** As it stands in the turn's annotations. */
export interface Choice {
  /** From 0, as on the wire. */
  readonly index: number
  /** How many there are. */
  readonly of: number
  /** Names the call: the id of the turn of the first choice, which the answer has as its own. */
  readonly call: string
}

/**
 * What an engine is asked for, and what goes on record: the same, but for `n`, which the record keeps. Each choice has
 * a seed of its own, or all would be equal: the agent's and the choice's index, as in vLLM
 * (`_get_child_sampling_params` of `vllm/v1/engine/parallel_sampling.py`).
 */
export function requestOfChoice(
  request: CanonicalRequest,
  choice: Choice | undefined,
): { request: CanonicalRequest; recorded: CanonicalRequest } {
  if (choice === undefined) return { request, recorded: request }
  const { seed } = request.body
  // Engines take -1 for no seed.
  const hasSeed = typeof seed === 'number' && seed >= 0
  const own = { ...request.body, ...(hasSeed && { seed: seed + choice.index }) }
  return {
    request: withBody(request, { ...own, n: undefined }),
    recorded: withBody(request, { ...own, n: choice.of }),
  }
}

function withBody(request: CanonicalRequest, body: object): CanonicalRequest {
  return { ...request, body } as CanonicalRequest
}
