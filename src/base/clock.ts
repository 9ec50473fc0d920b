/** The port for time, so that tests can control it. */
export interface Clock {
  /** Returns milliseconds of a monotonic clock; only differences are meaningful. */
  nowMs(): number
  /**
   * Runs `task` once after `delayMs`. The timer alone does not keep the process alive.
   * @returns a function that cancels the timer
   */
  after(delayMs: number, task: () => void): () => void
}

export const systemClock: Clock = {
  nowMs: () => performance.now(),
  after(delayMs, task) {
    const timer = setTimeout(task, delayMs).unref()
    return () => clearTimeout(timer)
  },
}
