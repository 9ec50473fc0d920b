/** Explains why a turn begins a new row, with a sentence for people and the changes that the agent made. */
import type { Message } from '../../../protocol/canonical/conversation.ts'
import type { TurnStep } from '../../store/port/turn-store.ts'
import { getPromptReason, getRecordedParent } from '../matching/recorded-parent.ts'
import { readEchoAnnotation } from '../prompts/echo-annotation.ts'
import { type AgentRole, isMainWork } from '../roles/agent-role.ts'
import type { AgentRoleMatch } from '../roles/agent-role-finder.ts'
import {
  describeChange,
  findToolCallChanges,
  getCompletionText,
  getMessageText,
  getNext,
  getToolNames,
  isEdited,
  isFollowedBy,
  isResponseTo,
  type MessageChange,
} from './message-changes.ts'

/**
 * The reasons for a new row. `conversation` and `sampled_again` are expected. The others split what could be one row.
 * For some, the agent changed messages or tools (`call_edited`, `message_changed`, `answer_missing`, `tools_changed`).
 * For `tokens_differ`, the prompt of a request that continues a turn does not begin with that turn's tokens. For the
 * rest, that turn cannot be continued (`not_trainable`, `other_model`).
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

type NewRowReason = (typeof NEW_ROW_REASONS)[number]

const EXPECTED: ReadonlySet<NewRowReason> = new Set(['conversation', 'sampled_again'])

/** The explanation of a new row. */
export interface NewRowExplanation {
  readonly why: NewRowReason
  /** The id of the turn that the row could have continued, or of which it is another sample; null: there is none. */
  readonly turnId: string | null
  /** The explanation for people. */
  readonly text: string
  /** The changes that the agent made. Absent: none are known. */
  readonly changes?: readonly MessageChange[]
}

/** Returns whether the new row splits what could be one row. */
export function isSplit({ why: reason }: NewRowExplanation): boolean {
  return !EXPECTED.has(reason)
}

/** The fields of an earlier turn that explanations need. */
interface PriorTurn
  extends Pick<
    TurnStep,
    | 'turnId'
    | 'index'
    | 'status'
    | 'exact'
    | 'inexactReason'
    | 'tools'
    | 'lastMessage'
    | 'completionText'
    | 'toolCalls'
  > {
  /** The number of tokens of prompt and completion. */
  readonly tokenCount: number
}

/**
 * For each message, the latest message after it, with the turn whose request added it. The key undefined represents the
 * beginning of a conversation.
 */
type NextTurns = Map<Message | undefined, { message: Message; turn: PriorTurn }>

/** The source of explanations for the new rows of one session. */
export class NewRowExplainer {
  readonly #turns = new Map<string, PriorTurn>()
  /** The latest turn by the last message of its request. */
  readonly #endingAt = new Map<Message, PriorTurn>()
  /** The next messages by agent role, because sub-agents have separate conversations. */
  readonly #following = new Map<string, NextTurns>()
  /** The latest completed turn of each agent role. */
  readonly #latest = new Map<AgentRole, PriorTurn>()
  /**
   * The ids of the turns that a turn of the same agent role continues. A compaction that continues a main turn thus
   * splits no row.
   */
  readonly #continued = new Map<AgentRole, Set<string>>()

  /**
   * Adds a turn. All turns must be added in index order.
   * @param parentId the id of the turn whose tokens this one continues, if any
   * @returns undefined if the turn does not begin a row
   */
  add(step: TurnStep, found: AgentRoleMatch, parentId: string | undefined): NewRowExplanation | undefined {
    const seen = toPriorTurn(step)
    const { agentRole: line } = found
    const isTrained = step.status === 'completed' && line !== 'side'
    const newRow = isTrained ? this.#find(step, seen, found, parentId) : undefined
    if (isTrained) {
      this.#latest.set(line, seen)
      if (parentId !== undefined) this.#continued.set(line, this.#continuedIn(line).add(parentId))
    }
    this.#remember(seen, this.#getFollowing(line))
    return newRow
  }

