/**
 * The messages of a session's calls, as the tree that they are: what an agent sends with a call is what it sent with the
 * one before it, and a little more. Within one tree two messages are the same object when they say the same after the same
 * messages, and only then: `===` means "the same conversation up to here".
 *
 * What anybody knows of a message hangs on it (see {@link SideTable}): it is found once, and goes with the message.
 */
import { hash } from 'node:crypto'
import { type Attachable, createAttachmentSlots, SideTable } from '../../base/side-table.ts'
import { appendJson, getChunks, type JsonList } from '../json/growable-json.ts'
import type { ChatMessage } from './messages.ts'

/** A message, and by its parents all messages before it. Nobody changes what it says. */
export class Message implements Attachable {
  readonly parent: Message | undefined
  /** How many messages there are up to this one; 1 of the first. */
  readonly depth: number
  /** What the notes keep, each in a place of its own. */
  readonly notes = createAttachmentSlots()
  /** At least one of the two is there. */
  #json: string | undefined
  #value: ChatMessage | undefined
  /** The JSON is what JavaScript makes of the value. */
  readonly #isWritten: boolean

  constructor(parent: Message | undefined, json: string, value?: ChatMessage) {
    this.parent = parent
    this.depth = (parent?.depth ?? 0) + 1
    this.#json = json
    this.#value = value
    this.#isWritten = value !== undefined
  }

  /** What it says, as JSON text. Written again where it was let go of. */
  get json(): string {
    return this.#json ?? JSON.stringify(this.#value)
  }

  /** @throws SyntaxError if the JSON of a record is none */
  get value(): ChatMessage {
    this.#value ??= JSON.parse(this.#json!) as ChatMessage
    return this.#value
  }

  /** Keeps the value alone. @returns whether there was JSON that can be written again */
  letGoOfJson(): boolean {
    if (!this.#isWritten || this.#json === undefined) return false
    this.#json = undefined
    return true
  }
}

/** Of a message besides its text: the objects that it is made of, and what the notes keep of it. As measured. */
const NODE_BYTES = 1_000

/**
 * What tells the JSON of two messages apart. Long ones are told by 256 bits, so that nobody finds two with the same.
 * No digest is an object of JSON.
 */
function getMessageKey(json: string): string {
  return json.length <= MAX_KEY_CHARS ? json : hash('sha256', json, 'base64')
}

const MAX_KEY_CHARS = 64

function isKey(said: string | ChatMessage): boolean {
  return typeof said === 'string' && said.length <= MAX_KEY_CHARS
}

/**
 * The messages that follow on one: by their keys, and by the texts or objects that said them last, which saves writing
 * them again. Nearly always that is one message.
 */
class ChildMessages {
  #first: Message | undefined
  #firstKey = ''
  #firstSaid: string | ChatMessage | undefined
  #others: Map<string | ChatMessage, Message> | undefined

  get(said: string | ChatMessage): Message | undefined {
    return said === this.#firstSaid || said === this.#firstKey ? this.#first : this.#others?.get(said)
  }

  add(key: string, message: Message): void {
    if (this.#first === undefined) [this.#first, this.#firstKey] = [message, key]
    else {
      this.#others ??= new Map()
      this.#others.set(key, message)
    }
  }

  /** One text or object per message: who says the same again and again with new ones must not fill the memory. */
  meet(message: Message, said: string | ChatMessage): void {
    if (message === this.#first) {
      this.#firstSaid = said
      return
    }
    const before = lastSaid.of(message)
    // A short text is its own key, by which the message is found.
    if (before !== undefined && !isKey(before)) this.#others!.delete(before)
    this.#others!.set(said, message)
    lastSaid.put(message, said)
  }
}

const followingOf = new SideTable<Message, ChildMessages>()
const jsonSoFar = new SideTable<Message, JsonList>()
/** Of those that are not the first to follow on another. */
const lastSaid = new SideTable<Message, string | ChatMessage>()

export class MessageTree {
  readonly #first = new ChildMessages()
  /** Those that have their JSON since the latest call. */
  #withJson: Message[] = []
  #keepsJson = false
  #nodeBytes = 0
  #valueBytes = 0
  #jsonBytes = 0
  #written = 0
  #encoded = 0

  /** What it keeps in memory, more or less, but for {@link valueBytes}. */
  get bytes(): number {
    return this.#nodeBytes + this.#jsonBytes
  }

