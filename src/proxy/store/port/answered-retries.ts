/** The rules of redelivery: which turns have a response for a client's retry, and how retries are annotated. */
import type { TurnStatus } from './turn-store.ts'

/** The annotations of a turn that stores read or write. */
export interface Annotations {
  /** The retry counts of the retries that received this turn's response, after its end or by joining it. */
  answered_retries?: number[]
  /** The idempotency key that the client sent with all attempts of the request. */
  idempotency_key?: string
  /** The id of the message in which another node forwarded the request. */
  node_message?: string
  /** The id of the message in which the request was sent to a node that was lost before it responded. */
  lost_message?: string
}

/** The fields that determine whether a turn has a complete response. */
interface CompletionFields {
  status: TurnStatus
  finishReason: string | null
  errorCode: string | null
}

/**
 * Returns whether a turn has a complete response: it has a finish reason, and is either completed or aborted only
 * because its agent disconnected.
 */
export function hasCompleteResponse({ status, finishReason, errorCode }: CompletionFields): boolean {
  if (finishReason === null) return false
  return status === 'completed' || (status === 'aborted' && errorCode === 'agent_gone')
}

/** Returns the turn's annotations with the retry added; undefined if the turn has no response to redeliver. */
export function annotateRetry(
  retryCount: number,
  turn: CompletionFields & { annotations: Annotations },
): (Annotations & { answered_retries: number[] }) | undefined {
  if (!hasCompleteResponse(turn)) return undefined
  const { annotations } = turn
  return { ...annotations, answered_retries: [...(annotations.answered_retries ?? []), retryCount] }
}

/** Returns the retry counts of the retries that received a turn's response. */
export function readAnsweredRetries({ annotations }: { annotations: string }): readonly number[] {
  // Few turns have any, so the annotations of the others are not parsed.
  if (!annotations.includes('"answered_retries"')) return []
  return (JSON.parse(annotations) as Annotations).answered_retries ?? []
}
