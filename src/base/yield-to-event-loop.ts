import { setImmediate as nextTurn } from 'node:timers/promises'

let last: Promise<void> = Promise.resolve()

/**
 * Between two stretches of long work: resolves in a later turn of the event loop, so that others have theirs. Of several
 * works one goes on in each turn, in the order in which they asked: a turn is as long as one stretch, however many there are.
 */
export function yieldToEventLoop(): Promise<void> {
  last = last.then(() => nextTurn())
  return last
}