  #find(
    step: TurnStep,
    seen: PriorTurn,
    { agentRole: line, rule }: AgentRoleMatch,
    parentId: string | undefined,
  ): NewRowExplanation | undefined {
    if (parentId !== undefined) return this.#byFork(step, seen, line, parentId)
    // A sub-agent that was inferred from a new opening may be the main agent with an edited system prompt.
    const isGuess = rule === 'new_opening'
    return this.#byParent(step) ?? this.#byMessages(step, seen, isGuess ? 'main' : line, isGuess)
  }

  /**
   * Explains a second continuation of a turn, whose tokens can be trained in only one row.
   * @returns undefined for the first continuation
   */
  #byFork(step: TurnStep, seen: PriorTurn, line: AgentRole, parentId: string): NewRowExplanation | undefined {
    const parent = this.#turns.get(parentId)
    if (parent === undefined || !this.#continuedIn(line).has(parentId)) return undefined
    const newRow = this.#byMessages(step, seen, line, false)
    if (newRow !== CONVERSATION) return newRow
    const text = `continues turn ${parent.index}, which another turn continues differently`
    return { why: 'message_changed', turnId: parentId, text }
  }

  #continuedIn(line: AgentRole): Set<string> {
    return this.#continued.get(line) ?? new Set()
  }

  #getFollowing(line: AgentRole): NextTurns {
    const name = isMainWork(line) ? 'main' : line
    const following = this.#following.get(name) ?? new Map()
    this.#following.set(name, following)
    return following
  }

  #remember(turn: PriorTurn, following: NextTurns): void {
    this.#turns.set(turn.turnId, turn)
    const { lastMessage } = turn
    if (lastMessage !== undefined) this.#endingAt.set(lastMessage, turn)
    for (let message = lastMessage; message !== undefined; message = message.parent) {
      if (following.get(message.parent)?.message === message) break
      following.set(message.parent, { message: message, turn })
    }
  }

  /** Explains a turn whose messages continue another turn although its tokens do not. */
  #byParent(step: TurnStep): NewRowExplanation | undefined {
    const before = this.#turns.get(getRecordedParent(step) ?? '')
    if (before === undefined) return undefined
    const { turnId, index } = before
    if (before.status !== 'completed' || !before.exact) {
      const reason = before.exact ? `it is ${before.status}` : (before.inexactReason ?? 'it has no exact ids')
      return { why: 'not_trainable', turnId, text: `continues turn ${index}, which is in no row: ${reason}` }
    }
    const { base, shared } = step.promptStep
    const isShared = base === turnId
    if (isShared && shared === before.tokenCount)
      return { why: 'other_model', turnId, text: `continues turn ${index} with another model` }
    const reason = getPromptReason(step)
    const where = isShared ? `: they differ from token ${shared} on` : ''
    const how = reason === null ? '' : ` (${reason})`
    const text = `continues turn ${index}, but not its tokens${where}${how}`
    return { why: 'tokens_differ', turnId, text }
  }

  /** Explains a turn that continues no other one, by comparing its messages with those of earlier turns. */
  #byMessages(step: TurnStep, seen: PriorTurn, line: AgentRole, isGuess: boolean): NewRowExplanation {
    const edited = this.#byEditedCall(step)
    if (edited !== undefined) return edited
    const following = this.#getFollowing(line)
    const { known, added } = this.#known(seen.lastMessage, following)
    const latest = this.#latest.get(line)
    const dropped = latest && added && describeDropped(latest, seen, known, added)
    if (dropped !== undefined) return dropped
    const ended = known && this.#endingAt.get(known)
    if (ended !== undefined) return describeChangedRequest(ended, seen, added)
    const other = following.get(known)
    // No earlier turn has the messages: they begin a conversation.
    if (other === undefined || added === undefined) return CONVERSATION
    // Another agent with the same system prompt begins a conversation, too, unless its messages are almost the same.
    const mayBeAnother = isGuess || isOpening(known, added)
    if (mayBeAnother && !isEdited(other.message, added, other.turn, seen.lastMessage)) return CONVERSATION
    const { index, turnId } = other.turn
    const place = describePosition(added, isOpening(known, added))
    const change = describeChange(place, getMessageText(other.message), getMessageText(added))
    const text = `${change.what} edited: it differs from turn ${index}'s at line ${change.line}`
    return { why: 'message_changed', turnId, text, changes: [change] }
  }

  /** Returns the last message that an earlier turn has, and the first message after it. */
  #known(
    last: Message | undefined,
    following: NextTurns,
  ): { known: Message | undefined; added: Message | undefined } {
    let added: Message | undefined
    let message = last
    while (message !== undefined && !following.has(message) && !this.#endingAt.has(message))
      [added, message] = [message, message.parent]
    return { known: message, added }
  }

  /** Explains a turn whose request has edited tool calls. */
  #byEditedCall(step: TurnStep): NewRowExplanation | undefined {
    const note = readEchoAnnotation(step)
    const before = note?.kinds.includes('edited') ? this.#turns.get(note.from ?? '') : undefined
    if (note === undefined || before === undefined) return undefined
    const { text, changes } = findToolCallChanges(note, before)
    return { why: 'call_edited', turnId: before.turnId, text: `the agent changed ${text}`, changes }
  }
}

