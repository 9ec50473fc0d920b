/**
 * Retries for turns that the store failed to close, usually because its disk was full. Such a turn would count as in
 * flight until the process restarts: its session would never be removed, and readers would wait for its end.
 */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { isSessionMovedError } from '../../store/port/node-coordination.ts'
import type { TurnOutcome, TurnStore } from '../../store/port/turn-store.ts'

/** The time between two attempts. */
const RETRY_MS = 5_000

/** The turns that are still to be closed. */
export class CloseRetries {
  readonly #store: Pick<TurnStore, 'closeTurn'>
  readonly #clock: Clock
  /**
   * Functions that create the outcome of each turn. Each attempt creates it again, because the store retains its
   * arguments.
   */
  readonly #outcomes = new Set<() => TurnOutcome>()
  #cancelRetry: (() => void) | undefined

  constructor(store: Pick<TurnStore, 'closeTurn'>, clock: Clock = systemClock) {
    this.#store = store
    this.#clock = clock
  }

  /** Adds a turn, and retries periodically until the store has closed it. */
  add(getOutcome: () => TurnOutcome): void {
    this.#outcomes.add(getOutcome)
    this.#retryLater()
  }

  /** Stops retrying. The remaining turns become `interrupted` when the database is opened the next time. */
  stop(): void {
    this.#outcomes.clear()
    this.#cancelRetry?.()
  }

  #retryLater(): void {
    this.#cancelRetry ??= this.#clock.after(RETRY_MS, () => void this.#retry())
  }

  async #retry(): Promise<void> {
    await Promise.all([...this.#outcomes].map((getOutcome) => this.#close(getOutcome)))
    this.#cancelRetry = undefined
    if (this.#outcomes.size > 0) this.#retryLater()
  }

  async #close(getOutcome: () => TurnOutcome): Promise<void> {
    try {
      await this.#store.closeTurn(getOutcome())
      this.#outcomes.delete(getOutcome)
    } catch (error) {
      // The failure was reported when the turn was added. If another node owns the session, it has closed the turn.
      if (isSessionMovedError(error)) this.#outcomes.delete(getOutcome)
    }
  }
}
