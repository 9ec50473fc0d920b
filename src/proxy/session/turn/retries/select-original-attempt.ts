/** Finds the earlier attempt that a client's retry repeats. */
import type { RetryInfo } from '../../state/live-turn.ts'
import { type Attempt, findRepeatedByLast } from '../../trajectories/retries.ts'

/** An earlier request of the session that is identical. */
export interface EarlierAttempt extends RetryInfo {
  turnId: string
  /** The retry count of the last retry that received its response. */
  answeredCount?: number | undefined
  /** The state of its response. `running`: in flight. `complete`: recorded. `none`: there is none. */
  response: 'running' | 'complete' | 'none'
  /** Whether the connection broke before the response was delivered. */
  isDisconnected: boolean
  /** Whether a later turn continues a response to this request, so that the agent has received one. */
  wasRead: boolean
}

/**
 * Returns whether a request may be a retry.
 * @param keys the idempotency keys of all earlier requests of the session, if they are known
 */
export function mayBeRetry(
  { retryCount, sendsRetryCount, idempotencyKey: key, lostMessageId }: RetryInfo,
  keys: ReadonlySet<string> | undefined,
): boolean {
  if (lostMessageId !== undefined) return true
  // A client that counts its attempts declares the first one as such.
  if (sendsRetryCount || key === undefined) return retryCount > 0
  return keys?.has(key) ?? true
}

/**
 * Returns the attempt whose response a retry receives. Agents also send identical requests on purpose, to get a sample
 * for each: a retry receives an earlier response only if that cannot belong to another request. A key identifies the
 * request, as does the message in which another node sent it before. A count declares that the client received nothing
 * from one earlier attempt, which failed or whose connection broke. Only if there is no such attempt, a response that
 * seems delivered was lost in transit, and there must be exactly one such response.
 * @param attempts in the order of requests
 * @returns undefined: it is an ordinary request
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
