/**
 * Write coalescing: a short delay of commands that open turns. The open and close of a turn that ends within the delay
 * are one message to the writer, and one write of the row instead of two.
 */
import type { OpenTurn } from '../port/turn-store.ts'

/**
 * The longest delay of an opening. A crash within it leaves no record of the turn, whose response was not complete. 10
 * ms are not enough: a busy proxy takes longer for a short turn.
 */
const MAX_DELAY_MS = 50

/** An opening that has not been sent. */
interface PendingOpening {
  readonly turn: OpenTurn
  readonly sinceMs: number
  /** Settles the promise that `enqueue` returned. */
  settle(opened: Promise<void>): void
}

export class WriteCoalescer {
  readonly #send: (turn: OpenTurn) => Promise<void>
  /** The delayed openings by turn id, oldest first. */
  readonly #pending = new Map<string, PendingOpening>()
  #timer: NodeJS.Timeout | undefined

  constructor(send: (turn: OpenTurn) => Promise<void>) {
    this.#send = send
  }

  enqueue(turn: OpenTurn): Promise<void> {
    // If two turns have the same id, both are sent, so that the writer rejects the second one.
    if (this.#pending.has(turn.turnId)) {
      this.sendAll()
      return this.#send(turn)
    }
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#pending.set(turn.turnId, { turn, settle: resolve, sinceMs: performance.now() })
    this.#timer ??= setTimeout(() => this.#sendOld(), MAX_DELAY_MS)
    return promise
  }

  /**
   * Removes and returns the opening of a turn that closes, if it is still delayed. Sends the other delayed openings of
   * the session, which precede it.
   */
  take(sessionId: string, turnId: string): PendingOpening | undefined {
    let opening: PendingOpening | undefined
    for (const pending of this.#pending.values()) {
      if (pending.turn.sessionId !== sessionId) continue
      if (pending.turn.turnId === turnId) opening = pending
      else this.#sendOne(pending)
    }
    if (opening !== undefined) this.#pending.delete(turnId)
    return opening
  }

  /** Sends all delayed openings. To be called before any operation that may depend on committed turns. */
  sendAll(): void {
    this.#sendUntil(Number.POSITIVE_INFINITY)
  }

  /** Sends openings that have reached the longest delay, and sets the timer for the oldest of the others. */
  #sendOld(): void {
    this.#sendUntil(performance.now() - MAX_DELAY_MS)
    const [oldest] = this.#pending.values()
    this.#timer =
      oldest &&
      setTimeout(() => this.#sendOld(), Math.max(0, oldest.sinceMs + MAX_DELAY_MS - performance.now()))
  }

  #sendUntil(sinceMs: number): void {
    for (const pending of this.#pending.values()) {
      if (pending.sinceMs > sinceMs) return
      this.#sendOne(pending)
    }
  }

  #sendOne({ turn, settle }: PendingOpening): void {
    this.#pending.delete(turn.turnId)
    settle(this.#send(turn))
  }
}
