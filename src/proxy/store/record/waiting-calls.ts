/** Calls that wait for the writer, and the groups that it takes them in: a group is one transaction. */
import { FairQueue } from '../../../base/fair-queue.ts'
import type { ThreadCall } from './calls.ts'
import type { SentTurn } from './sent-turn.ts'
import { inStretches, workOf } from './stretches.ts'
import type { WriteMethods } from './write-methods.ts'

/** A group has no more operations: it bounds the time for which the first one waits for the last. */
export const MAX_GROUP = 512

/** Nor more of this, unless it has one operation; see {@link workOf}. */
const MAX_GROUP_WORK = 4096

/** What is more work is long: some milliseconds. */
const SHORT_WORK = 256

interface WaitingWrite {
  readonly call: ThreadCall<WriteMethods>
  readonly work: number
}

/**
 * Sessions take turns. What is short does not wait for what is long: a group takes one long operation at most, behind the
 * short ones.
 */
export class WaitingCalls {
  /** By session: the operations of one stay in their order. */
  readonly #waiting = new FairQueue<WaitingWrite>()

  get size(): number {
    return this.#waiting.size
  }

  push(call: ThreadCall<WriteMethods>): void {
    for (const each of inStretches(call)) {
      this.#waiting.push(sessionOf(call), { call: each, work: workOf(each) })
    }
  }

  /** @param isAlone whether a call shares its group with no other */
  takeGroup(isAlone: (call: ThreadCall<WriteMethods>) => boolean = () => false): ThreadCall<WriteMethods>[] {
    const isShort = ({ call, work }: WaitingWrite) => work <= SHORT_WORK && !isAlone(call)
    const group: ThreadCall<WriteMethods>[] = []
    // Whom this group passes by is the first of the next one.
    const first = this.#waiting.next
    if (first !== undefined && isAlone(first.call)) return [this.#waiting.shift()!.call]
    let work = 0
    while (group.length < MAX_GROUP && work < MAX_GROUP_WORK) {
      const short = this.#waiting.shift(isShort)
      if (short === undefined) break
      group.push(short.call)
      work += short.work
    }
    const last = this.#waiting.next
    if (last !== undefined && group.length < MAX_GROUP && !isAlone(last.call))
      group.push(this.#waiting.shift()!.call)
    return group
  }
}

/** Of all but `sweep` and `tryCommit`: the first argument, or in it. */
function sessionOf({ args: [first] }: ThreadCall<WriteMethods>): string {
  return typeof first === 'string' ? first : ((first as Partial<SentTurn> | undefined)?.sessionId ?? '')
}
