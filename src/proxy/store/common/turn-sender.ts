/** The main thread's cache of row ids: turns refer to stored data by these ids instead of sending it again. */

import { LruCache } from '../../../base/lru-cache.ts'
import { SideTable } from '../../../base/side-table.ts'
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { PromptIds } from '../../../protocol/token-ids/prompt-ids.ts'
import { MIN_SHARED_TOKENS, type OpenTurn, type TurnOutcome } from '../port/turn-store.ts'
import {
  NO_TEXTS,
  type OutcomeMessage,
  type PromptReference,
  type RequestReply,
  type TextListMessage,
  type TextListNode,
  type TurnMessage,
} from './turn-message.ts'

/**
 * The limit on the cached prompts of text completions, over all sessions, and the overhead per session, in characters.
 */
const MAX_CHARS = 16 * 1024 * 1024
const SESSION_CHARS = 1_000

/** The number of tool lists to cache per session: an agent and its subagents have different ones. */
const MAX_TOOLS = 16

/** The row ids of a session's stored data. */
class SessionRowIds {
  /** The row ids of tools, by their text. */
  readonly tools = new LruCache<string, number>(MAX_TOOLS, () => 1)
  /** The last prompt of a text completion, without its last text. */
  prompt: { chunks: readonly string[]; node: TextListNode } | undefined

  get chars(): number {
    return (this.prompt?.chunks ?? []).reduce((sum, { length }) => sum + length, SESSION_CHARS)
  }
}

/** The stored message list that ends with a message. It is valid while the session has the same `records`. */
interface MessageListRecord {
  readonly records: SessionRowIds
  readonly messages: TextListNode
}

const messageRecords = new SideTable<Message, MessageListRecord>()

/** The committed turn of a prompt. It is valid while the session has the same `records`. */
interface PromptTurn {
  readonly records: SessionRowIds
  /** The turn's row id. */
  readonly turn: number
}

const promptRecords = new SideTable<PromptIds, PromptTurn>()

export class TurnSender {
  readonly #records = new LruCache<string, SessionRowIds>(MAX_CHARS, ({ chars }) => chars)

  /**
   * Returns the turn in the form to send, and a callback for the writer's reply. Until the reply, the session's next
   * request repeats the data of this one.
   */
  pack(turn: OpenTurn): { sent: TurnMessage; applyReply(reply: RequestReply): void } {
    const { lastMessage: last, promptPieces: chunks, tools, ...rest } = turn
    const records = this.#getRecords(turn.sessionId)
    return {
      sent: {
        ...rest,
        messages: packMessages(last, records),
        prompt: packPrompt(chunks, records),
        tools: tools === null ? null : (records.tools.get(tools) ?? tools),
      },
      applyReply(reply) {
        if (last !== undefined) messageRecords.attach(last, { records, messages: reply.messages })
        if (tools !== null && reply.tools !== null) records.tools.set(tools, reply.tools)
        if (chunks.length > 1) records.prompt = { chunks: chunks.slice(0, -1), node: reply.prompt }
      },
    }
  }

  /** Returns the turn's outcome in the form to send, and a callback for the writer's reply. */
  packOutcome(outcome: TurnOutcome): { sent: OutcomeMessage; applyReply(turn: number): void } {
    const { promptTokenIds: ids, ...rest } = outcome
    const records = this.#getRecords(outcome.sessionId)
    return {
      sent: { ...rest, prompt: ids.length === 0 ? null : packPromptIds(ids, records) },
      applyReply: (turn) => {
        promptRecords.attach(ids, { records, turn })
      },
    }
  }

  #getRecords(sessionId: string): SessionRowIds {
    const records = this.#records.get(sessionId) ?? new SessionRowIds()
    this.#records.set(sessionId, records)
    return records
  }

  /** Discards a session's row ids. To be called before the command that removes its turns is sent to the writer. */
  forget(sessionId: string): void {
    this.#records.delete(sessionId)
  }

  forgetAll(): void {
    this.#records.clear()
  }
}

function packMessages(last: Message | undefined, records: SessionRowIds): TextListMessage {
  const getBase = (message: Message) => {
    const known = messageRecords.get(message)
    return known?.records === records ? known.messages : undefined
  }
  const added = getMessagesBetween(undefined, last, (message) => getBase(message) !== undefined)
  const before = added.length === 0 ? last : added[0]!.parent
  return { base: (before && getBase(before)) ?? NO_TEXTS, texts: added.map(({ json }) => json) }
}

/** Returns ids relative to the nearest base prompt whose turn is committed. */
function packPromptIds(ids: PromptIds, records: SessionRowIds): PromptReference {
  let { shared } = ids
  for (let { base } = ids; base !== undefined && shared >= MIN_SHARED_TOKENS; ) {
    const known = promptRecords.get(base)
    if (known?.records === records) return { base: known.turn, shared, rest: ids.slice(shared, ids.length) }
    shared = Math.min(shared, base.shared)
    base = base.base
  }
  return { base: null, shared: 0, rest: ids.slice(0, ids.length) }
}

/**
 * Returns a prompt relative to the session's previous one. The last text is always sent, since it usually differs; the
 * other texts have a separate node.
 */
function packPrompt(chunks: readonly string[], { prompt }: SessionRowIds): TextListMessage {
  const isExtension = prompt !== undefined && prompt.chunks.length < chunks.length
  if (!isExtension || prompt.chunks.some((chunk, index) => chunk !== chunks[index])) {
    return { base: NO_TEXTS, texts: chunks }
  }
  return { base: prompt.node, texts: chunks.slice(prompt.chunks.length) }
}
