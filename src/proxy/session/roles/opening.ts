/** What a recorded call shows of the conversation it belongs to. */
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { TurnRecord } from '../../store/port/turn-store.ts'
import { digestOf, messageKey } from '../matching/message-key.ts'

/** What of a turn its line is found by. */
export type LinedTurn = Pick<TurnRecord, 'status' | 'requestMessages' | 'tools' | 'annotations'>

/** A message as far as lines look at it; two have the same key if they differ in nothing but what clients tidy. */
export interface LinedMessage {
  /** As it is on record. */
  readonly text: string
  readonly key: string
  readonly role: string
}

/** How a conversation begins. Of a part that is missing the key is empty. */
export interface Opening {
  readonly systemKey: string
  readonly toolsKey: string
  /** Of the first message that is not the system's. */
  readonly firstKey: string
}

export interface RecordedCall {
  readonly opening: Opening
  /** The messages after the system's first ones. */
  readonly talk: readonly LinedMessage[]
}

/** Reads calls; a text is parsed once, however many calls of the session repeat it. */
export class CallReader {
  readonly #messages = new Map<string, LinedMessage>()
  /** Of the latest call, whose messages the next one mostly repeats: to compare them is faster than to look them up. */
  #latest: readonly LinedMessage[] = []
  #latestTools = { text: '', key: '' }

  read({ requestMessages, tools }: Pick<LinedTurn, 'requestMessages' | 'tools'>): RecordedCall {
    const messages = this.#read(requestMessages)
    const talkStart = messages.findIndex(({ role }) => role !== 'system' && role !== 'developer')
    const talk = talkStart === -1 ? [] : messages.slice(talkStart)
    const system = messages.slice(0, messages.length - talk.length)
    const opening = {
      systemKey: system.map(({ key }) => key).join(' '),
      toolsKey: this.#toolsKeyOf(tools),
      firstKey: talk[0]?.key ?? '',
    }
    return { opening, talk }
  }

  /** Short, for it is kept with each call: an agent's tools have 100 KB. */
  #toolsKeyOf(tools: string | null): string {
    if (tools === null || tools === '[]') return ''
    if (tools !== this.#latestTools.text) this.#latestTools = { text: tools, key: digestOf(tools) }
    return this.#latestTools.key
  }

  #read(texts: readonly string[]): LinedMessage[] {
    const difference = this.#latest.findIndex(({ text }, place) => text !== texts[place])
    const messages = difference === -1 ? [...this.#latest] : this.#latest.slice(0, difference)
    for (const text of texts.slice(messages.length)) messages.push(this.#message(text))
    this.#latest = messages
    return messages
  }

  #message(text: string): LinedMessage {
    const known = this.#messages.get(text)
    if (known !== undefined) return known
    const message = readMessage(text)
    this.#messages.set(text, message)
    return message
  }
}

function readMessage(text: string): LinedMessage {
  const message = JSON.parse(text) as ChatMessage
  try {
    return { text, key: messageKey(message).digest, role: message.role }
  } catch {
    // Nested too deeply to be compared by value.
    return { text, key: digestOf(text), role: message.role }
  }
}
