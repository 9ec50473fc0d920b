/** A call as matching sees it: its messages, each with a key, and a key for the tools. */

import { ProxyError } from '../../../base/errors.ts'
import { SideTable } from '../../../base/side-table.ts'
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { Tool } from '../../../protocol/canonical/messages.ts'
import { NO_MEMO, type PartMemo } from '../../../protocol/canonical/request-reader.ts'
import { canonicalJson } from './canonical-json.ts'
import { computeDigest, type MessageKey, messageKey } from './message-key.ts'
import { isProxyToolCallId, restoreId } from './tool-call-ids.ts'

export interface ConversationKeys {
  readonly toolsKey: string
  /** Its last message; the key of each is there. */
  readonly last: Message | undefined
}

/** What matching knows of a message. */
interface MessageInfo {
  readonly key: MessageKey
  /** How many tool calls there are up to this message. */
  readonly callCount: number
}

const keyed = new SideTable<Message, MessageInfo>()

/**
 * Reads each message once, whatever number of calls repeats it.
 * @param repeats knows tools that came before
 * @throws ProxyError `invalid_request` for fields that are nested too deeply to be compared
 */
export function readConversation(
  last: Message | undefined,
  tools: readonly Tool[] | null | undefined,
  repeats: PartMemo = NO_MEMO,
): ConversationKeys {
  try {
    for (const _stretch of readMessages(last));
    return { toolsKey: tools && tools.length > 0 ? repeats.once(toolsKey, tools) : '', last }
  } catch (cause) {
    throw explained(cause)
  }
}

/** As {@link readConversation}, of one that may be long: other calls have their turn after each stretch of its messages. */
export async function readInSlices(
  ...[last, tools, repeats]: Parameters<typeof readConversation>
): Promise<ConversationKeys> {
  const stretches = readMessages(last)
  try {
    while (!stretches.next().done) await yieldToEventLoop()
  } catch (cause) {
    throw explained(cause)
  }
  return readConversation(last, tools, repeats)
}

/** New messages that are read in one go: some milliseconds' work. */
const STRETCH = 1_000

/** Stops after each stretch. Another call with the same messages may read them in between, and finds the same. */
function* readMessages(last: Message | undefined): Generator<void> {
  const added = getMessagesBetween(undefined, last, (message) => keyed.of(message) !== undefined)
  const calls = new ToolCallPositions(added[0]?.parent)
  for (const [at, message] of added.entries()) {
    if (at % STRETCH === STRETCH - 1) yield
    keyed.put(message, readMessage(message, calls))
    calls.add(message)
  }
}

function explained(cause: unknown): unknown {
  if (!(cause instanceof RangeError)) return cause
  return new ProxyError('invalid_request', 'The request is nested too deeply', { cause })
}

/** The key of a message of a conversation that has been read. */
export function getMessageKey(message: Message): MessageKey {
  return keyed.of(message)!.key
}

/**
 * Tools are the same by value and in the same order, which a template shows; no tools, however it is written, are one.
 */
function toolsKey(tools: readonly Tool[]): string {
  return computeDigest(canonicalJson(tools))
}

function readMessage({ parent, value }: Message, calls: ToolCallPositions): MessageInfo {
  const answered = 'tool_call_id' in value ? answeredBy(restoreId(value.tool_call_id), calls) : undefined
  const key = messageKey(value, answered)
  return { key, callCount: callsUpTo(parent) + (key.assistant?.toolCallIds.length ?? 0) }
}

/** An id that a proxy drew is the call's own, wherever that stands. */
function answeredBy(id: string, calls: ToolCallPositions): number | string | undefined {
  const place = calls.getIndex(id)
  return place !== undefined && isProxyToolCallId(id) ? id : place
}

/**
 * The places of tool calls among those of a conversation, by their ids. Some models use an id again: the latest counts.
 * However many results ask, each message is looked at once, and older ones only for an id that newer ones do not have.
 */
class ToolCallPositions {
  readonly #places = new Map<string | undefined, number>()
  /** The newest message that has not been looked at. */
  #older: Message | undefined

  /** @param last of the messages that have been read before */
  constructor(last: Message | undefined) {
    this.#older = last
  }

  getIndex(id: string): number | undefined {
    for (; this.#older !== undefined && !this.#places.has(id); this.#older = this.#older.parent) {
      const older = placesIn(this.#older)
      for (const [known, place] of older) if (!this.#places.has(known)) this.#places.set(known, place)
    }
    return this.#places.get(id)
  }

  /** The message that follows on all others. */
  add(message: Message): void {
    for (const [id, place] of placesIn(message)) this.#places.set(id, place)
  }
}

function placesIn(message: Message): Map<string | undefined, number> {
  const ids = getMessageKey(message).assistant?.toolCallIds ?? []
  const before = callsUpTo(message.parent)
  return new Map(ids.map((id, at) => [id, before + at]))
}

function callsUpTo(message: Message | undefined): number {
  return message === undefined ? 0 : keyed.of(message)!.callCount
}
