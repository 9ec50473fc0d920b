/** Time as a port, so that tests drive it by hand. */
export interface Clock {
  /** Milliseconds on a clock that never goes back; only differences mean something. */
  nowMs(): number
  /** Runs `task` once after `delayMs`. The wait alone does not keep the process alive. @returns cancels it */
  after(delayMs: number, task: () => void): () => void
}

export const systemClock: Clock = {
  nowMs: () => performance.now(),
  after(delayMs, task) {
    const timer = setTimeout(task, delayMs).unref()
    return () => clearTimeout(timer)
  },
}
