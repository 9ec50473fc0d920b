/** What recorded calls show of the conversations that they belong to. */
import { getMessagesBetween, type Message } from '../../../protocol/canonical/conversation.ts'
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { digestOf, messageKey } from '../matching/message-key.ts'
import type { Line } from './line.ts'

/** What of a turn its line is found by. */
export type LinedTurn = Pick<TurnRecord, 'status' | 'lastMessage' | 'tools' | 'annotations'>

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
export class Said {
  readonly parent: Said | undefined
  readonly role: string
  /** Of the first message of the conversation. */
  readonly firstKey: string
  /** The lines of the calls that end here, by who is spoken to: system prompt and tools. */
  readonly lines = new Map<string, Line>()
  readonly #next = new Map<string, Said>()

  constructor(parent?: Said, role = '', firstKey = '') {
    this.parent = parent
    this.role = role
    this.firstKey = firstKey
  }

  after({ key, role }: LinedMessage): Said {
    let next = this.#next.get(key)
    if (next === undefined) {
      next = new Said(this, role, this.firstKey || key)
      this.#next.set(key, next)
    }
    return next
  }
}

/** A message as far as lines look at it. */
interface LinedMessage {
  readonly key: string
  readonly role: string
}

export interface RecordedCall {
  readonly opening: Opening
  readonly last: Said
}

interface SaidPlace {
  readonly systemKey: string
  readonly said: Said
}

/** Reads the calls of one reading; a message is read once, however many calls go through it. */
export class RecordedCallReader {
  readonly #start: SaidPlace = { systemKey: '', said: new Said() }
  readonly #places = new Map<Message, SaidPlace>()
  /** By their texts: of an agent that changes its first message with each call, all others are there again. */
  readonly #messages = new Map<string, LinedMessage>()
  #latestTools = { text: '', key: '' }

  read({ lastMessage, tools }: Pick<LinedTurn, 'lastMessage' | 'tools'>): RecordedCall {
    const added = getMessagesBetween(undefined, lastMessage, (message) => this.#places.has(message))
    for (const message of added)
      this.#places.set(message, this.#after(this.#placeOf(message.parent), message))
    const { systemKey, said } = this.#placeOf(lastMessage)
    const opening = { systemKey, toolsKey: this.#toolsKeyOf(tools), firstKey: said.firstKey }
    return { opening, last: said }
  }

  #placeOf(message: Message | undefined): SaidPlace {
    return message === undefined ? this.#start : this.#places.get(message)!
  }

  #after({ systemKey, said }: SaidPlace, { json }: Message): SaidPlace {
    const message = this.#messages.get(json) ?? readMessage(json)
    this.#messages.set(json, message)
    const { role, key } = message
    const isSystem = said === this.#start.said && (role === 'system' || role === 'developer')
    if (!isSystem) return { systemKey, said: said.after(message) }
    return { systemKey: systemKey === '' ? key : `${systemKey} ${key}`, said }
  }

  /** Short, for it is kept with each call: an agent's tools have 100 KB. */
  #toolsKeyOf(tools: string | null): string {
    if (tools === null || tools === '[]') return ''
    if (tools !== this.#latestTools.text) this.#latestTools = { text: tools, key: digestOf(tools) }
    return this.#latestTools.key
  }
}

function readMessage(text: string): LinedMessage {
  const message = JSON.parse(text) as ChatMessage
  try {
    return { key: messageKey(message).digest, role: message.role }
  } catch {
    // Nested too deeply to be compared by value.
    return { key: digestOf(text), role: message.role }
  }
}
