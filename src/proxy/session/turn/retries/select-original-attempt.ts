/** Selects the earlier attempt that a client's retry repeats. */
import type { RetryInfo } from '../../state/live-turn.ts'
import { type Attempt, findRepeatedByLast } from '../../trajectories/retries.ts'

/** An earlier request of the session that is equal to the retry. */
export interface EarlierAttempt extends RetryInfo {
  turnId: string
  /** The retry count of the last retry that received its response; absent: none did. */
  answeredCount?: number | undefined
  /** The state of its response. `running`: in flight. `complete`: recorded. `none`: there is none. */
  response: 'running' | 'complete' | 'none'
  /** Whether the connection broke before the response was delivered. */
  isDisconnected: boolean
  /** Whether a later turn continues a response to an equal request, so that the agent has received one. */
  wasRead: boolean
}

/**
 * Returns whether a request may be a retry.
 * @param keys the idempotency keys of all earlier requests of the session; undefined: unknown
 */
export function mayBeRetry(
  { retryCount, sendsRetryCount, idempotencyKey: key, lostMessageId }: RetryInfo,
  keys: ReadonlySet<string> | undefined,
): boolean {
  if (lostMessageId !== undefined) return true
  // A client that sends a retry count sends 0 with the first attempt.
  if (sendsRetryCount || key === undefined) return retryCount > 0
  return keys?.has(key) ?? true
}

/**
 * Returns the attempt whose response a retry receives. Agents also repeat requests on purpose, to sample several
 * completions, so a retry receives an earlier response only if that cannot belong to another request. An idempotency
 * key identifies the request, as does the message in which another node forwarded it before. A retry count declares
 * that the client received nothing from one earlier attempt: an attempt that failed, or whose connection broke. If
 * there is no such attempt, a response that seems delivered was lost in transit, and it is used only if there is
 * exactly one.
 * @param attempts the equal requests of the session, in index order
 * @returns undefined: the request is not a retry, or no response is available
 */
export function selectOriginalAttempt(
  retry: RetryInfo,
  attempts: readonly EarlierAttempt[],
): EarlierAttempt | undefined {
  const { idempotencyKey, lostMessageId } = retry
  const sent = attempts.findLast(
    (each) => lostMessageId !== undefined && each.nodeMessageId === lostMessageId,
  )
  if (sent && hasResponse(sent)) return sent
  const named = attempts.filter((each) => each.idempotencyKey === idempotencyKey)
  const found = idempotencyKey === undefined ? findByCount(retry, named) : named.findLast(hasResponse)
  return found && hasResponse(found) ? found : undefined
}

function findByCount(
  { retryCount }: RetryInfo,
  attempts: readonly EarlierAttempt[],
): EarlierAttempt | undefined {
  const asTurns = attempts.map((each): Attempt => {
    const status = seemsDelivered(each) ? 'completed' : 'aborted'
    return { turnId: each.turnId, retryCount: each.retryCount, answeredCount: each.answeredCount, status }
  })
  const read = new Set(attempts.filter(({ wasRead }) => wasRead).map(({ turnId }) => turnId))
  const retried = [...asTurns, { turnId: '', retryCount, status: 'open' } as const]
  const repeated = findRepeatedByLast(retried, (turnId) => read.has(turnId))
  const found = attempts.find(({ turnId }) => turnId === repeated)
  if (found === undefined || !seemsDelivered(found)) return found
  const unread = attempts.filter((each) => seemsDelivered(each) && !each.wasRead)
  return unread.length === 1 ? found : undefined
}

function hasResponse({ response }: EarlierAttempt): boolean {
  return response !== 'none'
}

function seemsDelivered({ response, isDisconnected }: EarlierAttempt): boolean {
  return response !== 'none' && !isDisconnected
}
