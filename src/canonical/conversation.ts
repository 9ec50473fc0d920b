/**
 * The messages of a session's calls, as the tree that they are: what an agent sends with a call is what it sent with the
 * one before it, and a little more. Within one tree two messages are the same object when they say the same after the same
 * messages, and only then: `===` means "the same conversation up to here".
 *
 * What anybody knows of a message hangs on it (see {@link MessageNote}): it is found once, and goes with the message.
 */
import type { ChatMessage } from './messages.ts'

/** A message, and by its parents all messages before it. Nobody changes what it says. */
export class Message {
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

let noteCount = 0

/**
 * What one place of the program knows of messages, kept with each of them. To be made once, when the program starts, and not
 * for each session: each message has room for all notes that there are.
 */
export class MessageNote<Known> {
  readonly #place = noteCount++

  of(message: Message): Known | undefined {
    return message.notes[this.#place] as Known | undefined
  }

  put(message: Message, known: Known): Known {
    message.notes[this.#place] = known
    return known
  }
}

/** Of a message besides its text: the objects that it is made of, and what the notes keep of it. As measured. */
const NODE_BYTES = 1_000

/** The messages that follow on one. By their JSON, and by the objects that said it last, which saves writing them again. */
type Following = Map<string | ChatMessage, Message>

const followingOf = new MessageNote<Following>()
const jsonSoFar = new MessageNote<JsonSoFar>()
const met = new MessageNote<ChatMessage>()

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
    const pieces: Buffer[] = []
    for (let at = soFar; at !== undefined; at = at.piece.before) pieces.push(at.piece.upTo(at.end))
    return pieces.reverse()
  }

  #append(soFar: JsonSoFar | undefined, json: string): JsonSoFar {
    // Behind a message that another one follows already, a piece of its own begins.
    const piece = soFar?.piece.length === soFar?.end && soFar ? soFar.piece : new GrowingJson(soFar)
    const { capacity, length } = piece
    piece.append(json)
    this.#bytes += piece.capacity - capacity
    this.#encoded += piece.length - length
    return { piece, end: piece.length }
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

/** All messages up to one: the piece that the last one stands in, and by that the pieces before. */
interface JsonSoFar {
  readonly piece: GrowingJson
  /** The byte after the message. */
  readonly end: number
}

const MIN_CAPACITY = 1024
const COMMA = 0x2c

/** Text that grows at its end. What was given out of it stays what it is. */
class GrowingJson {
  readonly before: JsonSoFar | undefined
  #bytes: Buffer = Buffer.alloc(0)
  length = 0

  constructor(before: JsonSoFar | undefined) {
    this.before = before
  }

  get capacity(): number {
    return this.#bytes.length
  }

  append(json: string): void {
    const comma = this.length === 0 && this.before === undefined ? 0 : 1
    const end = this.length + comma + Buffer.byteLength(json)
    if (end > this.#bytes.length) this.#grow(Math.max(MIN_CAPACITY, end + (end >> 1)))
    if (comma === 1) this.#bytes[this.length] = COMMA
    this.#bytes.write(json, this.length + comma)
    this.length = end
  }

  upTo(end: number): Buffer {
    return this.#bytes.subarray(0, end)
  }

  #grow(capacity: number): void {
    // Not from the pool that small buffers share, and not filled with zeros first.
    const larger = Buffer.allocUnsafeSlow(capacity)
    this.#bytes.copy(larger, 0, 0, this.length)
    this.#bytes = larger
  }
}
