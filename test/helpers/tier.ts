/**
 * Whether this is the long run of `.ci/run --full`, or of a manual `FULL=1`: all combinations, and more random cases.
 * The other run is for every change, and covers each pair of conditions at least once.
 */
export const IS_FULL = process.env.FULL === '1'

/** Seconds for random cases with successive seeds; 0: one seed. */
export const RANDOM_SECONDS = Number(process.env.RANDOM_SECONDS ?? 0)

/** Value of `skip` for tests of the long run. */
export const ONLY_FULL = IS_FULL ? false : 'runs with FULL=1'

/** Returns the number of random cases of a property: all of them under FULL, otherwise a quarter. */
export function limitRuns(all: number): number {
  return IS_FULL ? all : Math.ceil(all / 4)
}
