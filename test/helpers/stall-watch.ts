import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'

/** No call may hold up all others for longer, in CPU time: a busy machine fails nothing. */
export const STALL_LIMIT_MS = 200

const LOOK_MS = 10
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
  let last = process.threadCpuUsage()
  const look = () => {
    const { user, system } = process.threadCpuUsage(last)
    const ms = (user + system) / 1000
    worstMs = Math.max(worstMs, ms)
    worstOfInputMs = Math.max(worstOfInputMs, ms)
    last = process.threadCpuUsage()
  }
  const looking = setInterval(look, LOOK_MS)
  t.teardown(() => clearInterval(looking))
  return {
    worstMs: async () => {
      await sleep(2 * LOOK_MS)
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