  /** What the values of its messages keep in memory. Requests that were read share it with the tree. */
  get valueBytes(): number {
    return this.#valueBytes
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
   * is not written as JSON again. The JSON of those of earlier calls is let go of.
   * @throws RangeError for nesting that JSON cannot carry
   */
  addMessages(values: readonly ChatMessage[]): Message | undefined {
    this.letGoOfJson()
    let last: Message | undefined
    for (const value of values) {
      const following = this.#after(last)
      last = following.get(value) ?? this.#say(following, last, value)
    }
    return last
  }

  /** The same of messages that are JSON texts, as they are on record. */
  addMessageTexts(texts: readonly string[]): Message | undefined {
    let last: Message | undefined
    for (const text of texts) last = this.follow(last, text)
    return last
  }

  /** @returns the message that says `text`, as JSON, after `last` */
  follow(last: Message | undefined, text: string): Message {
    const following = this.#after(last)
    return following.get(text) ?? this.#say(following, last, text)
  }

  /** From now on, the JSON of messages is not let go of: it is needed with each call. */
  keepJson(): void {
    this.#keepsJson = true
  }

  /** Of messages whose values are there: most calls need the JSON of new messages only. */
  letGoOfJson(): void {
    if (this.#keepsJson) return
    for (const message of this.#withJson) {
      const { json } = message
      if (message.letGoOfJson()) this.#jsonBytes -= textBytes(json)
    }
    this.#withJson = []
  }

  /**
   * All messages up to this one, as JSON with commas between them, in UTF-8, in pieces. Not to be changed: what later
   * calls add is written behind it, and the rest is neither written nor copied again.
   */
  jsonUpTo(last: Message): Buffer[] {
    const added = getMessagesBetween(undefined, last, (message) => jsonSoFar.of(message) !== undefined)
    const known = added.length === 0 ? last : added[0]!.parent
    let soFar = known && jsonSoFar.of(known)
    for (const message of added) soFar = jsonSoFar.put(message, this.#append(soFar, message.json))
    return soFar === undefined ? [] : getChunks(soFar)
  }

  #append(soFar: JsonList | undefined, json: string): JsonList {
    const { capacity, length } = soFar?.piece ?? { capacity: 0, length: 0 }
    const grown = appendJson(soFar, json)
    const isNew = grown.piece !== soFar?.piece
    this.#jsonBytes += grown.piece.capacity - (isNew ? 0 : capacity)
    this.#encoded += grown.piece.length - (isNew ? 0 : length)
    return grown
  }

  #after(message: Message | undefined): ChildMessages {
    if (message === undefined) return this.#first
    return followingOf.of(message) ?? followingOf.put(message, new ChildMessages())
  }

  #say(following: ChildMessages, parent: Message | undefined, said: string | ChatMessage): Message {
    this.#written += 1
    const json = typeof said === 'string' ? said : JSON.stringify(said)
    const key = getMessageKey(json)
    let message = following.get(key)
    if (message === undefined) {
      message = new Message(parent, json, typeof said === 'string' ? undefined : said)
      following.add(key, message)
      this.#withJson.push(message)
      this.#nodeBytes += NODE_BYTES
      this.#jsonBytes += textBytes(json)
      if (typeof said !== 'string') this.#valueBytes += textBytes(json)
    }
    following.meet(message, said)
    return message
  }
}

/** What a text takes in memory, or more: a text of one letter beyond Latin-1 has two bytes for each. */
function textBytes(text: string): number {
  return Buffer.byteLength(text) === text.length ? text.length : 2 * text.length
}

/** The JSON of all messages up to this one, in order. @param from how many of the first to leave out */
export function getTextsUpTo(last: Message | undefined, from = 0): string[] {
  return getMessagesBetween(undefined, last, ({ depth }) => depth <= from).map(({ json }) => json)
}

/** The first `depth` messages of a conversation; undefined when that is none. */
export function getAncestor(last: Message | undefined, depth: number): Message | undefined {
  let at = last
  while (at !== undefined && at.depth > depth) at = at.parent
  return at
}

/**
 * The messages from behind one up to another that goes on from it, in order.
 * @param isKnown ends the way up as well: nothing from there on is among them
 */
export function getMessagesBetween(
  before: Message | undefined,
  last: Message | undefined,
  isKnown: (message: Message) => boolean = () => false,
): Message[] {
  const messages: Message[] = []
  for (let at = last; at !== undefined && at !== before && !isKnown(at); at = at.parent) messages.push(at)
  return messages.reverse()
}
