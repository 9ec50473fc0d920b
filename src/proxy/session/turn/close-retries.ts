/**
 * Retries for turns that the store failed to close, usually because its disk was full. Such a turn would count as in
 * flight until the process restarts: its session would never be removed, and readers would wait for its end.
 */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { isSessionMovedError } from '../../store/port/node-coordination.ts'
import type { TurnStore } from '../../store/port/turn-store.ts'
import { type TurnEnd, toLostOutcome } from './turn-record.ts'

/** The time between two attempts. */
const RETRY_MS = 5_000

/** The number of turns that are closed at the same time: enough for one group commit, few for a store that recovers. */
const BATCH_TURNS = 32

/**
 * The maximum number of turns, and of characters in the annotations and in the error of each, which limit the memory to
 * about 100 MB. Only turns in flight when the store fails are added, which are fewer, and nearly all are shorter.
 */
const MAX_TURNS = 10_000
const MAX_CHARS = 4_000

/** The turns that are still to be closed. */
export class CloseRetries {
  readonly #store: Pick<TurnStore, 'closeTurn'>
  readonly #clock: Clock
  /** In the order of their next attempt. */
  readonly #turns = new Set<TurnEnd>()
  #cancelRetry: (() => void) | undefined
  #isStopped = false

  constructor(store: Pick<TurnStore, 'closeTurn'>, clock: Clock = systemClock) {
    this.#store = store
    this.#clock = clock
  }

  /**
   * Adds a turn that is open in the store, and retries periodically until the store has closed it. Retains the outcome
   * without the response, which may be large: its agent received an error in place of its end. A turn beyond the maximum
   * number stays open until the database is opened the next time.
   */
  add(end: TurnEnd): void {
    if (this.#isStopped || this.#turns.size >= MAX_TURNS) return
    this.#turns.add(truncateEnd(end))
    this.#retryLater()
  }

  /** Stops retrying. The remaining turns become `interrupted` when the database is opened the next time. */
  stop(): void {
    this.#isStopped = true
    this.#turns.clear()
    this.#cancelRetry?.()
  }

  #retryLater(): void {
    this.#cancelRetry ??= this.#clock.after(RETRY_MS, () => void this.#retry())
  }

  async #retry(): Promise<void> {
    const turns = [...this.#turns]
    for (let from = 0; from < turns.length && this.#turns.size > 0; from += BATCH_TURNS) {
      const closed = await Promise.all(turns.slice(from, from + BATCH_TURNS).map((turn) => this.#close(turn)))
      // The store still fails, so the other turns wait.
      if (!closed.includes(true)) break
    }
    this.#cancelRetry = undefined
    if (this.#turns.size > 0) this.#retryLater()
  }

  /** @returns whether the turn is closed */
  async #close(turn: TurnEnd): Promise<boolean> {
    try {
      await this.#store.closeTurn(toLostOutcome(turn, 'the store failed when the turn ended'))
      return this.#turns.delete(turn)
    } catch (error) {
      // The failure was reported when the turn was added. If another node owns the session, it has closed the turn.
      const isRemoved = this.#turns.delete(turn)
      if (isSessionMovedError(error)) return true
      // The turns that have not been tried come first the next time.
      if (isRemoved) this.#turns.add(turn)
      return false
    }
  }
}

/** Returns the fields of an outcome that are retained, with limited texts. */
function truncateEnd(end: TurnEnd): TurnEnd {
  const { turnId, sessionId, epoch, status, endedAtMs, firstTokenAtMs, model, engine } = end
  const annotations = end.annotations.length <= MAX_CHARS ? end.annotations : '{}'
  const error = end.error && { ...end.error, message: truncate(end.error.message) }
  return { turnId, sessionId, epoch, status, endedAtMs, firstTokenAtMs, model, engine, annotations, error }
}

/** Returns a text of at most {@link MAX_CHARS}. It is a copy, because a slice would retain the long text. */
function truncate(text: string): string {
  return text.length <= MAX_CHARS ? text : Buffer.from(text.slice(0, MAX_CHARS)).toString()
}
