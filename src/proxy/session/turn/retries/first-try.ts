/** Which earlier try of a call its client's retry asks for again. */
import type { TryWord } from '../../state/live-turn.ts'
import { type Attempt, findRepeatedByLast } from '../../trajectories/retries.ts'

/** An earlier call of the session with the very same request. */
export interface EarlierTry extends TryWord {
  turnId: string
  /** Of the last retry that was given its answer. */
  answeredCount?: number | undefined
  /** `running`: its answer is under way. `whole`: it is on record. `none`: there is none. */
  answer: 'running' | 'whole' | 'none'
  /** The connection broke before the answer was handed over. */
  isLost: boolean
  /** Something goes on from an answer to this request, so the agent has read one. */
  wasRead: boolean
}

/** @param keys that calls of the session had before, where they are all known */
export function mayBeRetry(
  { retryCount, tellsTries, idempotencyKey: key }: TryWord,
  keys: ReadonlySet<string> | undefined,
): boolean {
  // Who counts its tries says of a first one that it is.
  if (tellsTries || key === undefined) return retryCount > 0
  return keys?.has(key) ?? true
}

/**
 * Agents send equal requests on purpose and want a sample for each: a retry gets an earlier answer only where it can be
 * no other call's. A key says which call it is. A count says that one earlier try brought its client nothing: that is
 * one whose connection broke, or which failed; only if there is none, an answer that looks delivered was lost on its
 * way, and then there must be one such answer alone.
 * @param tries in call order
 * @returns the try whose answer the retry gets; undefined: it is a call like any other
 */
export function firstTryOf(retry: TryWord, tries: readonly EarlierTry[]): EarlierTry | undefined {
  const { idempotencyKey } = retry
  const named = tries.filter((each) => each.idempotencyKey === idempotencyKey)
  const found = idempotencyKey === undefined ? byCount(retry, named) : named.findLast(hasAnswer)
  return found && hasAnswer(found) ? found : undefined
}

function byCount({ retryCount }: TryWord, tries: readonly EarlierTry[]): EarlierTry | undefined {
  const asTurns = tries.map((each): Attempt => {
    const status = seemsDelivered(each) ? 'completed' : 'aborted'
    return { turnId: each.turnId, retryCount: each.retryCount, answeredCount: each.answeredCount, status }
  })
  const read = new Set(tries.filter(({ wasRead }) => wasRead).map(({ turnId }) => turnId))
  const retried = [...asTurns, { turnId: '', retryCount, status: 'open' } as const]
  const repeated = findRepeatedByLast(retried, (turnId) => read.has(turnId))
  const found = tries.find(({ turnId }) => turnId === repeated)
  if (found === undefined || !seemsDelivered(found)) return found
  const unread = tries.filter((each) => seemsDelivered(each) && !each.wasRead)
  return unread.length === 1 ? found : undefined
}

function hasAnswer({ answer }: EarlierTry): boolean {
  return answer !== 'none'
}

function seemsDelivered({ answer, isLost }: EarlierTry): boolean {
  return answer !== 'none' && !isLost
}
