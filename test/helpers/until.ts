import { setTimeout as sleep } from 'node:timers/promises'

/** Longer than every legitimate delay of a test, and below the time limit of a test file. */
const LIMIT_MS = 60_000
const POLL_MS = 5

type Empty = undefined | null | false | 0 | ''

/**
 * Polls until a condition holds.
 * @returns the first value of the probe that is not empty
 * @throws Error after a minute, with the source of the probe, so that a test never hangs
 */
export async function until<T>(probe: () => T | Promise<T>): Promise<Exclude<T, Empty>> {
  const endMs = performance.now() + LIMIT_MS
  for (;;) {
    const value = await probe()
    if (value) return value as Exclude<T, Empty>
    if (performance.now() > endMs) throw new Error(`did not hold within a minute: ${probe}`)
    await sleep(POLL_MS)
  }
}
