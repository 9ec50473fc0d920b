/** Updates the search index in the background, at low priority. */
import { ProxyError } from '../../../base/errors.ts'

/** The delay before new turns are indexed; until then a search scans them. */
const IDLE_MS = 1_000

/** The delay after a failed step, for instance without a connection or disk space. */
const FAILED_MS = 30_000

/** The pause after a step, as a multiple of its duration: indexing takes at most a fifth of the thread's time. */
const REST = 4

/**
 * Runs steps until the store is closed, without keeping the process alive.
 * @param step indexes some turns, and returns whether more are left
 * @param onFailed called for the first of consecutive failed steps
 */
export function keepIndexing(step: () => Promise<boolean>, onFailed: (error: Error) => void): void {
  let hasFailed = false
  const next = async () => {
    const began = performance.now()
    try {
      const more = await step()
      hasFailed = false
      later(more ? (performance.now() - began) * REST : IDLE_MS)
    } catch (error) {
      // The thread has ended, which the store itself reports.
      if (error instanceof ProxyError && error.code === 'store_failed' && error.cause === undefined) return
      if (!hasFailed) onFailed(error as Error)
      hasFailed = true
      later(FAILED_MS)
    }
  }
  const later = (ms: number) => setTimeout(next, ms).unref()
  later(IDLE_MS)
}
