/**
 * Keeps one connection: dials, and dials again after each end, until told to stop. Waits are exponential with full
 * jitter (each is drawn between 0 and the limit), so that the workers of a restarted proxy do not come back at once.
 */
import type { Clock } from '../base/clock.ts'

const FIRST_LIMIT_MS = 1_000
const LAST_LIMIT_MS = 60_000
/** A connection that held this long was a good one: the next wait starts from the first limit. */
const STABLE_MS = 10_000

interface KeepConnectedOptions {
  /** Dials, and resolves with how long the connection held when it is gone (0: there was none). Never rejects. */
  connection(): Promise<number>
  clock: Clock
  /** As Math.random. */
  random(): number
  signal: AbortSignal
}

/** Resolves when `signal` has aborted and the connection of that moment is gone. */
export async function keepConnected({
  connection,
  clock,
  random,
  signal,
}: KeepConnectedOptions): Promise<void> {
  let failures = 0
  while (!signal.aborted) {
    const heldMs = await connection()
    if (heldMs >= STABLE_MS) failures = 0
    await wait(random() * backoffLimitMs(failures), clock, signal)
    failures += 1
  }
}

/** The longest wait after so many failures in a row. */
export function backoffLimitMs(failures: number): number {
  return Math.min(LAST_LIMIT_MS, FIRST_LIMIT_MS * 2 ** failures)
}

function wait(delayMs: number, clock: Clock, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) return resolve()
    const onAbort = () => {
      cancel()
      resolve()
    }
    const cancel = clock.after(delayMs, () => {
      signal.removeEventListener('abort', onAbort)
      resolve()
    })
    signal.addEventListener('abort', onAbort, { once: true })
  })
}
