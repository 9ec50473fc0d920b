const MINUTE_MS = 60_000

/** The books of a batch. */
export class RunCounts {
  readonly #nowMs: () => number
  #started = 0
  #throttled = 0
  #done = 0
  #failed = 0
  /** When the sessions of the last minute ended. */
  #lastMinute: number[] = []

  constructor(nowMs: () => number = () => performance.now()) {
    this.#nowMs = nowMs
  }

  started(): void {
    this.#started += 1
  }

  throttled(): void {
    this.#throttled += 1
  }

  ended(isDone: boolean): void {
    if (isDone) this.#done += 1
    else this.#failed += 1
    this.#lastMinute.push(this.#nowMs())
  }

  describe({ running, waiting }: { running: number; waiting: number }): string {
    const since = this.#nowMs() - MINUTE_MS
    this.#lastMinute = this.#lastMinute.filter((atMs) => atMs > since)
    const sessions = `${this.#started} started, ${running} running, ${waiting} waiting, ${this.#done} done`
    const perMinute = `${this.#lastMinute.length} in the last minute`
    return `AgentCore: ${sessions}, ${this.#failed} failed, ${this.#throttled} calls throttled, ${perMinute}`
  }
}
