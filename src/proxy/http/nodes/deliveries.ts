/**
 * Tracks the delivery of forwarded responses. The owner of a session sends a response to the node that forwarded the
 * request; only that node can observe whether the client received it, and acknowledges it with the id of its signed
 * message. If a response was not delivered, the next request may be an unmarked retry, whose turn supersedes that of
 * the original attempt.
 */
import type { ServerResponse } from 'node:http'
import { type Clock, systemClock } from '../../../base/clock.ts'
import type { NodeCoordination } from '../../store/port/node-coordination.ts'
import { runOnClose } from '../transport/on-close.ts'
import type { NodeMessage } from './node-identity.ts'

/** The response header with which the responding node requests an acknowledgement from the forwarding node. */
export const DELIVERY_HEADER = 'x-llm-proxy-delivery'

/**
 * The time that a request waits for the acknowledgements of earlier responses of its session. A node acknowledges
 * within one round trip of the last byte; a longer silence means that it crashed or that its client does not read the
 * response.
 */
const SETTLE_MS = 1_000

/**
 * `lost`: not acknowledged, or reported as undelivered. `cut`: the connection to the client or the forwarding node
 * closed before the whole response was written.
 */
export type DeliveryOutcome = 'delivered' | 'lost' | 'cut'

/** A response of this node to a forwarded request, until its outcome is known. */
interface PendingDelivery {
  readonly sessionId: string | undefined
  /** Whether the response has been written to the forwarding node. */
  isWritten: boolean
  readonly settle: (outcome: DeliveryOutcome) => void
  readonly settled: Promise<void>
}

/** The forwarded responses of this node whose outcome is not known yet. */
export class Deliveries {
  readonly #shared: NodeCoordination
  readonly #clock: Clock
  readonly #pending = new Map<string, PendingDelivery>()
  readonly #ofSession = new Map<string, Set<PendingDelivery>>()

  constructor(shared: NodeCoordination, clock: Clock = systemClock) {
    this.#shared = shared
    this.#clock = clock
  }

  /** The number of forwarded responses whose outcome is not known yet. */
  get count(): number {
    return this.#pending.size
  }

  /**
   * Calls `onOutcome` once, when the outcome of a response is known.
   * @param message the signed message of the node that forwarded the request; undefined: the client is connected to
   *   this node
   * @param sessionId the session, for {@link settle}; undefined: another node serves it
   */
  watch(
    response: ServerResponse,
    message: NodeMessage | undefined,
    sessionId: string | undefined,
    onOutcome: (outcome: DeliveryOutcome) => void,
  ): void {
    if (message === undefined) {
      runOnClose(response, () => onOutcome(response.writableFinished ? 'delivered' : 'cut'))
      return
    }
    const delivery = this.#track(message, sessionId, onOutcome)
    if (!response.headersSent) response.setHeader(DELIVERY_HEADER, 'tracked')
    runOnClose(response, () => {
      if (response.writableFinished) delivery.isWritten = true
      else delivery.settle('cut')
    })
  }

  /** Applies an acknowledgement. It is ignored if the id is unknown or if another node forwarded the request. */
  acknowledge(from: number, id: string, isDelivered: boolean): void {
    this.#pending.get(toDeliveryKey({ from, id }))?.settle(isDelivered ? 'delivered' : 'lost')
  }

  /**
   * Waits until the outcome of every written response of a session is known, at most {@link SETTLE_MS}. An outcome that
   * is still unknown then counts as lost, so that the next request can be recognized as a retry.
   */
  async settle(sessionId: string): Promise<void> {
    const written = [...(this.#ofSession.get(sessionId) ?? [])].filter(({ isWritten }) => isWritten)
    if (written.length === 0) return
    const { promise: timedOut, resolve } = Promise.withResolvers<void>()
    const cancelTimer = this.#clock.after(SETTLE_MS, resolve)
    await Promise.race([Promise.all(written.map(({ settled }) => settled)), timedOut])
    cancelTimer()
    for (const delivery of written) delivery.settle('lost')
  }

  #track(
    message: NodeMessage,
    sessionId: string | undefined,
    onOutcome: (outcome: DeliveryOutcome) => void,
  ): PendingDelivery {
    const key = toDeliveryKey(message)
    const gone = this.#shared.getLossSignal(message.from)
    const { promise: settled, resolve } = Promise.withResolvers<void>()
    const onGone = () => settle('lost')
    const settle = (outcome: DeliveryOutcome) => {
      if (this.#pending.get(key) !== delivery) return
      this.#pending.delete(key)
      gone.removeEventListener('abort', onGone)
      this.#forget(delivery)
      onOutcome(outcome)
      resolve()
    }
    const delivery: PendingDelivery = { sessionId, isWritten: false, settle, settled }
    this.#pending.set(key, delivery)
    if (sessionId !== undefined) {
      const others = this.#ofSession.get(sessionId) ?? new Set()
      this.#ofSession.set(sessionId, others.add(delivery))
    }
    gone.addEventListener('abort', onGone, { once: true })
    return delivery
  }

  #forget(delivery: PendingDelivery): void {
    const { sessionId } = delivery
    if (sessionId === undefined) return
    const others = this.#ofSession.get(sessionId)
    others?.delete(delivery)
    if (others?.size === 0) this.#ofSession.delete(sessionId)
  }
}

function toDeliveryKey({ from, id }: NodeMessage): string {
  return `${from} ${id}`
}
