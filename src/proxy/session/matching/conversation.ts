/** The keys that matching reads of a request: one for each message and one for the tools. */

import { ProxyError } from '../../../base/errors.ts'
import { SideTable } from '../../../base/side-table.ts'
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { toCanonicalJson } from './canonical-json.ts'
import { computeDigest, computeMessageKey, type MessageKey } from './message-key.ts'
import { isProxyToolCallId, restoreId } from './tool-call-ids.ts'

export interface ConversationKeys {
  readonly toolsKey: string
  /** The last message of the request. {@link getMessageKey} returns the key of it and of each message before it. */
  readonly last: Message | undefined
}

/** The data that matching attaches to a message. */
interface MessageInfo {
  readonly key: MessageKey
  /** Number of tool calls up to and including this message. */
  readonly callCount: number
}

const keyed = new SideTable<Message, MessageInfo>()

/**
 * Computes the keys of a conversation. Each message is read once, however many requests repeat it.
 * @param memo memo of the tools of earlier requests
 * @throws ProxyError `invalid_request` for fields that are nested too deeply to be compared
 */
export function readConversation(
  last: Message | undefined,
  tools: readonly Tool[] | null | undefined,
  memo: PartMemo = NO_MEMO,
): ConversationKeys {
  try {
    for (const _batch of readMessages(last));
    return { toolsKey: tools && tools.length > 0 ? memo.computeOnce(computeToolsKey, tools) : '', last }
  } catch (cause) {
    throw explain(cause)
  }
}

/**
 * Does the same as {@link readConversation} for long conversations: yields to the event loop after each batch.
 * @returns a promise only if there is more than one batch
 */
export function readConversationInSlices(
  ...[last, tools, memo]: Parameters<typeof readConversation>
): ConversationKeys | Promise<ConversationKeys> {
  const batches = readMessages(last)
  const readBatch = () => {
    try {
      return batches.next().done
    } catch (cause) {
      throw explain(cause)
    }
  }
  const readRest = async () => {
    do await yieldToEventLoop()
    while (!readBatch())
    return readConversation(last, tools, memo)
  }
  return readBatch() ? readConversation(last, tools, memo) : readRest()
}

/** Number of new messages read per time slice: a few milliseconds of work. */
const BATCH_MESSAGES = 1_000

/** Yields after each batch. A concurrent request with the same messages may read them meanwhile, with equal results. */
function* readMessages(last: Message | undefined): Generator<void> {
  const added = getMessagesBetween(undefined, last, (message) => keyed.of(message) !== undefined)
  const calls = new ToolCallPositions(added[0]?.parent)
  for (const [index, message] of added.entries()) {
    if (index % BATCH_MESSAGES === BATCH_MESSAGES - 1) yield
    keyed.put(message, readMessage(message, calls))
    calls.add(message)
  }
}

function explain(cause: unknown): unknown {
  if (!(cause instanceof RangeError)) return cause
  return new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
}

/** Returns the key of a message. Its conversation must have been read. */
export function getMessageKey(message: Message): MessageKey {
  return keyed.of(message)!.key
}

/**
 * Returns a key that is equal for equal tools in the same order, since a template renders the order. Null, absent and
 * empty tools share the empty key.
 */
function computeToolsKey(tools: readonly Tool[]): string {
  return computeDigest(toCanonicalJson(tools))
}

function readMessage({ parent, value }: Message, calls: ToolCallPositions): MessageInfo {
  const answered = 'tool_call_id' in value ? findToolCallKey(restoreId(value.tool_call_id), calls) : undefined
  const key = computeMessageKey(value, answered)
  return { key, callCount: countToolCallsUpTo(parent) + (key.assistant?.toolCallIds.length ?? 0) }
}

/** Returns the id if a proxy generated it, since that identifies the tool call; otherwise the tool call's index. */
function findToolCallKey(id: string, calls: ToolCallPositions): number | string | undefined {
  const index = calls.getIndex(id)
  return index !== undefined && isProxyToolCallId(id) ? id : index
}

/**
 * The indices of a conversation's tool calls by id. Some models reuse an id: the latest tool call wins.
 * Each message is visited at most once, and older messages only for an id that newer ones do not contain.
 */
class ToolCallPositions {
  readonly #indices = new Map<string | undefined, number>()
  /** The newest message that has not been visited. */
  #older: Message | undefined

  /** @param last the last message that was read before */
  constructor(last: Message | undefined) {
    this.#older = last
  }

  getIndex(id: string): number | undefined {
    for (; this.#older !== undefined && !this.#indices.has(id); this.#older = this.#older.parent) {
      const older = listToolCallPositions(this.#older)
      for (const [known, index] of older) if (!this.#indices.has(known)) this.#indices.set(known, index)
    }
    return this.#indices.get(id)
  }

  /** Adds the tool calls of the next message. */
  add(message: Message): void {
    for (const [id, index] of listToolCallPositions(message)) this.#indices.set(id, index)
  }
}

function listToolCallPositions(message: Message): Map<string | undefined, number> {
  const ids = getMessageKey(message).assistant?.toolCallIds ?? []
  const before = countToolCallsUpTo(message.parent)
  return new Map(ids.map((id, index) => [id, before + index]))
}

function countToolCallsUpTo(message: Message | undefined): number {
  return message === undefined ? 0 : keyed.of(message)!.callCount
}
