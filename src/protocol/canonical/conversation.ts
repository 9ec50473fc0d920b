/**
 * The messages of a session's requests, stored as a tree: an agent sends with a request what it sent with the one
 * before it, and a little more. Within one tree two messages are the same object if and only if their content is equal
 * and they follow the same messages, so `===` means "the same conversation up to here".
 *
 * Data derived from a message is attached to it (see {@link SideTable}): it is computed once and freed with the
 * message.
 */
import { hash } from 'node:crypto'
import { type Attachable, createAttachmentSlots, SideTable } from '../../base/side-table.ts'
import { appendJson, getChunks, type JsonList } from '../json/growable-json.ts'
import type { ChatMessage } from './messages.ts'

/** An immutable message. Its parents are all messages before it. */
export class Message implements Attachable {
  readonly parent: Message | undefined
  /** The number of messages up to and including this one. */
  readonly depth: number
  /** The attached values of side tables, each in its own slot. */
  readonly notes = createAttachmentSlots()
  /** At least one of the two is set. */
  #json: string | undefined
  #value: ChatMessage | undefined
  /** Whether the JSON is what JSON.stringify returns for the value. */
  readonly #isWritten: boolean

  constructor(parent: Message | undefined, json: string, value?: ChatMessage) {
    this.parent = parent
    this.depth = (parent?.depth ?? 0) + 1
    this.#json = json
    this.#value = value
    this.#isWritten = value !== undefined
  }

  /** The content as JSON text, serialized again if the text was released. */
  get json(): string {
    return this.#json ?? JSON.stringify(this.#value)
  }

  /** The content as an object. @throws SyntaxError if the JSON of a record is invalid */
  get value(): ChatMessage {
    this.#value ??= JSON.parse(this.#json!) as ChatMessage
    return this.#value
  }

  /** Releases the JSON and keeps the value. @returns whether there was JSON that can be serialized again */
  releaseJson(): boolean {
    if (!this.#isWritten || this.#json === undefined) return false
    this.#json = undefined
    return true
  }
}

/** The measured size of a message without its text: its objects and the slots of side tables. */
const NODE_BYTES = 1_000

/**
 * Returns the key that identifies a message's JSON among its siblings. Long texts are identified by 256 bits, which
 * makes collisions infeasible. No digest is an object of JSON.
 */
function getMessageKey(json: string): string {
  return json.length <= MAX_KEY_CHARS ? json : hash('sha256', json, 'base64')
}

const MAX_KEY_CHARS = 64

function isKey(sent: string | ChatMessage): boolean {
  return typeof sent === 'string' && sent.length <= MAX_KEY_CHARS
}

/**
 * The messages that follow a message, by their keys and by the texts or objects they were last read from, which avoids
 * serializing those again. Nearly always there is one.
 */
class ChildMessages {
  #first: Message | undefined
  #firstKey = ''
  #firstSent: string | ChatMessage | undefined
  #others: Map<string | ChatMessage, Message> | undefined

  get(sent: string | ChatMessage): Message | undefined {
    return sent === this.#firstSent || sent === this.#firstKey ? this.#first : this.#others?.get(sent)
  }

  add(key: string, message: Message): void {
    if (this.#first === undefined) [this.#first, this.#firstKey] = [message, key]
    else {
      this.#others ??= new Map()
      this.#others.set(key, message)
    }
  }

  /** Keeps one text or object per message: a client that repeats messages as new objects must not fill the memory. */
  rememberForm(message: Message, sent: string | ChatMessage): void {
    if (message === this.#first) {
      this.#firstSent = sent
      return
    }
    const before = lastSent.get(message)
    // A short text is its own key, by which the message is found.
    if (before !== undefined && !isKey(before)) this.#others!.delete(before)
    this.#others!.set(sent, message)
    lastSent.attach(message, sent)
  }
}

const followingOf = new SideTable<Message, ChildMessages>()
const jsonSoFar = new SideTable<Message, JsonList>()
/** The source of each message that is not the first child of its parent. */
const lastSent = new SideTable<Message, string | ChatMessage>()

export class MessageTree {
  readonly #first = new ChildMessages()
  /** The messages whose JSON was written during the latest request. */
  #withJson: Message[] = []
  #keepsJson = false
  #nodeBytes = 0
  #valueBytes = 0
  #jsonBytes = 0
  #written = 0
  #encoded = 0

  /** The approximate memory of the tree in bytes, without {@link valueBytes}. */
  get bytes(): number {
    return this.#nodeBytes + this.#jsonBytes
  }

  /** The memory of the messages' values in bytes. Parsed requests share it with the tree. */
  get valueBytes(): number {
    return this.#valueBytes
  }

  /** The number of messages serialized or compared as text so far: those that did not arrive as known objects. */
  get written(): number {
    return this.#written
  }

