import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'
import { watchLoop } from './loop-cpu.ts'
import { STALL_LIMIT_MS } from './stall-limit.ts'

export { STALL_LIMIT_MS }

/** More than the time between two looks. */
const SETTLED_MS = 20
/** Of one input before it is at fault. */
const TRIES = 3

export interface StallWatch {
  /** The CPU time, in milliseconds, that the event loop spent at once at the worst, since the watch began. */
  worstMs(): Promise<number>
  /**
   * Does what one input leads to, and again if the loop stood still meanwhile: what the input causes comes each time, what
   * the collector of garbage or the compiler needed once does not.
   * @throws Error if it came each time
   */
  withoutStall(work: () => Promise<void>): Promise<void>
}

/**
 * Watches the event loop of this process, which has the test's own work in it as well: make what is large before. Between
 * two looks the loop's thread has used so much CPU time; more than the time between them means that it was not able to look.
 */
export async function watchStalls(t: Test): Promise<StallWatch> {
  await nextTurn()
  let worstMs = 0
  let worstOfInputMs = 0
  const { look, stop } = watchLoop((ms) => {
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
      for (let tried = 1; ; tried += 1) {
        look()
        worstOfInputMs = 0
        await work()
        look()
        if (worstOfInputMs < STALL_LIMIT_MS) return
        if (tried === TRIES)
          throw new Error(`the event loop stood still for ${Math.round(worstOfInputMs)} ms of CPU time`)
      }
    },
  }
}
