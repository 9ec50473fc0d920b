/** Those who wait for the answer of one turn. When the last has gone, nobody needs it. */
import { toProxyError } from '../../../../base/errors.ts'

export class Audience {
  readonly #cancel: AbortController
  readonly #graceMs: () => number
  #waiting = 0
  #grace: NodeJS.Timeout | undefined

  /**
   * @param cancel aborts when all have gone, with the reason of the last
   * @param graceMs how long the turn goes on for a client whose connection was lost, and who may try again
   */
  constructor(cancel: AbortController, graceMs: () => number) {
    this.#cancel = cancel
    this.#graceMs = graceMs
  }

  /** @param gone aborts when it waits no more */
  add(gone: AbortSignal): void {
    clearTimeout(this.#grace)
    this.#waiting += 1
    if (gone.aborted) this.#leave(gone.reason)
    else gone.addEventListener('abort', () => this.#leave(gone.reason), { once: true })
  }

  /** All have gone, and the turn goes on for a while. */
  get isAway(): boolean {
    return this.#waiting === 0
  }

  /** The turn is over. */
  close(): void {
    clearTimeout(this.#grace)
  }

  #leave(reason: unknown): void {
    this.#waiting -= 1
    if (this.#waiting > 0) return
    const graceMs = toProxyError(reason).code === 'agent_gone' ? this.#graceMs() : 0
    if (graceMs === 0) this.#cancel.abort(reason)
    else this.#grace = setTimeout(() => this.#cancel.abort(reason), graceMs)
  }
}
