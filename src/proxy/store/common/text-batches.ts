/**
 * A request of thousands of new messages is stored in batches, between which the writer serves other sessions. Its turn
 * follows them, uses what they have stored, and stores the rest itself.
 */
import type { ThreadCommand } from './calls.ts'
import type { ListName, TextBatch, TextListMessage, TextListNode, TurnMessage } from './turn-message.ts'
import type { WriteMethods } from './write-methods.ts'

/** The unit of a group's work: one text, or 4 KiB of text; about 12 µs each. */
const BYTES_OF_WORK = 4096
/** The maximum work of one batch. */
const MAX_BATCH_WORK = 2048

/** The id of a command whose reply is ignored. */
const NO_REPLY = 0

/**
 * A list that is stored in batches. They end before the last text, which the turn stores itself: in a prompt it has a
 * separate node below the others.
 */
class TextBatches implements TextListMessage {
  readonly #full: TextListMessage
  /** The start of each batch, and the end of the last one. */
  readonly #indices: number[]
  /** The ends of the stored batches, in order. */
  readonly #ends: TextListNode[] = []

  constructor(full: TextListMessage) {
    this.#full = full
    this.#indices = computeBatchBoundaries(full.texts.slice(0, -1))
  }

  get base(): TextListNode {
    return this.#ends.at(-1) ?? this.#full.base
  }

  get texts(): readonly string[] {
    return this.#full.texts.slice(this.#indices[this.#ends.length])
  }

  listBatches(turn: Pick<TurnMessage, 'sessionId' | 'epoch'>, list: ListName): TextBatch[] {
    return this.#indices.slice(1).map((end, order) => this.#stretch({ ...turn, list }, order, end))
  }

  #stretch(of: Pick<TextBatch, 'sessionId' | 'epoch' | 'list'>, order: number, end: number): TextBatch {
    const ends = this.#ends
    const texts = this.#full.texts.slice(this.#indices[order], end)
    const before = () => (order === 0 ? this.#full.base : ends[order - 1])
    return {
      ...of,
      work: computeTextWork(texts),
      get texts() {
        const base = before()
        return base && { base, texts }
      },
      onWritten: (recorded) => ends.splice(order, ends.length, recorded),
      onUndone: () => ends.splice(order),
    }
  }
}

/** Returns the commands that replace a command: batches of it if it is long, and the command after them. */
export function splitCommand(call: ThreadCommand<WriteMethods>): ThreadCommand<WriteMethods>[] {
  if (!carriesTexts(call)) return [call]
  const [turn, ...others] = call.args as [TurnMessage, ...unknown[]]
  const before: ThreadCommand<WriteMethods>[] = []
  const lists: Partial<Record<ListName, TextListMessage>> = {}
  for (const list of ['messages', 'prompt'] as const) {
    if (computeTextWork(turn[list].texts) <= MAX_BATCH_WORK) continue
    const stretched = new TextBatches(turn[list])
    lists[list] = stretched
    const { sessionId, epoch } = turn
    const chunks = stretched.listBatches({ sessionId, epoch }, list)
    for (const chunk of chunks) before.push({ id: NO_REPLY, method: 'putTextBatch', args: [chunk] })
  }
  return [...before, { ...call, args: [{ ...turn, ...lists }, ...others] }]
}

/** Returns the work of a command's new texts; ids and logprobs cost hardly anything. */
export function getWork(call: ThreadCommand<WriteMethods>): number {
  if (call.method === 'putTextBatch') return (call.args[0] as TextBatch).work
  if (!carriesTexts(call)) return 1
  const { messages, prompt } = call.args[0] as TurnMessage
  return computeTextWork(messages.texts) + computeTextWork(prompt.texts)
}

function carriesTexts({ method }: ThreadCommand<WriteMethods>): boolean {
  return method === 'openTurn' || method === 'recordTurn'
}

function computeTextWork(texts: readonly string[]): number {
  let bytes = 0
  for (const text of texts) bytes += text.length
  return texts.length + bytes / BYTES_OF_WORK
}

function computeBatchBoundaries(texts: readonly string[]): number[] {
  const indices = [0]
  let work = 0
  for (const [index, text] of texts.entries()) {
    work += computeTextWork([text])
    if (work < MAX_BATCH_WORK && index < texts.length - 1) continue
    indices.push(index + 1)
    work = 0
  }
  return indices
}
