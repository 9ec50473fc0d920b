/**
 * Measures how work grows with its input, independent of the machine's load and of caches. One doubling shows little: a
 * step from one cache to the next, or to separately allocated memory for large values, costs as much again there. Over
 * five doublings a linear reader takes 32 times as long, and two or three times that where it meets such steps; a
 * quadratic one 1,024 times.
 */

/**
 * The average over all doublings: 243 times as long for 32 times the input. Linear readers reach 2.0 to 2.4, and 2.8
 * where V8 stores an object of many keys; quadratic ones 4.
 */
export const ALLOWED_PER_DOUBLING = 3
const DOUBLINGS = 5

/**
 * The shortest of this many runs counts, on the smallest and on the largest input, because other load only lengthens
 * runs.
 */
const LEAST_RUNS = 20
const MOST_RUNS = 3
/** The assumed duration of shorter runs, which the clock cannot resolve. */
const LEAST_MS = 0.02
/** Apparent excessive growth is measured again: only growth in each attempt is a failure. */
const ATTEMPTS = 4
const CPU_STEP_MS = 4

export interface Growth {
  /** The time for the smallest input. */
  leastMs: number
  /**
   * The time for the largest input tried, which is 32 times as large unless a smaller one exceeded the limit already.
   */
  mostMs: number
  perDoubling: number
}

/** Makes an input of about `n`, which is not measured, and returns the work on it. */
export type WorkFactory = (n: number) => () => unknown

/** @param n the size of the smallest input @param attempts how often excessive growth is measured */
export function computeGrowth(make: WorkFactory, n: number, attempts = ATTEMPTS): Growth {
  for (let attempt = 1; ; attempt += 1) {
    const growth = measure(make, n)
    if (growth.perDoubling <= ALLOWED_PER_DOUBLING || attempt === attempts) return growth
  }
}

function measure(make: WorkFactory, n: number): Growth {
  const leastMs = Math.max(
    LEAST_MS,
    shortest(LEAST_RUNS, () => wallMs(make(n))),
  )
  const allowedMs = leastMs * ALLOWED_PER_DOUBLING ** DOUBLINGS
  let mostMs = leastMs
  // In steps, because quadratic work must exceed the limit before it takes minutes.
  for (let size = 2 * n; size <= n * 2 ** DOUBLINGS && mostMs <= allowedMs; size *= 2)
    mostMs = shortest(MOST_RUNS, () => costMs(make(size)), allowedMs / 2)
  return { leastMs, mostMs, perDoubling: (mostMs / leastMs) ** (1 / DOUBLINGS) }
}

/** @param enoughMs a run of at most this duration ends the measurement */
function shortest(runs: number, run: () => number, enoughMs = 0): number {
  let ms = Number.POSITIVE_INFINITY
  for (let done = 0; done < runs && ms > enoughMs; done += 1) ms = Math.min(ms, run())
  return ms
}

function wallMs(work: () => unknown): number {
  const startMs = performance.now()
  work()
  return performance.now() - startMs
}

/**
 * Excludes the time of other processes. CPU time has a resolution of a few milliseconds, so shorter work is measured by
 * the clock.
 */
function costMs(work: () => unknown): number {
  const before = process.threadCpuUsage()
  const ms = wallMs(work)
  const { user, system } = process.threadCpuUsage(before)
  return ms < CPU_STEP_MS ? ms : Math.min(ms, (user + system) / 1_000)
}
