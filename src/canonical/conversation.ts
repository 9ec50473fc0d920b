/**
 * The messages of a session's calls, as the tree that they are: what an agent sends with a call is what it sent with the
 * one before it, and a little more. Within one tree two messages are the same object when they say the same after the same
 * messages, and only then: `===` means "the same conversation up to here".
 *
 * What anybody knows of a message hangs on it (see {@link Note}): it is found once, and goes with the message.
 */
import { type JsonSoFar, jsonAfter, piecesOf } from './growing-json.ts'
import type { ChatMessage } from './messages.ts'
import { Note, type Noted } from './note.ts'

/** A message, and by its parents all messages before it. Nobody changes what it says. */
export class Message implements Noted {
  readonly parent: Message | undefined
  /** How many messages there are up to this one; 1 of the first. */
  readonly depth: number
  /** What it says, as JSON text. */
  readonly json: string
  /** What the notes keep, each in a place of its own. */
  readonly notes: unknown[] = []
  #value: ChatMessage | undefined

  constructor(parent: Message | undefined, json: string, value?: ChatMessage) {
    this.parent = parent
    this.depth = (parent?.depth ?? 0) + 1
    this.json = json
    this.#value = value
  }

  /** @throws SyntaxError if the JSON of a record is none */
  get value(): ChatMessage {
    this.#value ??= JSON.parse(this.json) as ChatMessage
    return this.#value
  }
}

/** Of a message besides its text: the objects that it is made of, and what the notes keep of it. As measured. */
const NODE_BYTES = 1_000

/** The messages that follow on one. By their JSON, and by the objects that said it last, which saves writing them again. */
type Following = Map<string | ChatMessage, Message>

const followingOf = new Note<Message, Following>()
const jsonSoFar = new Note<Message, JsonSoFar>()
const met = new Note<Message, ChatMessage>()

export class MessageTree {
  readonly #first: Following = new Map()
  #bytes = 0
  #written = 0
  #encoded = 0

  /** What it keeps in memory, more or less. */
  get bytes(): number {
    return this.#bytes
  }

  /** How many messages have been written as JSON or compared as text so far: those that did not come as known objects. */
  get written(): number {
    return this.#written
  }

  /** How many bytes of JSON have been written so far for {@link jsonUpTo}. */
  get encoded(): number {
    return this.#encoded
  }

  /**
   * The last message of a conversation; undefined for an empty one. A message that comes as the very object of before
   * is not written as JSON again.
   * @throws RangeError for nesting that JSON cannot carry
   */
  lastOf(values: readonly ChatMessage[]): Message | undefined {
    let last: Message | undefined
    for (const value of values) {
      const following = this.#after(last)
      last = following.get(value) ?? this.#say(following, last, JSON.stringify(value), value)
    }
    return last
  }

  /** The same of messages that are JSON texts, as they are on record. */
  lastOfTexts(texts: readonly string[]): Message | undefined {
    let last: Message | undefined
    for (const text of texts) {
      const following = this.#after(last)
      last = following.get(text) ?? this.#say(following, last, text)
    }
    return last
  }

  /**
   * All messages up to this one, as JSON with commas between them, in UTF-8, in pieces. Not to be changed: what later
   * calls add is written behind it, and the rest is neither written nor copied again.
   */
  jsonUpTo(last: Message): Buffer[] {
    const added = messagesBetween(undefined, last, (message) => jsonSoFar.of(message) !== undefined)
    const known = added.length === 0 ? last : added[0]!.parent
    let soFar = known && jsonSoFar.of(known)
    for (const message of added) soFar = jsonSoFar.put(message, this.#append(soFar, message.json))
    return soFar === undefined ? [] : piecesOf(soFar)
  }

  #append(soFar: JsonSoFar | undefined, json: string): JsonSoFar {
    const { capacity, length } = soFar?.piece ?? { capacity: 0, length: 0 }
    const grown = jsonAfter(soFar, json)
    const isNew = grown.piece !== soFar?.piece
    this.#bytes += grown.piece.capacity - (isNew ? 0 : capacity)
    this.#encoded += grown.piece.length - (isNew ? 0 : length)
    return grown
  }

  #after(message: Message | undefined): Following {
    if (message === undefined) return this.#first
    return followingOf.of(message) ?? followingOf.put(message, new Map())
  }

  #say(following: Following, parent: Message | undefined, json: string, value?: ChatMessage): Message {
    this.#written += 1
    let message = following.get(json)
    if (message === undefined) {
      message = new Message(parent, json, value)
      following.set(json, message)
      this.#bytes += textBytes(json) + NODE_BYTES
    }
    // One object per message: who says the same again and again with new ones must not fill the memory.
    if (value !== undefined) this.#meet(following, message, value)
    return message
  }

  #meet(following: Following, message: Message, value: ChatMessage): void {
    const before = met.of(message)
    if (before !== undefined) following.delete(before)
    following.set(value, message)
    met.put(message, value)
  }
}

/** What a text takes in memory, or more: a text of one letter beyond Latin-1 has two bytes for each. */
function textBytes(text: string): number {
  return Buffer.byteLength(text) === text.length ? text.length : 2 * text.length
}

/**
 * The messages from behind one up to another that goes on from it, in order.
 * @param isKnown ends the way up as well: nothing from there on is among them
 */
export function messagesBetween(
  before: Message | undefined,
  last: Message | undefined,
  isKnown: (message: Message) => boolean = () => false,
): Message[] {
  const messages: Message[] = []
  for (let at = last; at !== undefined && at !== before && !isKnown(at); at = at.parent) messages.push(at)
  return messages.reverse()
}
