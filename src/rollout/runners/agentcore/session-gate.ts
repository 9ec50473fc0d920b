import { waitInQueue } from '../../wait-in-queue.ts'

/** At most so many sessions at a time; whoever came first goes first. */
export class SessionGate {
  readonly #limit: number
  readonly #waiting = new Set<() => void>()
  #inside = 0

  constructor(limit: number) {
    this.#limit = limit
  }

  /** Sessions that have a place. */
  get inside(): number {
    return this.#inside
  }

  get waiting(): number {
    return this.#waiting.size
  }

  /** @returns gives the place back, once however often it is called @throws `signal.reason` */
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

  /** The place goes to the next in line, if there is one. */
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