  /** The number of bytes of JSON written so far for {@link getJsonUpTo}. */
  get encoded(): number {
    return this.#encoded
  }

  /**
   * Adds a conversation and returns its last message, undefined if it is empty. A message that arrives as the same
   * object as before is not serialized again. The JSON of messages of earlier requests is released.
   * @throws RangeError for nesting that JSON cannot represent
   */
  addMessages(values: readonly ChatMessage[]): Message | undefined {
    this.releaseJson()
    let last: Message | undefined
    for (const value of values) {
      const following = this.#getChildren(last)
      last = following.get(value) ?? this.#addChild(following, last, value)
    }
    return last
  }

  /** Does the same as {@link addMessages} for messages that are JSON texts, as they are stored. */
  addMessageTexts(texts: readonly string[]): Message | undefined {
    let last: Message | undefined
    for (const text of texts) last = this.addMessageText(last, text)
    return last
  }

  /** Adds the message with the JSON `text` after `last`. @returns the message */
  addMessageText(last: Message | undefined, text: string): Message {
    const following = this.#getChildren(last)
    return following.get(text) ?? this.#addChild(following, last, text)
  }

  /** Stops the release of JSON: every later request needs it. */
  keepJson(): void {
    this.#keepsJson = true
  }

  /** Releases the JSON of messages whose values are kept: most requests need the JSON of new messages only. */
  releaseJson(): void {
    if (this.#keepsJson) return
    for (const message of this.#withJson) {
      const { json } = message
      if (message.releaseJson()) this.#jsonBytes -= boundTextBytes(json)
    }
    this.#withJson = []
  }

  /**
   * Returns all messages up to this one as JSON in UTF-8, separated by commas, in chunks that must not be modified.
   * Later requests append to them; earlier text is neither written nor copied again.
   */
  getJsonUpTo(last: Message): Buffer[] {
    const added = getMessagesBetween(undefined, last, (message) => jsonSoFar.get(message) !== undefined)
    const known = added.length === 0 ? last : added[0]!.parent
    let soFar = known && jsonSoFar.get(known)
    for (const message of added) soFar = jsonSoFar.attach(message, this.#append(soFar, message.json))
    return soFar === undefined ? [] : getChunks(soFar)
  }

  #append(soFar: JsonList | undefined, json: string): JsonList {
    const { capacity, length } = soFar?.chunk ?? { capacity: 0, length: 0 }
    const grown = appendJson(soFar, json)
    const isNew = grown.chunk !== soFar?.chunk
    this.#jsonBytes += grown.chunk.capacity - (isNew ? 0 : capacity)
    this.#encoded += grown.chunk.length - (isNew ? 0 : length)
    return grown
  }

  #getChildren(message: Message | undefined): ChildMessages {
    if (message === undefined) return this.#first
    return followingOf.get(message) ?? followingOf.attach(message, new ChildMessages())
  }

  #addChild(following: ChildMessages, parent: Message | undefined, sent: string | ChatMessage): Message {
    this.#written += 1
    const json = typeof sent === 'string' ? sent : JSON.stringify(sent)
    const key = getMessageKey(json)
    let message = following.get(key)
    if (message === undefined) {
      message = new Message(parent, json, typeof sent === 'string' ? undefined : sent)
      following.add(key, message)
      this.#withJson.push(message)
      this.#nodeBytes += NODE_BYTES
      this.#jsonBytes += boundTextBytes(json)
      if (typeof sent !== 'string') this.#valueBytes += boundTextBytes(json)
    }
    following.rememberForm(message, sent)
    return message
  }
}

/** Returns an upper bound of a text's memory in bytes: one character beyond Latin-1 makes all take two bytes. */
function boundTextBytes(text: string): number {
  return Buffer.byteLength(text) === text.length ? text.length : 2 * text.length
}

/** Returns the JSON of all messages up to this one, in order. @param from number of leading messages to omit */
export function getTextsUpTo(last: Message | undefined, from = 0): string[] {
  return getMessagesBetween(undefined, last, ({ depth }) => depth <= from).map(({ json }) => json)
}

/** Returns the message at `depth`, the last of the first `depth` messages; undefined if there is none. */
export function getAncestor(last: Message | undefined, depth: number): Message | undefined {
  let message = last
  while (message !== undefined && message.depth > depth) message = message.parent
  return message
}

/**
 * Returns the messages after `before` up to and including `last`, in order.
 * @param isKnown ends the walk towards the root: the first message it accepts and those before it are omitted
 */
export function getMessagesBetween(
  before: Message | undefined,
  last: Message | undefined,
  isKnown: (message: Message) => boolean = () => false,
): Message[] {
  const messages: Message[] = []
  for (
    let message = last;
    message !== undefined && message !== before && !isKnown(message);
    message = message.parent
  )
    messages.push(message)
  return messages.reverse()
}
