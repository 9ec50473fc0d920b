/**
 * The queue of the commands for the writer. They are removed in groups, each of which is committed as one transaction.
 */
import { FairQueue } from '../../../base/fair-queue.ts'
import type { ThreadCommand } from './calls.ts'
import { getWork, splitCommand } from './text-batches.ts'
import type { TurnMessage } from './turn-message.ts'
import type { WriteMethods } from './write-methods.ts'

/** The maximum number of operations in a group, which bounds the time that the first one waits for the last. */
export const MAX_GROUP = 512

/** The work at which no further short operation is added to a group; see {@link getWork}. */
const MAX_GROUP_WORK = 4096

/** Operations with more work count as long: they take several milliseconds. */
const SHORT_WORK = 256

interface QueueEntry {
  readonly call: ThreadCommand<WriteMethods>
  readonly work: number
}

/**
 * A queue that serves sessions in rotation. Short operations do not wait for long ones: a group contains at most one
 * long operation, after the short ones.
 */
export class PendingCommands {
  /** The operations by session; those of one session remain in order. */
  readonly #waiting = new FairQueue<QueueEntry>()

  get size(): number {
    return this.#waiting.size
  }

  push(call: ThreadCommand<WriteMethods>): void {
    for (const each of splitCommand(call)) {
      this.#waiting.push(getSession(call), { call: each, work: getWork(each) })
    }
  }

  /** Removes and returns a group. @param isAlone whether a command must form a group alone */
  takeGroup(
    isAlone: (call: ThreadCommand<WriteMethods>) => boolean = () => false,
  ): ThreadCommand<WriteMethods>[] {
    const isShort = ({ call, work }: QueueEntry) => work <= SHORT_WORK && !isAlone(call)
    const group: ThreadCommand<WriteMethods>[] = []
    // `shift` leaves skipped commands in their position, so that a command that must be alone is eventually the first.
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

/**
 * Returns the session id of a command: its first argument, or a field of that. For a command of no session the result
 * is arbitrary, and only affects the rotation.
 */
function getSession({ args: [first] }: ThreadCommand<WriteMethods>): string {
  return typeof first === 'string' ? first : ((first as Partial<TurnMessage> | undefined)?.sessionId ?? '')
}
