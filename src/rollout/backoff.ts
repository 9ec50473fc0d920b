import { setTimeout as sleep } from 'node:timers/promises'

const MAX_DELAY_MS = 60_000

/**
 * Returns the wait before a retry. It doubles with each failure, and half of it is random, so that rollouts that failed
 * together do not retry together.
 * @param failures number of failures so far, at least 1
 * @param random returns a number from 0 to 1, as `Math.random` does
 */
export function computeBackoffMs(baseMs: number, failures: number, random: () => number): number {
  const limitMs = Math.min(MAX_DELAY_MS, baseMs * 2 ** (failures - 1))
  return (limitMs * (1 + random())) / 2
}

/** Waits for `delayMs`. @throws `signal.reason` after an abort */
export async function pause(delayMs: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(delayMs, undefined, { signal })
  } catch {
    throw signal.reason
  }
}
