/** Why a turn begins a row of its own, in a sentence for who looks at the session. */
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { TurnStep } from '../../store/port/turn-store.ts'
import { parentOnRecord, promptReasonOf } from '../matching/parent-on-record.ts'
import { type EchoNote, echoNoteOf } from '../prompts/echo-note.ts'
import type { Line } from '../roles/line.ts'

/**
 * `conversation` and `sampled_again` are as they should be. The others split what could be one row: the agent changed what it
 * had been given or sent before (`call_edited`, `message_changed`, `answer_missing`, `tools_changed`), the prompt of a call
 * that goes on from a turn does not begin with that turn's tokens (`tokens_differ`), or that turn cannot be gone on from
 * (`not_trainable`, `other_model`).
 */
export const NEW_ROW_REASONS = [
  'conversation',
  'sampled_again',
  'call_edited',
  'message_changed',
  'answer_missing',
  'tools_changed',
  'tokens_differ',
  'not_trainable',
  'other_model',
] as const

export interface NewRow {
  readonly why: (typeof NEW_ROW_REASONS)[number]
  /** The turn that it could have gone on from, or that it is a sample beside. */
  readonly turnId: string | null
  readonly text: string
}

/** What is kept of a turn. */
interface Seen
  extends Pick<
    TurnStep,
    'turnId' | 'index' | 'status' | 'exact' | 'inexactReason' | 'tools' | 'lastMessage'
  > {
  /** Of prompt and completion. */
  readonly tokenCount: number
}

const MAX_CHARS = 60

export class NewRows {
  readonly #turns = new Map<string, Seen>()
  /** By the last message of its request: the latest turn. */
  readonly #endingAt = new Map<Message, Seen>()
  /** What followed on a message last, and whose request brought it; undefined: on none. */
  readonly #following = new Map<Message | undefined, { message: Message; turn: Seen }>()

  /**
   * Takes all turns, in call order.
   * @param isFollower it follows another one in a row
   * @returns undefined of a turn that begins no row
   */
  add(step: TurnStep, line: Line, isFollower: boolean): NewRow | undefined {
    const { turnId, index, status, exact, inexactReason, tools, lastMessage } = step
    const tokenCount = promptLength(step) + step.completionTokenIds.length
    const seen: Seen = { turnId, index, status, exact, inexactReason, tools, lastMessage, tokenCount }
    const begins = status === 'completed' && line !== 'side' && !isFollower
    const found = begins ? (this.#byParent(step) ?? this.#byMessages(step, seen)) : undefined
    this.#remember(seen)
    return found
  }

  #remember(turn: Seen): void {
    this.#turns.set(turn.turnId, turn)
    const { lastMessage } = turn
    if (lastMessage !== undefined) this.#endingAt.set(lastMessage, turn)
    for (let at = lastMessage; at !== undefined; at = at.parent) {
      if (this.#following.get(at.parent)?.message === at) break
      this.#following.set(at.parent, { message: at, turn })
    }
  }

  /** Of a call that was found to go on from a turn by its messages. */
  #byParent(step: TurnStep): NewRow | undefined {
    const before = this.#turns.get(parentOnRecord(step) ?? '')
    if (before === undefined) return undefined
    const { turnId, index } = before
    if (before.status !== 'completed' || !before.exact) {
      const why = before.exact ? `it is ${before.status}` : (before.inexactReason ?? 'it has no exact ids')
      return { why: 'not_trainable', turnId, text: `goes on from turn ${index}, which is in no row: ${why}` }
    }
    const { base, shared } = step.promptStep
    const isShared = base === turnId
    if (isShared && shared === before.tokenCount)
      return { why: 'other_model', turnId, text: `goes on from turn ${index}, and asks another model` }
    const reason = promptReasonOf(step)
    const where = isShared ? `: it leaves them at token ${shared}` : ''
    const how = reason === null ? '' : ` (${reason})`
    const text = `goes on from turn ${index}, but not from its tokens${where}${how}`
    return { why: 'tokens_differ', turnId, text }
  }

