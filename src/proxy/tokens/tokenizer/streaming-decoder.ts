/**
 * Decodes token ids to text as they arrive. A character is emitted when all its bytes have arrived, so emitted text
 * never changes, and the concatenation equals `Tokenizer.decode` of all ids, regardless of how they were split.
 */
import type { TokenPieces } from './token-pieces.ts'

interface StreamingDecoderOptions {
  /** Whether to omit special tokens. Default: false. */
  skipSpecialTokens?: boolean
  /** The special tokens to emit although others are omitted, because an output parser uses them. */
  keepTokens?: readonly string[]
  /**
   * Whether the ids begin a text, so that a dummy first space is removed. Default: false, because they continue a
   * prompt.
   */
  startsText?: boolean
}

/** A decoder of the ids of one text. */
export class StreamingDecoder {
  readonly #tokenizer: TokenPieces
  readonly #skips: boolean
  readonly #keptIds: ReadonlySet<number>
  readonly #utf8 = new TextDecoder('utf-8', { ignoreBOM: true })
  /** Whether the last bytes are an incomplete character. */
  #inCharacter = false
  #dropsSpace: boolean

  constructor(tokenizer: TokenPieces, options: StreamingDecoderOptions = {}) {
    this.#tokenizer = tokenizer
    this.#skips = options.skipSpecialTokens ?? false
    this.#keptIds = new Set((options.keepTokens ?? []).flatMap((token) => tokenizer.tokenToId(token) ?? []))
    this.#dropsSpace = (options.startsText ?? false) && tokenizer.stripsFirstSpace
  }

  /** Returns the characters that are complete with the bytes of `ids`. */
  push(ids: Iterable<number>): string {
    let text = ''
    for (const id of ids) text += this.#pushOne(id)
    return this.#withoutDummySpace(text)
  }

  /** Returns U+FFFD for the bytes of an incomplete character, if there are any, and resets the decoder. */
  flush(): string {
    this.#inCharacter = false
    return this.#utf8.decode()
  }

  #pushOne(id: number): string {
    if (this.#skips && this.#tokenizer.isSpecial(id) && !this.#keptIds.has(id)) return ''
    const { bytes, text } = this.#tokenizer.getPiece(id)
    // Nearly every token begins and ends at a character boundary, so its text needs no decoding.
    if (text !== undefined && !this.#inCharacter) return text
    if (bytes.length === 0) return ''
    const decoded = this.#utf8.decode(bytes, { stream: true })
    this.#inCharacter = text === undefined
    return decoded
  }

  #withoutDummySpace(text: string): string {
    if (!this.#dropsSpace || text === '') return text
    this.#dropsSpace = false
    return text.startsWith(' ') ? text.slice(1) : text
  }
}
