/** Reads from recorded requests how their conversations begin and continue. */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { computeDigest, computeMessageKey } from '../matching/message-key.ts'
import type { AgentRole } from './agent-role.ts'

/** The fields of a turn that determine its agent role. */
export type RoleInput = Pick<TurnRecord, 'status' | 'lastMessage' | 'tools' | 'annotations'>

/** The beginning of a conversation. The key of a missing part is empty. */
export interface Opening {
  readonly systemKey: string
  readonly toolsKey: string
  /** Key of the first message that is not a system message. */
  readonly firstKey: string
}

/**
 * A message at its position in a conversation. Leading system messages are excluded, because they may change during the
 * conversation, as tools may. Messages are equal if they differ only in what clients normalize.
 */
export class MessagePath {
  readonly parent: MessagePath | undefined
  readonly role: string
  /** Key of the first message of the conversation. */
  readonly firstKey: string
  /** The roles of the requests that end here, by system prompt and tools. */
  readonly lines = new Map<string, AgentRole>()
  readonly #next = new Map<string, MessagePath>()

  constructor(parent?: MessagePath, role = '', firstKey = '') {
    this.parent = parent
    this.role = role
    this.firstKey = firstKey
  }

  append({ key, role }: RoleMessage): MessagePath {
    let next = this.#next.get(key)
    if (next === undefined) {
      next = new MessagePath(this, role, this.firstKey || key)
      this.#next.set(key, next)
    }
    return next
  }
}

/** The parts of a message that determine agent roles. */
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
  readonly path: MessagePath
}

/** A reader of a session's requests. It reads each message once, however many requests contain it. */
export class RoleRequestReader {
  readonly #start: PathPosition = { systemKey: '', path: new MessagePath() }
  readonly #places = new Map<Message, PathPosition>()
  /** Messages by text: if an agent changes its first message with each request, all others recur. */
  readonly #messages = new Map<string, RoleMessage>()
  #latestTools = { text: '', key: '' }

  read({ lastMessage, tools }: Pick<RoleInput, 'lastMessage' | 'tools'>): RoleRequest {
    const added = getMessagesBetween(undefined, lastMessage, (message) => this.#places.has(message))
    for (const message of added) this.#places.set(message, this.#after(this.#locate(message.parent), message))
    const { systemKey, path } = this.#locate(lastMessage)
    const opening = { systemKey, toolsKey: this.#getToolsKey(tools), firstKey: path.firstKey }
    return { opening, last: path }
  }

  #locate(message: Message | undefined): PathPosition {
    return message === undefined ? this.#start : this.#places.get(message)!
  }

  #after({ systemKey, path }: PathPosition, { json }: Message): PathPosition {
    const message = this.#messages.get(json) ?? readMessage(json)
    this.#messages.set(json, message)
    const { role, key } = message
    const isSystem = path === this.#start.path && (role === 'system' || role === 'developer')
    if (!isSystem) return { systemKey, path: path.append(message) }
    return { systemKey: systemKey === '' ? key : `${systemKey} ${key}`, path }
  }

  /** Returns a short key, because each request keeps it: an agent's tools have 100 KB. */
  #getToolsKey(tools: string | null): string {
    if (tools === null || tools === '[]') return ''
    if (tools !== this.#latestTools.text) this.#latestTools = { text: tools, key: computeDigest(tools) }
    return this.#latestTools.key
  }
}

function readMessage(text: string): RoleMessage {
  const message = JSON.parse(text) as ChatMessage
  try {
    return { key: computeMessageKey(message).digest, role: message.role }
  } catch {
    // The message is nested too deeply to compare by value.
    return { key: computeDigest(text), role: message.role }
  }
}
