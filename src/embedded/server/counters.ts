/** What the server has done so far, for tests and benchmarks. Not on the wire. */
export interface EngineCounters {
  /** Completions under way. */
  running: number
  /** Completions that were sampled to their end. */
  served: number
  /** Completions that were cancelled because their client went away. */
  aborted: number
  /** Completions that the engine refused or failed. */
  failed: number
}
