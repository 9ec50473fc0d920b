/**
 * How work grows with its input, told in a way that neither a busy machine nor a cache changes. One doubling shows little: a
 * step from one cache to the next, or to memory of its own for large values, costs as much again there. Over five doublings a
 * linear reader takes 32 times as long, and twice or three times that where it meets such steps; a quadratic one 1,024 times.
 */

/**
 * On average over all doublings: 243 times as long for 32 times the input. Linear readers come to 2.0 to 2.4, and to 2.8 where
 * V8 keeps an object of many keys; quadratic ones to 4.
 */
export const ALLOWED_PER_DOUBLING = 3
const DOUBLINGS = 5

/** The shortest of so many runs counts, on the smallest input and on the largest: whatever else there is makes a run longer. */
const LEAST_RUNS = 20
const MOST_RUNS = 3
/** One that takes less is taken for this long: too short to be told apart. */
const LEAST_MS = 0.02
/** What seems to grow too fast is measured anew: only what does so each time has failed. */
const ATTEMPTS = 4
const CPU_STEP_MS = 4

export interface Growth {
  /** For the smallest input. */
  leastMs: number
  /** For the largest that was tried, which is 32 times as large unless a smaller one took too long already. */
  mostMs: number
  perDoubling: number
}

/** Makes an input of about `n`, which is not measured, and returns the work on it. */
export type MakeWork = (n: number) => () => unknown

/** @param n the size of the smallest input */
export function growthOf(make: MakeWork, n: number): Growth {
  for (let attempt = 1; ; attempt += 1) {
    const growth = measured(make, n)
    if (growth.perDoubling <= ALLOWED_PER_DOUBLING || attempt === ATTEMPTS) return growth
  }
}

function measured(make: MakeWork, n: number): Growth {
  const leastMs = Math.max(
    LEAST_MS,
    shortest(LEAST_RUNS, () => wallMs(make(n))),
  )
  const allowedMs = leastMs * ALLOWED_PER_DOUBLING ** DOUBLINGS
  let mostMs = leastMs
  // Step by step: what is quadratic takes too long before it takes for ever.
  for (let size = 2 * n; size <= n * 2 ** DOUBLINGS && mostMs <= allowedMs; size *= 2)
    mostMs = shortest(MOST_RUNS, () => costMs(make(size)), allowedMs / 2)
  return { leastMs, mostMs, perDoubling: (mostMs / leastMs) ** (1 / DOUBLINGS) }
}

/** @param enoughMs ends with a run that was not longer */
function shortest(runs: number, run: () => number, enoughMs = 0): number {
  let ms = Number.POSITIVE_INFINITY
  for (let done = 0; done < runs && ms > enoughMs; done += 1) ms = Math.min(ms, run())
  return ms
}

function wallMs(work: () => unknown): number {
  const begun = performance.now()
  work()
  return performance.now() - begun
}

/** Without the time in which others ran. CPU time is told in steps of a few milliseconds, and what is short by the clock. */
function costMs(work: () => unknown): number {
  const before = process.threadCpuUsage()
  const ms = wallMs(work)
  const { user, system } = process.threadCpuUsage(before)
  return ms < CPU_STEP_MS ? ms : Math.min(ms, (user + system) / 1_000)
}
