import { setTimeout as sleep } from 'node:timers/promises'

const LONGEST_MS = 60_000

/**
 * Returns the wait before a retry. It doubles with each failure, and half of it is random, so that rollouts that failed
 * together do not retry together.
 * @param failures so far, at least 1
 * @param random as Math.random
 */
export function computeBackoffMs(baseMs: number, failures: number, random: () => number): number {
  const limitMs = Math.min(LONGEST_MS, baseMs * 2 ** (failures - 1))
  return (limitMs * (1 + random())) / 2
}

/** Waits. @throws `signal.reason` after an abort */
export async function pause(delayMs: number, signal: AbortSignal): Promise<void> {
  try {
    await sleep(delayMs, undefined, { signal })
  } catch {
    throw signal.reason
  }
}
