/**
 * Tokens remembered by content, across sessions. A tokenizer splits every text at its special tokens before anything
 * else, so the ids of what follows one of them, up to the next, are a function of that text alone: system prompts and
 * tools, the task of a group's other samples, everything before a branch or a restart are looked up, not tokenized
 * again.
 */
import { hash } from 'node:crypto'
import { LruCache } from '../../../base/lru-cache.ts'
import { yieldToEventLoop } from '../../../base/yield-to-event-loop.ts'
import { concatIds } from '../../../protocol/token-ids/token-ids.ts'
import { type AddedToken, AddedTokenFinder } from './added-tokens.ts'
import { cutAtSpaces } from './safe-cuts.ts'

/** As many as 16 million ids. */
const MAX_BYTES = 64 * 1024 * 1024
/** What is shorter is looked up together with its neighbours. */
const MIN_CHARS = 256
/** Of one prompt. All of a long one would be hundreds in the queue of those who tokenize. */
const PIECES_AT_ONCE = 4
/** Tokenized in one go: less than a millisecond's work of an encoder that answers on the spot. */
const STRETCH_CHARS = 32 * 1024
/** Of an entry, besides its ids: about what its key and the map need. */
const ENTRY_BYTES = 200

/** @param promptChars of the prompt that the text is a piece of */
type EncodePiece = (text: string, promptChars: number) => Promise<ArrayLike<number>>

interface ContentCacheOptions {
  /** Default: 64 MiB. */
  maxBytes?: number
  /** What `mayCutAtSpaces` says of the tokenizer: long texts are known by their parts as well. Default: no. */
  cutsAtSpaces?: boolean
}

export class ContentCache {
  readonly #encode: EncodePiece
  readonly #finder: AddedTokenFinder | undefined
  readonly #boundaries: ReadonlySet<number>
  readonly #cutsAtSpaces: boolean
  /** By hash of the text. */
  readonly #known: LruCache<string, Int32Array>
  /** Several sessions that begin with one prompt wait for one encoding. */
  readonly #underWay = new Map<string, Promise<Int32Array>>()

  constructor(
    encode: EncodePiece,
    addedTokens: readonly AddedToken[],
    { maxBytes = MAX_BYTES, cutsAtSpaces = false }: ContentCacheOptions = {},
  ) {
    this.#encode = encode
    this.#known = new LruCache(maxBytes, ({ byteLength }) => byteLength + ENTRY_BYTES)
    this.#cutsAtSpaces = cutsAtSpaces
    // Tokens that are found in normalized text are found later, within what is between the others.
    const early = addedTokens.filter(({ normalized }) => !normalized)
    const isPlain = ({ special, lstrip, rstrip }: AddedToken) => special === true && !lstrip && !rstrip
    this.#boundaries = new Set(early.filter(isPlain).map(({ id }) => id))
    // Whether a word's neighbours let it be a token depends on more than where it is.
    const isClear = early.every(({ single_word }) => !single_word) && this.#boundaries.size > 0
    this.#finder = isClear
      ? new AddedTokenFinder(new Map(early.map(({ content, id }) => [content, id])))
      : undefined
  }

  /** For an encoder that has turned out to be wrong. */
  clear(): void {
    this.#known.clear()
    this.#underWay.clear()
  }

  /** The same ids as those of the text as a whole. @throws what the encoder throws */
  async encode(text: string): Promise<Int32Array> {
    // A text as a whole is worth its place where it is short, as what ends a message is.
    if (this.#finder === undefined && text.length >= MIN_CHARS)
      return Int32Array.from(await this.#encode(text, text.length))
    const whole = this.#splitContent(text)
    const pieces = this.#cutsAtSpaces ? whole.flatMap(cutAtSpaces) : whole
    const parts = new Array<Int32Array>(pieces.length)
    let next = 0
    let charsInARow = 0
    const encodeSome = async () => {
      while (next < pieces.length) {
        const at = next++
        const piece = pieces[at]!
        const ids = this.#remembered(piece, text.length)
        if (ids instanceof Promise) charsInARow += piece.length
        parts[at] = await ids
        if (charsInARow <= STRETCH_CHARS) continue
        charsInARow = 0
        await yieldToEventLoop()
      }
    }
    await Promise.all(Array.from({ length: PIECES_AT_ONCE }, encodeSome))
    return concatIds(...parts)
  }

  /** Each begins with a boundary, but for the first; short ones in a row are one. */
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
    const known = this.#known.get(key) ?? this.#underWay.get(key)
    if (known !== undefined) return known
    const encoding = this.#encode(text, promptChars).then((ids) => Int32Array.from(ids))
    this.#underWay.set(key, encoding)
    const isWaitedFor = () => this.#underWay.get(key) === encoding && this.#underWay.delete(key)
    encoding.then((ids) => isWaitedFor() && this.#known.set(key, ids), isWaitedFor)
    return encoding
  }
}
