/** The pending status requests of the proxy to one worker. */
import type { Clock } from '../../base/clock.ts'

/** Longer than a worker waits for its engines, including a check that is already running. */
const RESPONSE_TIMEOUT_MS = 12_000

export class StatusRequests {
  readonly #clock: Clock
  readonly #waiting = new Map<number, () => void>()
  #lastSeq = 0

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /**
   * Sends a status request. Resolves when the status arrives, or will not arrive.
   * @param send receives the number of the request
   */
  send(send: (seq: number) => void): Promise<void> {
    this.#lastSeq += 1
    const seq = this.#lastSeq
    return new Promise((resolve) => {
      const cancel = this.#clock.after(RESPONSE_TIMEOUT_MS, () => this.settle(seq))
      this.#waiting.set(seq, () => {
        cancel()
        resolve()
      })
      send(seq)
    })
  }

  settle(seq: number): void {
    const resolve = this.#waiting.get(seq)
    this.#waiting.delete(seq)
    resolve?.()
  }

  /** Resolves all pending requests of a worker that is lost. */
  giveUp(): void {
    for (const seq of [...this.#waiting.keys()]) this.settle(seq)
  }
}
