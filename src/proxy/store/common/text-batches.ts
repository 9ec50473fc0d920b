/**
 * The storage of large requests. A request of thousands of new messages is stored in batches, between which the writer
 * serves other sessions. The command of the turn follows the batches, refers to what they have stored, and stores the
 * rest.
 */
import type { TurnDetails } from '../port/turn-store.ts'
import type { ThreadCommand } from './calls.ts'
import type {
  OutcomeMessage,
  TextBatch,
  TextListMessage,
  TextListName,
  TextListNode,
  TurnMessage,
} from './turn-message.ts'
import type { WriteMethods } from './write-methods.ts'

/** The unit of work is one text, or this many characters of text or bytes of data; each takes about 12 µs. */
const CHARS_PER_WORK = 4096
/** The work above which a list is stored in batches, and at which a batch ends. */
const MAX_BATCH_WORK = 2048

/** The id of a command whose reply is ignored. */
const NO_REPLY = 0

/**
 * A list that is stored in batches. They end before the last text, which the turn stores itself: in a prompt it has a
 * separate node below the others.
 */
class TextBatches implements TextListMessage {
  readonly #full: TextListMessage
  /** The positions at which batches begin and end: each ends where the next one begins. */
  readonly #indices: number[]
  /** The nodes of the stored batches, in order. */
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

  listBatches(turn: Pick<TurnMessage, 'sessionId' | 'epoch'>, list: TextListName): TextBatch[] {
    return this.#indices.slice(1).map((end, order) => this.#createBatch({ ...turn, list }, order, end))
  }

  #createBatch(of: Pick<TextBatch, 'sessionId' | 'epoch' | 'list'>, order: number, end: number): TextBatch {
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

/** Returns the commands that replace a command: if its texts are long, batches of them, and then the command itself. */
export function splitCommand(call: ThreadCommand<WriteMethods>): ThreadCommand<WriteMethods>[] {
  if (!carriesTexts(call)) return [call]
  const [turn, ...others] = call.args as [TurnMessage, ...unknown[]]
  const before: ThreadCommand<WriteMethods>[] = []
  const lists: Partial<Record<TextListName, TextListMessage>> = {}
  for (const list of ['messages', 'prompt'] as const) {
    if (computeTextWork(turn[list].texts) <= MAX_BATCH_WORK) continue
    const batches = new TextBatches(turn[list])
    lists[list] = batches
    const { sessionId, epoch } = turn
    for (const batch of batches.listBatches({ sessionId, epoch }, list))
      before.push({ id: NO_REPLY, method: 'putTextBatch', args: [batch] })
  }
  return [...before, { ...call, args: [{ ...turn, ...lists }, ...others] }]
}

/**
 * Returns the work of a command. Token data counts, because a response may have 100 MiB of it, and PostgreSQL's driver
 * writes those of a group as one string.
 */
export function getWork({ method, args }: ThreadCommand<WriteMethods>): number {
  switch (method) {
    case 'putTextBatch':
      return (args[0] as TextBatch).work
    case 'openTurn':
      return computeRequestWork(args[0] as TurnMessage)
    case 'recordTurn':
      return computeRequestWork(args[0] as TurnMessage) + computeOutcomeWork(args[1] as OutcomeMessage)
    case 'closeTurn':
      return 1 + computeOutcomeWork(args[0] as OutcomeMessage)
    case 'addDetails':
      return 1 + (args[1] as TurnDetails[]).reduce((work, { details }) => work + computeDataWork(details), 0)
    default:
      return 1
  }
}

function computeRequestWork({ messages, prompt }: TurnMessage): number {
  return computeTextWork(messages.texts) + computeTextWork(prompt.texts)
}

function computeOutcomeWork(outcome: OutcomeMessage): number {
  const { prompt, completionTokenIds, completionLogprobs, details = [] } = outcome
  const packed = [prompt?.rest, completionTokenIds, completionLogprobs].map((body) => ({ body }))
  return computeDataWork([...packed, ...details])
}

function computeDataWork(data: readonly { body: { byteLength: number } | undefined }[]): number {
  return data.reduce((bytes, { body }) => bytes + (body?.byteLength ?? 0), 0) / CHARS_PER_WORK
}

function carriesTexts({ method }: ThreadCommand<WriteMethods>): boolean {
  return method === 'openTurn' || method === 'recordTurn'
}

function computeTextWork(texts: readonly string[]): number {
  let chars = 0
  for (const text of texts) chars += text.length
  return texts.length + chars / CHARS_PER_WORK
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
