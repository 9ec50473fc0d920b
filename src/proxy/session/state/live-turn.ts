/** A turn in flight, as its session provides it to observers and to retries of the request. */
import type { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { EventSink } from '../../../protocol/canonical/events.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'

/** The retry info that a client and other nodes send. */
export interface RetryInfo {
  /** The number of earlier attempts. */
  retryCount: number
  /** Whether the client counts its attempts. Absent: it does if the count is above 0. */
  sendsRetryCount?: boolean
  /** The same key for all attempts of a request, and for no other request. */
  idempotencyKey?: string | undefined
  /** The id of the message in which another node forwarded the request. */
  nodeMessageId?: string | undefined
  /** The id of the message in which the request was sent to a node that was lost before it responded. */
  lostMessageId?: string | undefined
}

export interface InFlightTurn {
  /** The turn as it was recorded at its start. */
  readonly open: OpenTurn
  readonly retryInfo: RetryInfo
  /** The completion so far. */
  readonly completion: Completion
  /** Whether its agent's connection has broken. */
  readonly isDisconnected: boolean
  /** Whether the response is about to be committed, when it is too late to join. */
  readonly isEnding: boolean
  /** The retry counts of the retries that joined it. */
  readonly answeredRetries: readonly number[]
  /** Settles when the turn is over. */
  readonly over: Promise<unknown>
  /**
   * Joins as a retry. @param retryCount the number of earlier attempts @param gone aborts when the retry's connection
   * closes
   */
  join(retryCount: number, gone: AbortSignal): ResponseHandle
}

/** A response handle: one connection that waits for the turn's response. */
export interface ResponseHandle {
  readonly turnId: string
  readonly startedAtMs: number
  /** The recorded end; undefined before the commit. */
  readonly endedAtMs?: number | undefined
  /**
   * Delivers the response, from its beginning, to the connection; to be called once. `end` follows the commit. Resolves
   * when the sink has accepted all of it.
   * @throws ProxyError the failure of the turn, once it is recorded
   */
  deliver(sink: EventSink): Promise<void>
  /** The part of the completion that has been delivered. */
  readonly completion: Completion
  /** Aborts when the turn is cancelled, so that a sink stops waiting for its connection. */
  readonly signal: AbortSignal
  /** Whether the end of the response may be sent, because it is committed. */
  readonly isComplete: boolean
  /**
   * Reports that a committed response could not be delivered to the agent: it must not be trained on. Does nothing for
   * a turn that is not `completed`, and when repeated.
   * @param reason default: the agent left
   */
  markUndelivered(reason?: ProxyError): Promise<void>
}