function toPriorTurn(step: TurnStep): PriorTurn {
  const { turnId, index, status, exact, inexactReason, tools, lastMessage, completionText, toolCalls } = step
  const { base, shared, rest } = step.promptStep
  const tokenCount = (base === null ? 0 : shared) + rest.length + step.completionTokenIds.length
  return {
    turnId,
    index,
    status,
    exact,
    inexactReason,
    tools,
    lastMessage,
    completionText,
    toolCalls,
    tokenCount,
  }
}

const CONVERSATION: NewRowExplanation = { why: 'conversation', turnId: null, text: 'begins a conversation' }

/** Explains a request that has all messages of an earlier request, but not its completion after them. */
function describeChangedRequest(
  ended: PriorTurn,
  seen: PriorTurn,
  added: Message | undefined,
): NewRowExplanation {
  const { turnId, index } = ended
  if (added === undefined) {
    const text = `has the messages of turn ${index}: another sample`
    return { why: 'sampled_again', turnId, text }
  }
  if (ended.tools !== seen.tools) {
    const change = describeChange('tools', getToolNames(ended.tools), getToolNames(seen.tools))
    const text = `has other tools than turn ${index}`
    return { why: 'tools_changed', turnId, text, changes: [change] }
  }
  if (added.value.role !== 'assistant') {
    const text = `the response of turn ${index} is missing before message ${added.depth} (${added.value.role})`
    return { why: 'answer_missing', turnId, text }
  }
  const change = describeChange(
    `the response of turn ${index}`,
    getCompletionText(ended),
    getMessageText(added),
  )
  const text = `${change.what} edited: it differs at line ${change.line}`
  return { why: 'message_changed', turnId, text, changes: [change] }
}

/**
 * Explains a sliding window of messages: after `known`, the request continues with a later message of the latest turn,
 * or with that turn's completion.
 * @returns undefined if no messages were dropped
 */
function describeDropped(
  latest: PriorTurn,
  seen: PriorTurn,
  known: Message | undefined,
  added: Message,
): NewRowExplanation | undefined {
  const { turnId, index, lastMessage } = latest
  const from = `from message ${added.depth} on`
  const next = getNext(added, seen.lastMessage)
  let message = lastMessage
  let same: Message | undefined
  for (; message !== undefined && message !== known; message = message.parent)
    if (message.json === added.json && message.parent !== known) same = message
  if (message !== known || lastMessage === known) return undefined
  if (same !== undefined && next !== undefined && isFollowedBy(same, next, latest))
    return { why: 'answer_missing', turnId, text: `messages of turn ${index} were dropped, ${from}` }
  if (!isResponseTo(latest, added)) return undefined
  const text = `the messages before turn ${index}'s response were dropped, ${from}`
  return { why: 'answer_missing', turnId, text }
}

/** Returns whether `added` is the first message after the system prompt. */
function isOpening(known: Message | undefined, added: Message): boolean {
  for (let message = known; message !== undefined; message = message.parent)
    if (!isSystem(message)) return false
  return !isSystem(added)
}

function isSystem({ value: { role } }: Message): boolean {
  return role === 'system' || role === 'developer'
}

function describePosition(message: Message, isFirst: boolean): string {
  if (isFirst) return 'first message'
  return isSystem(message) ? 'system prompt' : `message ${message.depth} (${message.value.role})`
}
