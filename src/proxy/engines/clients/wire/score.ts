/** Functions that the clients share to score tokens. */
import { ProxyError } from '../../../../base/errors.ts'
import type { ScoreRequest } from '../../port/score.ts'

/** vLLM's substitute for minus infinity, which JSON lacks. */
const MINUS_INFINITY = -9_999

/** Creates a score request for ids of which only the texts are needed. */
export function createTextQuery(ids: readonly number[]): ScoreRequest {
  return { promptTokenIds: new Int32Array(), completionTokenIds: Int32Array.from(ids), alternatives: 0 }
}

export function joinScoredIds({ promptTokenIds, completionTokenIds }: ScoreRequest): number[] {
  return [...promptTokenIds, ...completionTokenIds]
}

/** Parses a logprob; undefined if it is invalid. @param value null if the engine computed minus infinity */
export function readLogprob(value: unknown): number | undefined {
  if (value === null) return MINUS_INFINITY
  return typeof value === 'number' && Number.isFinite(value) ? Math.max(value, MINUS_INFINITY) : undefined
}

export function createNotScoredError(engine: string, reason: string): ProxyError {
  return new ProxyError('engine_failed', `the engine at ${engine} did not score the tokens: ${reason}`)
}
