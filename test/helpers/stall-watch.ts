import { setImmediate as nextTurn, setTimeout as sleep } from 'node:timers/promises'
import type { Test } from 'tap'

/** No call may hold up all others for longer, in CPU time: a busy machine fails nothing. */
export const STALL_LIMIT_MS = 200

const LOOK_MS = 10

export interface StallWatch {
  /** The CPU time, in milliseconds, that the event loop spent at once at the worst, since the watch began. */
  worstMs(): Promise<number>
}

/**
 * Watches the event loop of this process, which has the test's own work in it as well: make what is large before. Between
 * two looks the loop's thread has used so much CPU time; more than the time between them means that it was not able to look.
 */
export async function watchStalls(t: Test): Promise<StallWatch> {
  await nextTurn()
  let worstMs = 0
  let last = process.threadCpuUsage()
  const look = () => {
    const { user, system } = process.threadCpuUsage(last)
    worstMs = Math.max(worstMs, (user + system) / 1000)
    last = process.threadCpuUsage()
  }
  const looking = setInterval(look, LOOK_MS)
  t.teardown(() => clearInterval(looking))
  return {
    worstMs: async () => {
      await sleep(2 * LOOK_MS)
      return worstMs
    },
  }
}
