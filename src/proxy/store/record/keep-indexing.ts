/** Has the index of the search follow the record, with what is left of a processor. */
import { ProxyError } from '../../../base/errors.ts'

/** How long new turns wait; a search looks at each of them. */
const IDLE_MS = 1_000

/** How long it rests after a step that failed, as without a connection or room on the disk. */
const FAILED_MS = 30_000

/** Of the time that a step takes, how much passes until the next: indexing takes a fifth of the thread at most. */
const REST = 4

/**
 * Goes on until the store is closed, and holds no process up.
 * @param step puts some turns into the index. @returns whether more are left
 * @param onFailed called with the first of steps that fail one after the other
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
      // The thread has ended: others tell of that.
      if (error instanceof ProxyError && error.code === 'store_failed' && error.cause === undefined) return
      if (!hasFailed) onFailed(error as Error)
      hasFailed = true
      later(FAILED_MS)
    }
  }
  const later = (ms: number) => setTimeout(next, ms).unref()
  later(IDLE_MS)
}
