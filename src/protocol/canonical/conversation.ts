/**
 * The messages of a session's requests, stored as a tree, because a request usually repeats the messages of the request
 * before it and adds a few. Within one tree two messages are the same object if and only if their content is equal and
 * they follow the same messages, so `===` means "the same conversation up to here".
 *
 * Data derived from a message is attached to it (see {@link SideTable}): it is computed once and freed with the
 * message.
 */
import { hash } from 'node:crypto'
import { type Attachable, createAttachmentSlots, SideTable } from '../../base/side-table.ts'
import { appendJson, getChunks, type JsonList } from '../json/growable-json.ts'
import type { ChatMessage } from './messages.ts'

/** An immutable message. Its ancestors are the messages before it in the conversation. */
export class Message implements Attachable {
  readonly parent: Message | undefined
  /** The number of messages up to and including this one. */
  readonly depth: number
  /** The attached values of side tables, each in its own slot. */
  readonly notes = createAttachmentSlots()
  /** At least one of JSON and value is set. */
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

  /** The content as an object. @throws SyntaxError if the JSON comes from the store and is invalid */
  get value(): ChatMessage {
    this.#value ??= JSON.parse(this.#json!) as ChatMessage
    return this.#value
  }

  /** Releases the JSON if it can be serialized again from the value. @returns whether it was released */
  releaseJson(): boolean {
    if (!this.#isWritten || this.#json === undefined) return false
    this.#json = undefined
    return true
  }
}

/** The measured size of a message in bytes, without its text: its objects and the slots of side tables. */
const NODE_BYTES = 1_000

/**
 * Returns the key that identifies a message's JSON among its siblings: the JSON itself if it is short, otherwise its
 * SHA-256 digest. A digest cannot equal a short text, because base64 does not begin with `{`.
 */
function getMessageKey(json: string): string {
  return json.length <= MAX_KEY_CHARS ? json : hash('sha256', json, 'base64')
}

const MAX_KEY_CHARS = 64

function isKey(sent: string | ChatMessage): boolean {
  return typeof sent === 'string' && sent.length <= MAX_KEY_CHARS
}

/**
 * The children of a message, by key, and by the text or object from which each was last added, so that a repeated
 * object is not serialized again. There is nearly always one child, which needs no map.
 */
class ChildMessages {
  #first: Message | undefined
  #firstKey = ''
  #firstSource: string | ChatMessage | undefined
  #others: Map<string | ChatMessage, Message> | undefined

  get(sent: string | ChatMessage): Message | undefined {
    return sent === this.#firstSource || sent === this.#firstKey ? this.#first : this.#others?.get(sent)
  }

  add(key: string, message: Message): void {
    if (this.#first === undefined) [this.#first, this.#firstKey] = [message, key]
    else {
      this.#others ??= new Map()
      this.#others.set(key, message)
    }
  }

  /**
   * Stores the latest source of a message. Earlier ones are removed: a client that repeats messages as new objects must
   * not fill the memory.
   */
  rememberSource(message: Message, sent: string | ChatMessage): void {
    if (message === this.#first) {
      this.#firstSource = sent
      return
    }
    const before = latestSource.get(message)
    // A short text is also the key of its message, so it is not removed.
    if (before !== undefined && !isKey(before)) this.#others!.delete(before)
    this.#others!.set(sent, message)
    latestSource.attach(message, sent)
  }
}

const childTable = new SideTable<Message, ChildMessages>()
const jsonSoFar = new SideTable<Message, JsonList>()
/** The latest source of each message that is not the first child of its parent. */
const latestSource = new SideTable<Message, string | ChatMessage>()

export class MessageTree {
  readonly #first = new ChildMessages()
  /** The messages whose JSON was added since {@link releaseJson} was last invoked. */
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

  /** The number of messages serialized or compared as text so far: those that did not arrive as objects added before. */
  get written(): number {
    return this.#written
  }

  /** The number of bytes of JSON that {@link getJsonUpTo} has appended so far. */
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
      const children = this.#getChildren(last)
      last = children.get(value) ?? this.#addChild(children, last, value)
    }
    return last
  }

  /** Adds messages as {@link addMessages} does, from JSON texts as the store has them. It releases no JSON. */
  addMessageTexts(texts: readonly string[]): Message | undefined {
    let last: Message | undefined
    for (const text of texts) last = this.addMessageText(last, text)
    return last
  }

  /** Adds the message with the JSON `text` after `last`. @returns the message */
  addMessageText(last: Message | undefined, text: string): Message {
    const children = this.#getChildren(last)
    return children.get(text) ?? this.#addChild(children, last, text)
  }

  /** Stops the release of JSON, because every later request needs it. */
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
   * Later requests append to the chunks; earlier messages are not serialized again.
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
    return childTable.get(message) ?? childTable.attach(message, new ChildMessages())
  }

  #addChild(children: ChildMessages, parent: Message | undefined, sent: string | ChatMessage): Message {
    this.#written += 1
    const json = typeof sent === 'string' ? sent : JSON.stringify(sent)
    const key = getMessageKey(json)
    let message = children.get(key)
    if (message === undefined) {
      message = new Message(parent, json, typeof sent === 'string' ? undefined : sent)
      children.add(key, message)
      this.#withJson.push(message)
      this.#nodeBytes += NODE_BYTES
      this.#jsonBytes += boundTextBytes(json)
      if (typeof sent !== 'string') this.#valueBytes += boundTextBytes(json)
    }
    children.rememberSource(message, sent)
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
