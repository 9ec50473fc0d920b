/**
 * Caches token ids by content, for all sessions. A tokenizer first splits every text at its special tokens, so the ids
 * between two of them depend only on the text between them. The cache therefore contains the ids of system prompts and
 * tools, of the tasks of other samples in a group, and of everything before a branch or a restart.
 */
import { hash } from 'node:crypto'
import { LruCache } from '../../../base/lru-cache.ts'
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { concatIds } from '../../../protocol/token-ids/token-ids.ts'
import { type AddedToken, AddedTokenFinder } from './added-tokens.ts'
import { cutAtSpaces } from './safe-cuts.ts'

/** The default cache size: 16 million ids. */
const MAX_BYTES = 64 * 1024 * 1024
/** The minimum length of a segment. Shorter ones are joined with adjacent ones. */
const MIN_CHARS = 256
/**
 * The maximum number of segments of a prompt that are tokenized concurrently, so that a long prompt does not add
 * hundreds of entries to the encoder's queue.
 */
const MAX_CONCURRENT_SEGMENTS = 4
/**
 * The number of characters to tokenize before yielding to the event loop. A synchronous encoder needs less than a
 * millisecond for them.
 */
const CHARS_PER_SLICE = 32 * 1024
/** The approximate size of an entry's key and map slot. */
const ENTRY_BYTES = 200

/** Encodes a segment of a prompt. @param promptChars the length of the complete prompt */
type SegmentEncoding = (text: string, promptChars: number) => Promise<ArrayLike<number>>

interface ContentCacheOptions {
  /** The maximum size. Default: 64 MiB. */
  maxBytes?: number
  /** Whether long segments are cut at spaces and cached in parts; see `mayCutAtSpaces`. Default: no. */
  cutsAtSpaces?: boolean
}

/** An encoder of prompts that caches the ids of their segments. */
export class ContentCache {
  readonly #encode: SegmentEncoding
  readonly #finder: AddedTokenFinder | undefined
  readonly #boundaries: ReadonlySet<number>
  readonly #cutsAtSpaces: boolean
  /** The ids by hash of the text. */
  readonly #cache: LruCache<string, Int32Array>
  /** Encodings in progress, shared by sessions that begin with the same prompt. */
  readonly #pending = new Map<string, Promise<Int32Array>>()

  constructor(
    encode: SegmentEncoding,
    addedTokens: readonly AddedToken[],
    { maxBytes = MAX_BYTES, cutsAtSpaces = false }: ContentCacheOptions = {},
  ) {
    this.#encode = encode
    this.#cache = new LruCache(maxBytes, ({ byteLength }) => byteLength + ENTRY_BYTES)
    this.#cutsAtSpaces = cutsAtSpaces
    // The tokenizer searches for `normalized` tokens later, in the text between the other added tokens.
    const early = addedTokens.filter(({ normalized }) => !normalized)
    const isPlain = ({ special, lstrip, rstrip }: AddedToken) => special === true && !lstrip && !rstrip
    this.#boundaries = new Set(early.filter(isPlain).map(({ id }) => id))
    // Whether a `single_word` token matches depends on the characters next to it, which may be in another segment.
    const isClear = early.every(({ single_word }) => !single_word) && this.#boundaries.size > 0
    this.#finder = isClear
      ? new AddedTokenFinder(new Map(early.map(({ content, id }) => [content, id])))
      : undefined
  }

  /** Clears the cache after the encoder has returned wrong ids. */
  clear(): void {
    this.#cache.clear()
    this.#pending.clear()
  }

  /** Returns the ids of a prompt, which equal those of encoding it without the cache. @throws errors of the encoder */
  async encode(text: string): Promise<Int32Array> {
    // Without boundaries, only short texts are cached, such as the end of a message.
    if (this.#finder === undefined && text.length >= MIN_CHARS)
      return Int32Array.from(await this.#encode(text, text.length))
    const full = this.#splitContent(text)
    const segments = this.#cutsAtSpaces ? full.flatMap(cutAtSpaces) : full
    const parts = new Array<Int32Array>(segments.length)
    let next = 0
    let charsInSlice = 0
    const encodeSome = async () => {
      while (next < segments.length) {
        const index = next++
        const segment = segments[index]!
        const ids = this.#getIds(segment, text.length)
        if (ids instanceof Promise) charsInSlice += segment.length
        parts[index] = await ids
        if (charsInSlice <= CHARS_PER_SLICE) continue
        charsInSlice = 0
        await yieldToEventLoop()
      }
    }
    await Promise.all(Array.from({ length: MAX_CONCURRENT_SEGMENTS }, encodeSome))
    return concatIds(...parts)
  }

  /**
   * Splits a text into segments, each of which except the first begins with a boundary. Adjacent short ones are joined.
   */
  #splitContent(text: string): string[] {
    if (this.#finder === undefined || text.length < MIN_CHARS) return [text]
    const begins = [...this.#finder.find(text)]
      .filter(({ id }) => this.#boundaries.has(id))
      .map(({ begin }) => begin)
    const segments: string[] = []
    let shortFrom: number | undefined
    let from = 0
    for (const to of [...begins.filter((begin) => begin > 0), text.length]) {
      if (to - from >= MIN_CHARS) {
        if (shortFrom !== undefined) segments.push(text.slice(shortFrom, from))
        shortFrom = undefined
        segments.push(text.slice(from, to))
      } else shortFrom ??= from
      from = to
    }
    if (shortFrom !== undefined) segments.push(text.slice(shortFrom))
    return segments
  }

  #getIds(text: string, promptChars: number): Promise<Int32Array> | Int32Array {
    const key = hash('sha256', text, 'base64')
    const existing = this.#cache.get(key) ?? this.#pending.get(key)
    if (existing !== undefined) return existing
    const encoding = this.#encode(text, promptChars).then((ids) => Int32Array.from(ids))
    this.#pending.set(key, encoding)
    const removePending = () => this.#pending.get(key) === encoding && this.#pending.delete(key)
    encoding.then((ids) => removePending() && this.#cache.set(key, ids), removePending)
    return encoding
  }
}
