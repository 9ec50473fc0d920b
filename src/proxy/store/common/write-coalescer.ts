/**
 * Write coalescing: openings of turns that have not been sent to the writer yet. The open and close of a turn that ends
 * within moments are written as one: one message to the writer and one write of the row instead of two.
 */
import type { OpenTurn } from '../port/turn-store.ts'

/**
 * The longest delay of an opening. A crash within it leaves no record of the turn, whose response was not complete. A
 * busy proxy takes longer than 10 ms for a short turn.
 */
const HOLD_MS = 50

interface PendingOpen {
  readonly turn: OpenTurn
  /** Settles the promise that `hold` returned. */
  settle(opened: Promise<void>): void
}

interface WaitingOpening extends PendingOpen {
  readonly sinceMs: number
}

export class WriteCoalescer {
  readonly #send: (turn: OpenTurn) => Promise<void>
  /** The delayed openings by turn id, oldest first. */
  readonly #pending = new Map<string, WaitingOpening>()
  #timer: NodeJS.Timeout | undefined

  constructor(send: (turn: OpenTurn) => Promise<void>) {
    this.#send = send
  }

  enqueue(turn: OpenTurn): Promise<void> {
    // The second of two turns with the same id is rejected, whatever happens to the first.
    if (this.#pending.has(turn.turnId)) {
      this.sendAll()
      return this.#send(turn)
    }
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#pending.set(turn.turnId, { turn, settle: resolve, sinceMs: performance.now() })
    this.#timer ??= setTimeout(() => this.#sendOld(), HOLD_MS)
    return promise
  }

  /**
   * Removes and returns the opening of a turn that closes, if it is still delayed. Sends the other delayed openings of
   * the session, which precede it.
   */
  take(sessionId: string, turnId: string): PendingOpen | undefined {
    let opening: PendingOpen | undefined
    for (const pending of this.#pending.values()) {
      if (pending.turn.sessionId !== sessionId) continue
      if (pending.turn.turnId === turnId) opening = pending
      else this.#sendOne(pending)
    }
    if (opening !== undefined) this.#pending.delete(turnId)
    return opening
  }

  /** Sends all openings. To be called before any operation that may depend on committed turns. */
  sendAll(): void {
    this.#sendUntil(Number.POSITIVE_INFINITY)
  }

  /** Sends due openings. There is one timer for all, set again for the oldest. */
  #sendOld(): void {
    this.#sendUntil(performance.now() - HOLD_MS)
    const [oldest] = this.#pending.values()
    this.#timer =
      oldest && setTimeout(() => this.#sendOld(), Math.max(0, oldest.sinceMs + HOLD_MS - performance.now()))
  }

  #sendUntil(sinceMs: number): void {
    for (const pending of this.#pending.values()) {
      if (pending.sinceMs > sinceMs) return
      this.#sendOne(pending)
    }
  }

  #sendOne({ turn, settle }: PendingOpen): void {
    this.#pending.delete(turn.turnId)
    settle(this.#send(turn))
  }
}
