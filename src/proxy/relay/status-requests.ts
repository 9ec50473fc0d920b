/** The proxy's questions to one worker how its engines are, until they are answered. */
import type { Clock } from '../../base/clock.ts'

/** Longer than a worker gives its engines for an answer, one check that runs already included. */
const ANSWER_TIMEOUT_MS = 12_000

export class StatusRequests {
  readonly #clock: Clock
  readonly #waiting = new Map<number, () => void>()
  #lastSeq = 0

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** @param send gets the number of the question. Resolves when it is answered, or will not be. */
  ask(send: (seq: number) => void): Promise<void> {
    this.#lastSeq += 1
    const seq = this.#lastSeq
    return new Promise((resolve) => {
      const cancel = this.#clock.after(ANSWER_TIMEOUT_MS, () => this.answered(seq))
      this.#waiting.set(seq, () => {
        cancel()
        resolve()
      })
      send(seq)
    })
  }

  answered(seq: number): void {
    const resolve = this.#waiting.get(seq)
    this.#waiting.delete(seq)
    resolve?.()
  }

  /** The worker is gone: none will be answered. */
  giveUp(): void {
    for (const seq of [...this.#waiting.keys()]) this.answered(seq)
  }
}
