import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { watchLoop } from './loop-cpu.ts'
import { STALL_LIMIT_MS } from './stall-limit.ts'

/** Longer than the measuring interval. */
const SETTLED_MS = 20
/** Attempts with one input before it is considered the cause. */
const ATTEMPTS = 3

interface StallWatch {
  /** The longest CPU time, in milliseconds, for which the event loop was blocked since the watch began. */
  worstMs(): Promise<number>
  /**
   * Runs the work for one input, and repeats it if the loop was blocked: a stall that the input causes recurs, one of
   * the garbage collector or the compiler does not.
   * @throws Error if it recurred each time
   */
  withoutStall(work: () => Promise<void>): Promise<void>
}

/**
 * Watches the event loop of this process, which also runs the test's own work: prepare large data before. CPU time of
 * the loop's thread that exceeds the measuring interval means that the loop was blocked.
 */
export async function watchStalls(t: Test): Promise<StallWatch> {
  await nextTurn()
  let worstMs = 0
  let worstOfInputMs = 0
  const { measure, stop } = watchLoop((ms) => {
    worstMs = Math.max(worstMs, ms)
    worstOfInputMs = Math.max(worstOfInputMs, ms)
  })
  t.teardown(stop)
  return {
    worstMs: async () => {
      await sleep(SETTLED_MS)
      return worstMs
    },
    withoutStall: async (work) => {
      for (let attempt = 1; ; attempt += 1) {
        measure()
        worstOfInputMs = 0
        await work()
        measure()
        if (worstOfInputMs < STALL_LIMIT_MS) return
        if (attempt === ATTEMPTS)
          throw new Error(`the event loop was blocked for ${Math.round(worstOfInputMs)} ms of CPU time`)
      }
    },
  }
}
