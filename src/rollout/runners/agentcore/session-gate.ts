import { waitInQueue } from '../../wait-in-queue.ts'

/** A limit on concurrent sessions or rollouts, which are admitted in order of arrival. */
export class SessionGate {
  readonly #limit: number
  readonly #waiting = new Set<() => void>()
  #inside = 0

  constructor(limit: number) {
    this.#limit = limit
  }

  /** The number of occupied slots. */
  get inside(): number {
    return this.#inside
  }

  get waiting(): number {
    return this.#waiting.size
  }

  /**
   * Waits for a slot.
   * @returns a function that releases the slot; repeated invocations have no effect
   * @throws `signal.reason`
   */
  async enter(signal: AbortSignal): Promise<() => void> {
    signal.throwIfAborted()
    if (this.#inside >= this.#limit) await waitInQueue(this.#waiting, signal)
    else this.#inside += 1
    let isInside = true
    return () => {
      if (isInside) this.#leave()
      isInside = false
    }
  }

  /** Passes the slot to the next in the queue, if any. */
  #leave(): void {
    const [next] = this.#waiting
    if (next === undefined) {
      this.#inside -= 1
      return
    }
    this.#waiting.delete(next)
    next()
  }
}
