/**
 * Openings of turns that have not been sent to the writer yet. A call that is answered within moments goes on record in
 * one piece: one message to the writer and one row written once, in the place of two.
 */
import type { OpenTurn } from '../port/turn-store.ts'

/** How long an opening may be held. */
const HOLD_MS = 10

interface HeldOpening {
  readonly turn: OpenTurn
  /** Settles what the caller of `hold` got. */
  settle(opened: Promise<void>): void
}

interface WaitingOpening extends HeldOpening {
  readonly sinceMs: number
}

export class HeldOpenings {
  readonly #send: (turn: OpenTurn) => Promise<void>
  /** By the turn's id, oldest first. */
  readonly #held = new Map<string, WaitingOpening>()
  #timer: NodeJS.Timeout | undefined

  constructor(send: (turn: OpenTurn) => Promise<void>) {
    this.#send = send
  }

  hold(turn: OpenTurn): Promise<void> {
    // Of two turns with one id the second is refused, however the first goes on.
    if (this.#held.has(turn.turnId)) {
      this.sendAll()
      return this.#send(turn)
    }
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#held.set(turn.turnId, { turn, settle: resolve, sinceMs: performance.now() })
    this.#timer ??= setTimeout(() => this.#sendOld(), HOLD_MS)
    return promise
  }

  /**
   * For the closing of the turn. Its opening, if it is held, is the caller's from now on; what else is held of its
   * session was called for before, and is sent.
   */
  take(sessionId: string, turnId: string): HeldOpening | undefined {
    let opening: HeldOpening | undefined
    for (const held of this.#held.values()) {
      if (held.turn.sessionId !== sessionId) continue
      if (held.turn.turnId === turnId) opening = held
      else this.#sendOne(held)
    }
    if (opening !== undefined) this.#held.delete(turnId)
    return opening
  }

  /** To be called before anything is sent that may depend on what is on record. */
  sendAll(): void {
    this.#sendUntil(Number.POSITIVE_INFINITY)
  }

  /** One timer for all, set again when the oldest is due. */
  #sendOld(): void {
    this.#sendUntil(performance.now() - HOLD_MS)
    const [oldest] = this.#held.values()
    this.#timer =
      oldest && setTimeout(() => this.#sendOld(), Math.max(0, oldest.sinceMs + HOLD_MS - performance.now()))
  }

  #sendUntil(sinceMs: number): void {
    for (const held of this.#held.values()) {
      if (held.sinceMs > sinceMs) return
      this.#sendOne(held)
    }
  }

  #sendOne({ turn, settle }: HeldOpening): void {
    this.#held.delete(turn.turnId)
    settle(this.#send(turn))
  }
}
