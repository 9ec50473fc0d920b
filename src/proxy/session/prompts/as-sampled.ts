/**
 * A conversation as its engine knows it. Agents rewrite the calls that they were given: where a message is the echo of a
 * turn, what was sampled stands in its place, and calls have the ids that the model itself gave them.
 */
import { SideTable } from '../../../base/side-table.ts'
import { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { getMessageKey } from '../matching/conversation.ts'
import { messageKey } from '../matching/message-key.ts'
import { type IndexTurn, sampledMessage } from '../matching/prefix-index.ts'
import type { SessionTurn } from '../matching/session-turns.ts'
import { restoreId, type ToolCallIds } from '../matching/tool-call-ids.ts'

type AssistantSaid = Extract<ChatMessage, { role: 'assistant' }>

/** What stands in a message's place, as the echo of a turn or of none; often the message itself. */
interface InPlace {
  readonly turn: SessionTurn | undefined
  readonly message: Message
}

const inPlace = new SideTable<Message, InPlace>()

/**
 * @param conversation all messages of a call, which have been read
 * @param parent the turn that the call goes on from; undefined: only ids are put back, and nothing else is touched
 * @returns the same list if nothing is another one
 */
export function asSampled(
  conversation: readonly Message[],
  parent: IndexTurn<SessionTurn> | undefined,
  ids: ToolCallIds,
): readonly Message[] {
  const turns = new Map<number, SessionTurn>()
  for (let turn = parent; turn !== undefined; turn = turn.parent) {
    if (turn.turn.said !== undefined) turns.set(turn.depth, turn.turn)
  }
  if (turns.size === 0 && !ids.hasOwn) return conversation
  const shown = conversation.map((message) => messageInPlace(message, turns.get(message.depth), ids))
  for (const [depth, turn] of turns) orderResults(shown, conversation, { depth, turn })
  return shown.some((message, at) => message !== conversation[at]) ? shown : conversation
}

function messageInPlace(message: Message, turn: SessionTurn | undefined, ids: ToolCallIds): Message {
  const known = inPlace.of(message)
  if (known !== undefined && known.turn === turn) return known.message
  const value = turn?.said === undefined ? ownIdsIn(message.value, ids) : sampledIn(message, turn.said, ids)
  if (value === undefined) return inPlace.put(message, { turn, message }).message
  const json = JSON.stringify(value)
  ids.addBytes(2 * json.length)
  return inPlace.put(message, { turn, message: new Message(message.parent, json, value) }).message
}

/** @returns undefined: the echo says what was sampled, in the same order, and its ids are the model's */
function sampledIn(
  echo: Message,
  said: NonNullable<SessionTurn['said']>,
  ids: ToolCallIds,
): ChatMessage | undefined {
  const sampled = sampledMessage(said) as AssistantSaid
  const isOwn = said.toolCalls.every(({ id }) => ids.findOriginal(id) === undefined)
  const echoedIds = ((echo.value as AssistantSaid).tool_calls ?? []).map(({ id }) => id)
  const isInOrder = said.toolCalls.every(({ id }, at) => echoedIds[at] === id)
  if (isOwn && isInOrder && messageKey(sampled).digest === getMessageKey(echo).digest) return undefined
  const { reasoning_content: reasoning, ...rest } = ownIdsIn(sampled, ids) ?? sampled
  return { ...rest, ...(reasoning !== null && { reasoning_content: reasoning }) } as ChatMessage
}

/** @returns undefined: its ids are those that the model knows, or that the proxy drew */
function ownIdsIn(message: ChatMessage, ids: ToolCallIds): ChatMessage | undefined {
  const shownId = (id: string) => ids.findOriginal(id) ?? restoreId(id)
  if (message.role === 'tool') {
    const id = shownId(message.tool_call_id)
    return id === message.tool_call_id ? undefined : { ...message, tool_call_id: id }
  }
  if (message.role !== 'assistant' || !Array.isArray(message.tool_calls)) return undefined
  if (message.tool_calls.every(({ id }) => shownId(id) === id)) return undefined
  return {
    ...message,
    tool_calls: message.tool_calls.map((call) => ({ ...call, id: shownId(call.id) })),
  }
}

/**
 * Templates that show no ids show results by their place: the results right behind an echo come in the order of the calls
 * that were sampled. Where one is missing, comes twice, or answers another call, all stay as they were sent.
 */
function orderResults(
  shown: Message[],
  conversation: readonly Message[],
  { depth, turn }: { depth: number; turn: SessionTurn },
): void {
  const order = turn.said!.toolCalls.map(({ id }) => id)
  if (order.length < 2) return
  const places = new Map<string, number>()
  let end = depth
  for (; end < conversation.length; end += 1) {
    const { value } = conversation[end]!
    if (value.role !== 'tool') break
    places.set(restoreId(value.tool_call_id), end)
  }
  const isWhole = end - depth === order.length && order.every((id) => places.has(id))
  if (!isWhole) return
  const results = order.map((id) => shown[places.get(id)!]!)
  shown.splice(depth, results.length, ...results)
}

/** What a message says, as one text. */
export function textOf(message: ChatMessage | undefined): string {
  const content: unknown = message?.content
  if (typeof content === 'string') return content
  const parts = Array.isArray(content) ? (content as { text?: unknown }[]) : []
  return parts.map(({ text }) => (typeof text === 'string' ? text : '')).join('')
}
