/** Calls that wait for the writer, and the groups that it takes them in: a group is one transaction. */
import { FairQueue } from '../../../base/fair-queue.ts'
import type { ThreadCall } from './calls.ts'
import type { SentTurn } from './sent-turn.ts'
import type { WriteMethods } from './write-methods.ts'

/** A group has no more operations: it bounds the time for which the first one waits for the last. */
export const MAX_GROUP = 512

/** Nor more of this, unless it has one operation: a text counts as one, and so do 4 KiB of it; some 12 µs each. */
const MAX_GROUP_WORK = 4096
const BYTES_OF_WORK = 4096

export class WaitingCalls {
  /** By session: the operations of one stay in their order. */
  readonly #waiting = new FairQueue<ThreadCall<WriteMethods>>()

  get size(): number {
    return this.#waiting.size
  }

  push(call: ThreadCall<WriteMethods>): void {
    this.#waiting.push(sessionOf(call), call)
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

/** Of new texts; ids and logprobs cost next to nothing. */
function workOf({ method, args }: ThreadCall<WriteMethods>): number {
  if (method !== 'openTurn' && method !== 'recordTurn') return 1
  const { messages, prompt } = args[0] as SentTurn
  let bytes = 0
  for (const text of messages.texts) bytes += text.length
  for (const text of prompt.texts) bytes += text.length
  return messages.texts.length + prompt.texts.length + bytes / BYTES_OF_WORK
}
