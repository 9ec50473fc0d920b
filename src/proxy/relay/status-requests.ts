/** Status requests that wait for the response of one worker. */
import type { Clock } from '../../base/clock.ts'

/**
 * How long a status request waits. A worker waits less long for its engines, including a health check that is already
 * running.
 */
const RESPONSE_TIMEOUT_MS = 12_000

/** The pending status requests to one worker. */
export class StatusRequests {
  readonly #clock: Clock
  readonly #waiting = new Map<number, () => void>()
  #lastSeq = 0

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /**
   * Sends a status request. Resolves when the status arrives, the request times out, or {@link giveUp} is called.
   * @param send sends the frame with the sequence number of the request
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

  /** Resolves the request with this sequence number, if it is pending. */
  settle(seq: number): void {
    const resolve = this.#waiting.get(seq)
    this.#waiting.delete(seq)
    resolve?.()
  }

  /** Resolves all pending requests, because the worker is lost. */
  giveUp(): void {
    for (const seq of [...this.#waiting.keys()]) this.settle(seq)
  }
}
