/**
 * Tokens remembered by content, across sessions. A tokenizer splits every text at its special tokens before anything
 * else, so the ids of what follows one of them, up to the next, are a function of that text alone: system prompts and
 * tools, the task of a group's other samples, everything before a branch or a restart are looked up, not tokenized
 * again.
 */
import { hash } from 'node:crypto'
import { type AddedToken, AddedTokenFinder } from './added-tokens.ts'

/** As many as 16 million ids. */
const MAX_BYTES = 64 * 1024 * 1024
/** What is shorter is looked up together with its neighbours. */
const MIN_CHARS = 256
/** Of an entry, besides its ids: about what its key and the map need. */
const ENTRY_BYTES = 200

export class ContentMemory {
  readonly #encode: (text: string) => Promise<ArrayLike<number>>
  readonly #finder: AddedTokenFinder | undefined
  readonly #boundaries: ReadonlySet<number>
  readonly #maxBytes: number
  /** By hash of the text, in order of use. */
  readonly #known = new Map<string, Int32Array>()
  /** Several sessions that begin with one prompt wait for one encoding. */
  readonly #underWay = new Map<string, Promise<Int32Array>>()
  #bytes = 0

  constructor(
    encode: (text: string) => Promise<ArrayLike<number>>,
    addedTokens: readonly AddedToken[],
    maxBytes = MAX_BYTES,
  ) {
    this.#encode = encode
    this.#maxBytes = maxBytes
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

  /** What is kept, as far as it is counted: ids and entries. */
  get bytes(): number {
    return this.#bytes
  }

  /** The same ids as those of the text as a whole. @throws what the encoder throws */
  async encode(text: string): Promise<number[]> {
    // A text as a whole is worth its place where it is short, as what ends a message is.
    if (this.#finder === undefined && text.length >= MIN_CHARS) return Array.from(await this.#encode(text))
    const parts = await Promise.all(this.#piecesOf(text).map((piece) => this.#remembered(piece)))
    const ids = new Array<number>(parts.reduce((sum, part) => sum + part.length, 0))
    let at = 0
    for (const part of parts) {
      for (let index = 0; index < part.length; index += 1, at += 1) ids[at] = part[index]!
    }
    return ids
  }

  /** Each begins with a boundary, but for the first; short ones in a row are one. */
  #piecesOf(text: string): string[] {
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

  #remembered(text: string): Promise<Int32Array> | Int32Array {
    const key = hash('sha256', text, 'base64')
    const known = this.#known.get(key)
    if (known !== undefined) {
      this.#known.delete(key)
      this.#known.set(key, known)
      return known
    }
    const underWay = this.#underWay.get(key)
    if (underWay !== undefined) return underWay
    const encoding = this.#encode(text)
      .then((ids) => this.#remember(key, Int32Array.from(ids)))
      .finally(() => this.#underWay.delete(key))
    this.#underWay.set(key, encoding)
    return encoding
  }

  #remember(key: string, ids: Int32Array): Int32Array {
    this.#known.set(key, ids)
    this.#bytes += ids.byteLength + ENTRY_BYTES
    for (const [oldest, { byteLength }] of this.#known) {
      if (this.#bytes <= this.#maxBytes) break
      this.#known.delete(oldest)
      this.#bytes -= byteLength + ENTRY_BYTES
    }
    return ids
  }
}
