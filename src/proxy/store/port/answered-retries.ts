/** Which turns have an answer that a client's retry can be given, and how the record says that it was. */
import type { TurnStatus } from './turn-store.ts'

/** What is said of a turn beside its columns. */
export interface Annotations {
  /** How often its client had tried each call that was answered with this turn after it had ended, or joined it. */
  answered_retries?: number[]
  /** The name that the client gave all tries of the call. */
  idempotency_key?: string
}

/** What tells whether a turn has a whole answer. */
interface AnsweredTurn {
  status: TurnStatus
  finishReason: string | null
  errorCode: string | null
}

/**
 * An answer is whole when its end came. The agent may have left before it had it; whatever else aborted a turn was meant to.
 */
export function hasWholeAnswer({ status, finishReason, errorCode }: AnsweredTurn): boolean {
  if (finishReason === null) return false
  return status === 'completed' || (status === 'aborted' && errorCode === 'agent_gone')
}

/** @returns the annotations of a turn that a retry is given; undefined: it has no answer to give */
export function answerFor(
  retryCount: number,
  turn: AnsweredTurn & { annotations: Annotations },
): (Annotations & { answered_retries: number[] }) | undefined {
  if (!hasWholeAnswer(turn)) return undefined
  const { annotations } = turn
  return { ...annotations, answered_retries: [...(annotations.answered_retries ?? []), retryCount] }
}

/** The counts of the retries that got a turn's answer. */
export function answeredRetriesOf({ annotations }: { annotations: string }): readonly number[] {
  // Nearly no turn has any: most are not parsed.
  if (!annotations.includes('"answered_retries"')) return []
  return (JSON.parse(annotations) as Annotations).answered_retries ?? []
}
