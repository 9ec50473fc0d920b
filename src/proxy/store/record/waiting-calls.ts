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

export class WaitingCalls {
  /** By session: the operations of one stay in their order. */
  readonly #waiting = new FairQueue<ThreadCall<WriteMethods>>()

  get size(): number {
    return this.#waiting.size
  }

  push(call: ThreadCall<WriteMethods>): void {
    for (const each of inStretches(call)) this.#waiting.push(sessionOf(call), each)
  }

  /** @param isAlone whether a call shares its group with no other */
  takeGroup(isAlone: (call: ThreadCall<WriteMethods>) => boolean = () => false): ThreadCall<WriteMethods>[] {
    const group: ThreadCall<WriteMethods>[] = []
    let work = 0
    for (let call = this.#waiting.next; call !== undefined; call = this.#waiting.next) {
      work += workOf(call)
      const alone = isAlone(call)
      if (group.length === MAX_GROUP || (group.length > 0 && (alone || work > MAX_GROUP_WORK))) break
      group.push(call)
      this.#waiting.shift()
      if (alone) break
    }
    return group
  }
}

/** Of all but `sweep` and `tryCommit`: the first argument, or in it. */
function sessionOf({ args: [first] }: ThreadCall<WriteMethods>): string {
  return typeof first === 'string' ? first : ((first as Partial<SentTurn> | undefined)?.sessionId ?? '')
}
