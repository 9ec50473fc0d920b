/** When to look again for sessions that have ended. */
import type { Activity } from '../state/activity.ts'

/** Leases run out, and another proxy's sessions end, without a word. */
const LOOK_AGAIN_MS = 1_000

/** Where many end at once, they are looked for once. */
const PAUSE_MS = 50

/**
 * @param untilMs of the process's steady clock: to look once more then
 * @returns `come` resolves when it is worth a look, or the signal is aborted
 */
export function nextEnd(
  activity: Activity,
  untilMs: number,
  signal: AbortSignal,
): { come: Promise<void> } & Disposable {
  const { promise, resolve } = Promise.withResolvers<void>()
  const leftMs = untilMs - performance.now()
  const timer = setTimeout(resolve, Math.max(0, Math.min(LOOK_AGAIN_MS, leftMs)))
  let pause: NodeJS.Timeout | undefined
  const stop = activity.listen(({ type }) => {
    if (type === 'session_ended' || type === 'reward') pause ??= setTimeout(resolve, PAUSE_MS)
  })
  const aborted = () => resolve()
  signal.addEventListener('abort', aborted)
  return {
    come: promise,
    [Symbol.dispose]: () => {
      clearTimeout(timer)
      clearTimeout(pause)
      stop()
      signal.removeEventListener('abort', aborted)
    },
  }
}
