/**
 * Maintains one connection: dials, and dials again after each disconnection, until aborted. The delays have an
 * exponential limit with full jitter (each is drawn between 0 and the limit), so that the workers of a restarted proxy
 * do not reconnect at the same time.
 */
import type { Clock } from '../base/clock.ts'

const FIRST_LIMIT_MS = 1_000
const LAST_LIMIT_MS = 60_000
/** A connection that lasted this long counts as stable: the limit of the next delay is the first one again. */
const STABLE_MS = 10_000

/** The connection to maintain. */
interface KeepConnectedOptions {
  /**
   * Dials, and resolves after the disconnection with the duration of the connection in milliseconds; 0: it was not
   * established. Never rejects.
   */
  connect(): Promise<number>
  clock: Clock
  /** Returns a random number from 0 to 1, as `Math.random` does. */
  random(): number
  signal: AbortSignal
}

/** Maintains a connection. Resolves when `signal` has aborted and the current connection is closed. */
export async function keepConnected({ connect, clock, random, signal }: KeepConnectedOptions): Promise<void> {
  let failures = 0
  while (!signal.aborted) {
    const connectedMs = await connect()
    if (connectedMs >= STABLE_MS) failures = 0
    await wait(random() * computeBackoffLimitMs(failures), clock, signal)
    failures += 1
  }
}

/** Returns the limit of the delay after this number of consecutive failures. */
export function computeBackoffLimitMs(failures: number): number {
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