  #byMessages(step: TurnStep, seen: Seen): NewRow {
    const edited = this.#editedCall(step)
    if (edited !== undefined) return edited
    const { known, added } = this.#known(seen.lastMessage)
    const ended = known && this.#endingAt.get(known)
    if (ended !== undefined) return afterRequestOf(ended, seen, added)
    const other = this.#following.get(known)
    // What nobody said before begins a conversation; so does another agent behind the same system prompt.
    if (other === undefined || added === undefined || isOpening(known, added)) return CONVERSATION
    const { index, turnId } = other.turn
    const place = `message ${added.depth} (${added.value.role})`
    const text = `${place} is not what turn ${index} had: ${difference(other.message, added)}`
    return { why: 'message_changed', turnId, text }
  }

  /** How much of it an earlier turn had, and the first message that none had there. */
  #known(last: Message | undefined): { known: Message | undefined; added: Message | undefined } {
    let added: Message | undefined
    let at = last
    while (at !== undefined && !this.#following.has(at) && !this.#endingAt.has(at))
      [added, at] = [at, at.parent]
    return { known: at, added }
  }

  #editedCall(step: TurnStep): NewRow | undefined {
    const note = echoNoteOf(step)
    const before = note?.kinds.includes('edited') ? this.#turns.get(note.from ?? '') : undefined
    if (note === undefined || before === undefined) return undefined
    const text = `the agent changed a call of turn ${before.index}: ${changesIn(note)}`
    return { why: 'call_edited', turnId: before.turnId, text }
  }
}

function promptLength({ promptStep: { base, shared, rest } }: TurnStep): number {
  return (base === null ? 0 : shared) + rest.length
}

const CONVERSATION: NewRow = { why: 'conversation', turnId: null, text: 'begins a conversation' }

/** Its messages are those of the turn's request, and then others than its answer and what follows it. */
function afterRequestOf(ended: Seen, seen: Seen, added: Message | undefined): NewRow {
  const { turnId, index } = ended
  if (added === undefined) {
    const text = `has the messages of turn ${index}: sampled again`
    return { why: 'sampled_again', turnId, text }
  }
  if (ended.tools !== seen.tools)
    return { why: 'tools_changed', turnId, text: `is offered other tools than turn ${index}` }
  if (added.value.role !== 'assistant') {
    const text = `the answer of turn ${index} is missing before message ${added.depth} (${added.value.role})`
    return { why: 'answer_missing', turnId, text }
  }
  const text = `message ${added.depth} is not the answer of turn ${index}: ${shortened(textIn(added))}`
  return { why: 'message_changed', turnId, text }
}

/** The first message that is not the system's differs. */
function isOpening(known: Message | undefined, added: Message): boolean {
  const isSystem = (message: Message) => ['system', 'developer'].includes(message.value.role)
  for (let at = known; at !== undefined; at = at.parent) if (!isSystem(at)) return false
  return !isSystem(added)
}

/** Values are JSON, or text. */
function changesIn({ changes = [] }: EchoNote): string {
  const differences = changes.map(({ kind, path, sampled, echoed }) => {
    const what = path === undefined ? kind : `${kind} ${path}`
    return `${what} is ${echoed === null ? 'left out' : cut(echoed)}, sampled was ${sampled === null ? 'nothing' : cut(sampled)}`
  })
  return differences.length === 0 ? 'it says something else' : differences.join('; ')
}

/** From the first place on where they differ. */
function difference(before: Message, now: Message): string {
  const [old, text] = [textIn(before), textIn(now)]
  if (before.value.role !== now.value.role) return `that was of role ${before.value.role}`
  let at = 0
  while (at < old.length && old[at] === text[at]) at += 1
  const from = Math.max(0, at - 10)
  return `from character ${at} on ${shortened(text.slice(from))}, before ${shortened(old.slice(from))}`
}

/** What a message says, or its JSON where that is no plain text. */
function textIn({ json, value }: Message): string {
  return typeof value.content === 'string' && !('tool_calls' in value) ? value.content : json
}

function shortened(text: string): string {
  return JSON.stringify(cut(text))
}

function cut(text: string): string {
  return text.length <= MAX_CHARS ? text : `${text.slice(0, MAX_CHARS)}…`.toWellFormed()
}
