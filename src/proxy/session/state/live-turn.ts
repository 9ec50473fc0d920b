/** The interface of turns in flight for observers and for retries of their requests. */
import type { ProxyError } from '../../../base/errors.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { EventSink } from '../../../protocol/canonical/events.ts'
import type { OpenTurn } from '../../store/port/turn-store.ts'

/** The data by which clients and other nodes declare retries. */
export interface RetryInfo {
  /** The number of earlier attempts. */
  retryCount: number
  /** Whether the client sends a retry count with each attempt. Absent: it does if the count is above 0. */
  sendsRetryCount?: boolean
  /** The idempotency key, which is the same for all attempts of a request and differs between requests. */
  idempotencyKey?: string | undefined
  /** The id of the message in which another node forwarded this attempt. */
  nodeMessageId?: string | undefined
  /** The id of the message in which an earlier attempt was forwarded to a node that crashed before it responded. */
  lostMessageId?: string | undefined
}

/** A turn in flight. */
export interface InFlightTurn {
  /** The turn as it was recorded at its start. */
  readonly open: OpenTurn
  readonly retryInfo: RetryInfo
  /** The completion so far. */
  readonly completion: Completion
  /** Whether all connections that wait for the response have closed. */
  readonly isDisconnected: boolean
  /** Whether the response is complete or was cancelled, and is about to be committed, so that a retry cannot join. */
  readonly isEnding: boolean
  /** The retry counts of the retries that joined the turn. */
  readonly answeredRetries: readonly number[]
  /** Settles when the turn is over. */
  readonly over: Promise<unknown>
  /**
   * Adds the connection of a retry.
   * @param retryCount the number of earlier attempts
   * @param gone aborts when the connection closes
   */
  join(retryCount: number, gone: AbortSignal): ResponseHandle
}

/** A handle by which one connection receives a turn's response. */
export interface ResponseHandle {
  readonly turnId: string
  readonly startedAtMs: number
  /** The recorded end of the turn; undefined before the commit. */
  readonly endedAtMs?: number | undefined
  /**
   * Delivers the response from its beginning. Must be called once. The `end` event follows the commit. Resolves when
   * the sink has accepted all events.
   * @throws ProxyError the failure of the turn, after it has been recorded
   */
  deliver(sink: EventSink): Promise<void>
  /** The completion so far. */
  readonly completion: Completion
  /** Aborts when the turn is cancelled. A sink must then stop waiting for its connection. */
  readonly signal: AbortSignal
  /** Whether the response is committed, so that its end may be sent. */
  readonly isComplete: boolean
  /**
   * Reports that the response could not be delivered, so that a committed turn is not trained on. Has no effect on a
   * turn that is not `completed`, or when repeated.
   * @param reason default: the agent disconnected
   */
  markUndelivered(reason?: ProxyError): Promise<void>
}
