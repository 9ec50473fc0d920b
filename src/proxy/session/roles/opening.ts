/** What recorded calls show of the conversations that they belong to. */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { computeDigest, messageKey } from '../matching/message-key.ts'
import type { AgentRole } from './agent-role.ts'

/** What of a turn its line is found by. */
export type RoleInput = Pick<TurnRecord, 'status' | 'lastMessage' | 'tools' | 'annotations'>

/** How a conversation begins. Of a part that is missing the key is empty. */
export interface Opening {
  readonly systemKey: string
  readonly toolsKey: string
  /** Of the first message that is not the system's. */
  readonly firstKey: string
}

/**
 * A message of a conversation after those before it, without what the system says at first: that may change mid-way, as
 * tools may. Two are the same if they differ in nothing but what clients tidy.
 */
export class MessagePath {
  readonly parent: MessagePath | undefined
  readonly role: string
  /** Of the first message of the conversation. */
  readonly firstKey: string
  /** The lines of the calls that end here, by who is spoken to: system prompt and tools. */
  readonly lines = new Map<string, AgentRole>()
  readonly #next = new Map<string, MessagePath>()

  constructor(parent?: MessagePath, role = '', firstKey = '') {
    this.parent = parent
    this.role = role
    this.firstKey = firstKey
  }

  after({ key, role }: RoleMessage): MessagePath {
    let next = this.#next.get(key)
    if (next === undefined) {
      next = new MessagePath(this, role, this.firstKey || key)
      this.#next.set(key, next)
    }
    return next
  }
}

/** A message as far as lines look at it. */
interface RoleMessage {
  readonly key: string
  readonly role: string
}

export interface RoleRequest {
  readonly opening: Opening
  readonly last: MessagePath
}

interface PathPosition {
  readonly systemKey: string
  readonly said: MessagePath
}

/** Reads the calls of one reading; a message is read once, however many calls go through it. */
export class RoleRequestReader {
  readonly #start: PathPosition = { systemKey: '', said: new MessagePath() }
  readonly #places = new Map<Message, PathPosition>()
  /** By their texts: of an agent that changes its first message with each call, all others are there again. */
  readonly #messages = new Map<string, RoleMessage>()
  #latestTools = { text: '', key: '' }

  read({ lastMessage, tools }: Pick<RoleInput, 'lastMessage' | 'tools'>): RoleRequest {
    const added = getMessagesBetween(undefined, lastMessage, (message) => this.#places.has(message))
    for (const message of added) this.#places.set(message, this.#after(this.#locate(message.parent), message))
    const { systemKey, said } = this.#locate(lastMessage)
    const opening = { systemKey, toolsKey: this.#getToolsKey(tools), firstKey: said.firstKey }
    return { opening, last: said }
  }

  #locate(message: Message | undefined): PathPosition {
    return message === undefined ? this.#start : this.#places.get(message)!
  }

  #after({ systemKey, said }: PathPosition, { json }: Message): PathPosition {
    const message = this.#messages.get(json) ?? readMessage(json)
    this.#messages.set(json, message)
    const { role, key } = message
    const isSystem = said === this.#start.said && (role === 'system' || role === 'developer')
    if (!isSystem) return { systemKey, said: said.after(message) }
    return { systemKey: systemKey === '' ? key : `${systemKey} ${key}`, said }
  }

  /** Short, for it is kept with each call: an agent's tools have 100 KB. */
  #getToolsKey(tools: string | null): string {
    if (tools === null || tools === '[]') return ''
    if (tools !== this.#latestTools.text) this.#latestTools = { text: tools, key: computeDigest(tools) }
    return this.#latestTools.key
  }
}

function readMessage(text: string): RoleMessage {
  const message = JSON.parse(text) as ChatMessage
  try {
    return { key: messageKey(message).digest, role: message.role }
  } catch {
    // Nested too deeply to be compared by value.
    return { key: computeDigest(text), role: message.role }
  }
}
