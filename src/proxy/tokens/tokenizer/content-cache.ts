/**
 * A cache of token ids by content, shared by all sessions. A tokenizer splits every text at its special tokens first,
 * so the ids between two of them depend only on the text there. System prompts and tools, the tasks of other samples in
 * a group, and everything before a branch or a restart are found in the cache instead of being tokenized again.
 */
import { hash } from 'node:crypto'
import { LruCache } from '../../../base/lru-cache.ts'
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { concatIds } from '../../../protocol/token-ids/token-ids.ts'
import { type AddedToken, AddedTokenFinder } from './added-tokens.ts'
import { cutAtSpaces } from './safe-cuts.ts'

/** The default cache size: 16 million ids. */
const MAX_BYTES = 64 * 1024 * 1024
/** Shorter segments are looked up together with adjacent ones. */
const MIN_CHARS = 256
/**
 * The number of segments of a prompt that are tokenized concurrently. All segments of a long prompt would add hundreds
 * of entries to the encoder's queue.
 */
const PIECES_AT_ONCE = 4
/**
 * The number of characters to tokenize before yielding to the event loop: less than a millisecond of work for a
 * synchronous encoder.
 */
const STRETCH_CHARS = 32 * 1024
/** The approximate size of an entry's key and map slot. */
const ENTRY_BYTES = 200

/** Encodes a segment of a prompt. @param promptChars length of the complete prompt */
type SegmentEncoding = (text: string, promptChars: number) => Promise<ArrayLike<number>>

interface ContentCacheOptions {
  /** The maximum size. Default: 64 MiB. */
  maxBytes?: number
  /** The result of `mayCutAtSpaces`: whether parts of long texts are cached separately. Default: no. */
  cutsAtSpaces?: boolean
}

export class ContentCache {
  readonly #encode: SegmentEncoding
  readonly #finder: AddedTokenFinder | undefined
  readonly #boundaries: ReadonlySet<number>
  readonly #cutsAtSpaces: boolean
  /** The ids by hash of the text. */
  readonly #known: LruCache<string, Int32Array>
  /** Encodings in progress, shared by sessions that begin with the same prompt. */
  readonly #underWay = new Map<string, Promise<Int32Array>>()

  constructor(
    encode: SegmentEncoding,
    addedTokens: readonly AddedToken[],
    { maxBytes = MAX_BYTES, cutsAtSpaces = false }: ContentCacheOptions = {},
  ) {
    this.#encode = encode
    this.#known = new LruCache(maxBytes, ({ byteLength }) => byteLength + ENTRY_BYTES)
    this.#cutsAtSpaces = cutsAtSpaces
    // Tokens that are searched for in normalized text are found later, in the text between the others.
    const early = addedTokens.filter(({ normalized }) => !normalized)
    const isPlain = ({ special, lstrip, rstrip }: AddedToken) => special === true && !lstrip && !rstrip
    this.#boundaries = new Set(early.filter(isPlain).map(({ id }) => id))
    // A match of a `single_word` token depends on adjacent characters, not only on its position.
    const isClear = early.every(({ single_word }) => !single_word) && this.#boundaries.size > 0
    this.#finder = isClear
      ? new AddedTokenFinder(new Map(early.map(({ content, id }) => [content, id])))
      : undefined
  }

  /** Clears the cache, after its encoder has returned wrong ids. */
  clear(): void {
    this.#known.clear()
    this.#underWay.clear()
  }

  /** Returns the same ids as encoding the complete text at once. @throws errors of the encoder */
  async encode(text: string): Promise<Int32Array> {
    // A complete text is cached only if it is short, such as the end of a message.
    if (this.#finder === undefined && text.length >= MIN_CHARS)
      return Int32Array.from(await this.#encode(text, text.length))
    const full = this.#splitContent(text)
    const pieces = this.#cutsAtSpaces ? full.flatMap(cutAtSpaces) : full
    const parts = new Array<Int32Array>(pieces.length)
    let next = 0
    let charsInARow = 0
    const encodeSome = async () => {
      while (next < pieces.length) {
        const index = next++
        const segment = pieces[index]!
        const ids = this.#remembered(segment, text.length)
        if (ids instanceof Promise) charsInARow += segment.length
        parts[index] = await ids
        if (charsInARow <= STRETCH_CHARS) continue
        charsInARow = 0
        await yieldToEventLoop()
      }
    }
    await Promise.all(Array.from({ length: PIECES_AT_ONCE }, encodeSome))
    return concatIds(...parts)
  }

  /** Splits a text into segments that begin with a boundary, except the first; adjacent short ones are joined. */
  #splitContent(text: string): string[] {
    if (this.#finder === undefined || text.length < MIN_CHARS) return [text]
    const begins = [...this.#finder.find(text)]
      .filter(({ id }) => this.#boundaries.has(id))
      .map(({ begin }) => begin)
    const pieces: string[] = []
    let shortFrom: number | undefined
    let from = 0
    for (const to of [...begins.filter((begin) => begin > 0), text.length]) {
      if (to - from >= MIN_CHARS) {
        if (shortFrom !== undefined) pieces.push(text.slice(shortFrom, from))
        shortFrom = undefined
        pieces.push(text.slice(from, to))
      } else shortFrom ??= from
      from = to
    }
    if (shortFrom !== undefined) pieces.push(text.slice(shortFrom))
    return pieces
  }

  #remembered(text: string, promptChars: number): Promise<Int32Array> | Int32Array {
    const key = hash('sha256', text, 'base64')
    const existing = this.#known.get(key) ?? this.#underWay.get(key)
    if (existing !== undefined) return existing
    const encoding = this.#encode(text, promptChars).then((ids) => Int32Array.from(ids))
    this.#underWay.set(key, encoding)
    const isWaitedFor = () => this.#underWay.get(key) === encoding && this.#underWay.delete(key)
    encoding.then((ids) => isWaitedFor() && this.#known.set(key, ids), isWaitedFor)
    return encoding
  }
}
