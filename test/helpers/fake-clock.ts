import type { Clock } from '../../src/base/clock.ts'

/** A clock that advances only when a test moves it; tasks run in order of their time. */
export class FakeClock implements Clock {
  #nowMs = 0
  #tasks: { atMs: number; task: () => void }[] = []

  nowMs(): number {
    return this.#nowMs
  }

  after(delayMs: number, task: () => void): () => void {
    const entry = { atMs: this.#nowMs + delayMs, task }
    this.#tasks.push(entry)
    return () => {
      this.#tasks = this.#tasks.filter((other) => other !== entry)
    }
  }

  /** The number of scheduled tasks. */
  get pending(): number {
    return this.#tasks.length
  }

  advance(byMs: number): void {
    const untilMs = this.#nowMs + byMs
    for (;;) {
      const next = this.#tasks.filter((entry) => entry.atMs <= untilMs).sort((a, b) => a.atMs - b.atMs)[0]
      if (next === undefined) break
      this.#tasks = this.#tasks.filter((other) => other !== next)
      this.#nowMs = next.atMs
      next.task()
    }
    this.#nowMs = untilMs
  }

  /**
   * Advances to the time of the next task, and runs it.
   * @returns false if there is none
   */
  advanceToNext(): boolean {
    const [next] = this.#tasks.toSorted((a, b) => a.atMs - b.atMs)
    if (next === undefined) return false
    this.#tasks = this.#tasks.filter((other) => other !== next)
    this.#nowMs = Math.max(this.#nowMs, next.atMs)
    next.task()
    return true
  }

  /** Simulates a process that was busy for this time: every due task runs late, once. */
  stall(forMs: number): void {
    this.#nowMs += forMs
    const due = this.#tasks.filter((entry) => entry.atMs <= this.#nowMs).sort((a, b) => a.atMs - b.atMs)
    this.#tasks = this.#tasks.filter((entry) => !due.includes(entry))
    for (const { task } of due) task()
  }
}
