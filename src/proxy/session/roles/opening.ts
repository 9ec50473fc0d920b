/**
 * Reads the data from recorded requests by which agent roles are inferred: the opening of the conversation, and the
 * messages as a tree.
 */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { computeDigest, computeMessageKey } from '../matching/message-key.ts'
import type { AgentRole } from './agent-role.ts'

/** The fields of a turn that determine its agent role. */
export type RoleInput = Pick<TurnRecord, 'status' | 'lastMessage' | 'tools' | 'annotations'>

/** The keys of the parts of a conversation's beginning. The key of an absent part is empty. */
export interface OpeningKeys {
  readonly systemKey: string
  readonly toolsKey: string
  /** The key of the first message that is not a system message. */
  readonly firstKey: string
}

/**
 * A message at its position in a tree of conversations. Leading system messages are not part of the tree, because they
 * may change during a conversation, as tools may. Messages are equal if they differ only in what clients normalize.
 */
export class MessagePath {
  readonly parent: MessagePath | undefined
  readonly role: string
  /** The key of the first message of the conversation. */
  readonly firstKey: string
  /** The roles of the requests whose last message this is, by their system prompt and tools. */
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

/** The key of a message, by which it is compared, and its role. */
interface RoleMessage {
  readonly key: string
  readonly role: string
}

/** The opening and the last message of a request. */
export interface RoleRequest {
  readonly opening: OpeningKeys
  readonly last: MessagePath
}

/** A message in the tree, with the key of the system messages before it. */
interface PathPosition {
  readonly systemKey: string
  readonly path: MessagePath
}

/** A reader of a session's requests. It reads each message once, even if many requests contain it. */
export class RoleRequestReader {
  readonly #start: PathPosition = { systemKey: '', path: new MessagePath() }
  readonly #places = new Map<Message, PathPosition>()
  /** The parsed messages by their JSON: an agent that changes its first message in each request repeats all others. */
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

  /** Returns a digest of the tools, because every request retains the key, and tools may have 100 KB of text. */
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
    // A message that is nested too deeply to be compared by value is compared by its text.
    return { key: computeDigest(text), role: message.role }
  }
}
