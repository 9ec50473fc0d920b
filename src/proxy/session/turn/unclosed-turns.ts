/**
 * Turns whose closing the store refused, because its disk was full as a rule. A turn that nobody closes would count as
 * in flight until the process starts anew: no sweep removes its session, and no reader of it knows that it is over.
 */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { isMoved } from '../../store/port/shared-record.ts'
import type { TurnOutcome, TurnStore } from '../../store/port/turn-store.ts'

const RETRY_MS = 5_000

export class UnclosedTurns {
  readonly #store: Pick<TurnStore, 'closeTurn'>
  readonly #clock: Clock
  /** What each of them is to be closed with; made anew for each try, as the store keeps what it is given. */
  readonly #outcomes = new Set<() => TurnOutcome>()
  #cancelRetry: (() => void) | undefined

  constructor(store: Pick<TurnStore, 'closeTurn'>, clock: Clock = systemClock) {
    this.#store = store
    this.#clock = clock
  }

  /** The store is asked again, now and then, until it takes it. */
  add(outcomeOf: () => TurnOutcome): void {
    this.#outcomes.add(outcomeOf)
    this.#retryLater()
  }

  /** What is left becomes `interrupted` when the database is opened again. */
  stop(): void {
    this.#outcomes.clear()
    this.#cancelRetry?.()
  }

  #retryLater(): void {
    this.#cancelRetry ??= this.#clock.after(RETRY_MS, () => void this.#retry())
  }

  async #retry(): Promise<void> {
    await Promise.all([...this.#outcomes].map((outcomeOf) => this.#close(outcomeOf)))
    this.#cancelRetry = undefined
    if (this.#outcomes.size > 0) this.#retryLater()
  }

  async #close(outcomeOf: () => TurnOutcome): Promise<void> {
    try {
      await this.#store.closeTurn(outcomeOf())
      this.#outcomes.delete(outcomeOf)
    } catch (error) {
      // Reported when it was refused first. Of a session that is another proxy's, that one has closed it.
      if (isMoved(error)) this.#outcomes.delete(outcomeOf)
    }
  }
}
