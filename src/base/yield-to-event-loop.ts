import { setImmediate as nextIteration } from 'node:timers/promises'

let last: Promise<void> = Promise.resolve()

/**
 * Yields between two time slices of long work: resolves in a later iteration of the event loop, so that other tasks can
 * run. Concurrent callers resume one per iteration, in the order of their calls, so that an iteration lasts one time
 * slice, however many callers there are.
 */
export function yieldToEventLoop(): Promise<void> {
  last = last.then(() => nextIteration())
  return last
}
