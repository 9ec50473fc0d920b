/** The keys by which matching compares requests: one for each message and one for the tools. */

import { ProxyError } from '../../../base/errors.ts'
import { SideTable } from '../../../base/side-table.ts'
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { toCanonicalJson } from './canonical-json.ts'
import { computeDigest, computeMessageKey, type MessageKey } from './message-key.ts'
import { isProxyToolCallId, restoreId } from './tool-call-ids.ts'

/** The keys of one request. */
export interface ConversationKeys {
  readonly toolsKey: string
  /** The last message of the request. {@link getMessageKey} returns its key and those of the messages before it. */
  readonly last: Message | undefined
}

/** The data that matching attaches to a message that it has read. */
interface MessageInfo {
  readonly key: MessageKey
  /** The number of tool calls in the conversation up to and including this message. */
  readonly callCount: number
}

const keyed = new SideTable<Message, MessageInfo>()

/**
 * Computes the keys of a conversation. Each message is read once, even if many requests repeat it.
 * @param last the last message of the conversation
 * @param memo a cache of the tools' key, shared with earlier requests
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
 * Computes the keys as {@link readConversation} does, but yields to the event loop after each batch of messages.
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

/** The number of new messages per batch: a few milliseconds of work. */
const BATCH_MESSAGES = 1_000

/**
 * Attaches the keys of new messages, and yields after each batch. A concurrent request may read the same messages
 * meanwhile, with equal results.
 */
function* readMessages(last: Message | undefined): Generator<void> {
  const added = getMessagesBetween(undefined, last, (message) => keyed.get(message) !== undefined)
  const calls = new ToolCallPositions(added[0]?.parent)
  for (const [index, message] of added.entries()) {
    if (index % BATCH_MESSAGES === BATCH_MESSAGES - 1) yield
    keyed.attach(message, readMessage(message, calls))
    calls.add(message)
  }
}

/** Converts the RangeError of a stack overflow to a ProxyError. Returns other errors unchanged. */
function explain(cause: unknown): unknown {
  if (!(cause instanceof RangeError)) return cause
  return new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
}

/** Returns the key of a message, whose conversation must have been read. */
export function getMessageKey(message: Message): MessageKey {
  return keyed.get(message)!.key
}

/** Returns a digest that is equal for equal tools in the same order, since templates render their order. */
function computeToolsKey(tools: readonly Tool[]): string {
  return computeDigest(toCanonicalJson(tools))
}

function readMessage({ parent, value }: Message, calls: ToolCallPositions): MessageInfo {
  const answered = 'tool_call_id' in value ? findToolCallKey(restoreId(value.tool_call_id), calls) : undefined
  const key = computeMessageKey(value, answered)
  return { key, callCount: countToolCallsUpTo(parent) + (key.assistant?.toolCallIds.length ?? 0) }
}

/**
 * Returns what identifies the tool call of a tool result: the id if a proxy generated it, otherwise the tool call's
 * index; undefined if the conversation has no such tool call.
 */
function findToolCallKey(id: string, calls: ToolCallPositions): number | string | undefined {
  const index = calls.getIndex(id)
  return index !== undefined && isProxyToolCallId(id) ? id : index
}

/**
 * The indices of a conversation's tool calls, by id. If a model reuses an id, the latest tool call counts. Messages are
 * visited from the newest to the oldest, each at most once, and only until the id is found.
 */
class ToolCallPositions {
  readonly #indices = new Map<string | undefined, number>()
  /** The newest message that was not visited yet. */
  #older: Message | undefined

  /** @param last the last message before those that are passed to {@link add} */
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

  /** Adds the tool calls of the next message of the conversation. */
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
  return message === undefined ? 0 : keyed.get(message)!.callCount
}
