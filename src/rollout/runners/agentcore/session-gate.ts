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
    if (this.#inside >= this.#limit) await this.#turn(signal)
    else this.#inside += 1
    let isInside = true
    return () => {
      if (isInside) this.#leave()
      isInside = false
    }
  }

  async #turn(signal: AbortSignal): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    const giveUp = () => {
      this.#waiting.delete(resolve)
      reject(signal.reason)
    }
    signal.addEventListener('abort', giveUp, { once: true })
    this.#waiting.add(resolve)
    try {
      await promise
    } finally {
      signal.removeEventListener('abort', giveUp)
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
