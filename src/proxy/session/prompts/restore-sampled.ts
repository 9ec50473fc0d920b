/**
 * Restores a conversation as it was sampled, because agents rewrite the tool calls that they receive. The echo of a
 * turn is replaced by its completion, and tool calls receive the ids that the model sampled.
 */
import { SideTable } from '../../../base/side-table.ts'
import { Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import { getMessageKey } from '../matching/conversation.ts'
import { computeMessageKey } from '../matching/message-key.ts'
import { type IndexTurn, toMessage } from '../matching/prefix-index.ts'
import type { SessionTurn } from '../matching/session-turns.ts'
import { restoreId, type ToolCallIds } from '../matching/tool-call-ids.ts'

type AssistantMessage = Extract<ChatMessage, { role: 'assistant' }>

/** The replacement of a message, which is the message itself if nothing was changed. */
interface MessageReplacement {
  /** The turn of which the message is an echo; undefined: it is none. */
  readonly turn: SessionTurn | undefined
  readonly message: Message
}

const replacements = new SideTable<Message, MessageReplacement>()

/**
 * Restores the sampled messages of a request.
 * @param conversation all messages of the request, whose keys have been computed
 * @param parent the turn that the request continues; undefined: only ids are restored
 * @returns `conversation` itself if no message is replaced
 */
export function restoreSampled(
  conversation: readonly Message[],
  parent: IndexTurn<SessionTurn> | undefined,
  ids: ToolCallIds,
): readonly Message[] {
  const turns = new Map<number, SessionTurn>()
  for (let turn = parent; turn !== undefined; turn = turn.parent) {
    if (turn.turn.completionMessage !== undefined) turns.set(turn.depth, turn.turn)
  }
  if (turns.size === 0 && !ids.hasOwn) return conversation
  const restored = conversation.map((message) => restoreMessage(message, turns.get(message.depth), ids))
  for (const [depth, turn] of turns) orderResults(restored, conversation, { depth, turn })
  return restored.some((message, index) => message !== conversation[index]) ? restored : conversation
}

function restoreMessage(message: Message, turn: SessionTurn | undefined, ids: ToolCallIds): Message {
  const cached = replacements.get(message)
  if (cached !== undefined && cached.turn === turn) return cached.message
  const value =
    turn?.completionMessage === undefined
      ? withOriginalIds(message.value, ids)
      : getSampled(message, turn.completionMessage, ids)
  if (value === undefined) return replacements.attach(message, { turn, message }).message
  const json = JSON.stringify(value)
  ids.addBytes(2 * json.length)
  return replacements.attach(message, { turn, message: new Message(message.parent, json, value) }).message
}

/**
 * Returns the completion in place of its echo.
 * @returns undefined: they are equal, including the order and ids of tool calls
 */
function getSampled(
  echo: Message,
  completionMessage: NonNullable<SessionTurn['completionMessage']>,
  ids: ToolCallIds,
): ChatMessage | undefined {
  const sampled = toMessage(completionMessage) as AssistantMessage
  const hasOriginalIds = completionMessage.toolCalls.every(({ id }) => ids.findOriginal(id) === undefined)
  const echoedIds = ((echo.value as AssistantMessage).tool_calls ?? []).map(({ id }) => id)
  const isInOrder = completionMessage.toolCalls.every(({ id }, index) => echoedIds[index] === id)
  if (hasOriginalIds && isInOrder && computeMessageKey(sampled).digest === getMessageKey(echo).digest)
    return undefined
  const { reasoning_content: reasoning, ...rest } = withOriginalIds(sampled, ids) ?? sampled
  return { ...rest, ...(reasoning !== null && { reasoning_content: reasoning }) } as ChatMessage
}

/** Returns the message with the ids that the model sampled. @returns undefined: no id differs */
function withOriginalIds(message: ChatMessage, ids: ToolCallIds): ChatMessage | undefined {
  const getOriginalId = (id: string) => ids.findOriginal(id) ?? restoreId(id)
  if (message.role === 'tool') {
    const id = getOriginalId(message.tool_call_id)
    return id === message.tool_call_id ? undefined : { ...message, tool_call_id: id }
  }
  if (message.role !== 'assistant' || !Array.isArray(message.tool_calls)) return undefined
  if (message.tool_calls.every(({ id }) => getOriginalId(id) === id)) return undefined
  return {
    ...message,
    tool_calls: message.tool_calls.map((call) => ({ ...call, id: getOriginalId(call.id) })),
  }
}

/**
 * Sorts tool results, because some templates render no ids and match results by position. The results directly after an
 * echo are put in the order of the sampled tool calls. If one of them is missing, duplicate, or of another tool call,
 * their order is not changed.
 */
function orderResults(
  restored: Message[],
  conversation: readonly Message[],
  { depth, turn }: { depth: number; turn: SessionTurn },
): void {
  const order = turn.completionMessage!.toolCalls.map(({ id }) => id)
  if (order.length < 2) return
  const positions = new Map<string, number>()
  let end = depth
  for (; end < conversation.length; end += 1) {
    const { value } = conversation[end]!
    if (value.role !== 'tool') break
    positions.set(restoreId(value.tool_call_id), end)
  }
  const isComplete = end - depth === order.length && order.every((id) => positions.has(id))
  if (!isComplete) return
  const results = order.map((id) => restored[positions.get(id)!]!)
  restored.splice(depth, results.length, ...results)
}

/** Returns the text parts of a message's content, joined without a separator. */
export function readText(message: ChatMessage | undefined): string {
  const content: unknown = message?.content
  if (typeof content === 'string') return content
  const parts = Array.isArray(content) ? (content as { text?: unknown }[]) : []
  return parts.map(({ text }) => (typeof text === 'string' ? text : '')).join('')
}
