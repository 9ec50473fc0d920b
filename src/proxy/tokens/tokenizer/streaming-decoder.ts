/**
 * Token ids in, text out, as they come. What was given out is never taken back: a character is given out once all
 * its bytes are there, and the whole equals `Tokenizer.decode` of all ids, however they were cut.
 */
import type { TokenPieces } from './token-pieces.ts'

interface StreamingDecoderOptions {
  /** Leaves special tokens out of the text. Default: false. */
  skipSpecialTokens?: boolean
  /** Special tokens that stay visible although the others are skipped: those that an output parser reads. */
  keepTokens?: readonly string[]
  /** The ids begin a text, so that a dummy first space is dropped. Default: false, they continue a prompt. */
  startsText?: boolean
}

export class StreamingDecoder {
  readonly #tokenizer: TokenPieces
  readonly #skips: boolean
  readonly #keptIds: ReadonlySet<number>
  readonly #utf8 = new TextDecoder('utf-8', { ignoreBOM: true })
  /** Whether the bytes so far end inside a character. */
  #inCharacter = false
  #dropsSpace: boolean

  constructor(tokenizer: TokenPieces, options: StreamingDecoderOptions = {}) {
    this.#tokenizer = tokenizer
    this.#skips = options.skipSpecialTokens ?? false
    this.#keptIds = new Set((options.keepTokens ?? []).flatMap((token) => tokenizer.tokenToId(token) ?? []))
    this.#dropsSpace = (options.startsText ?? false) && tokenizer.stripsFirstSpace
  }

  /** The characters that `ids` completed. */
  push(ids: Iterable<number>): string {
    let text = ''
    for (const id of ids) text += this.#pushOne(id)
    return this.#withoutDummySpace(text)
  }

  /** What an unfinished character left behind, as U+FFFD. The decoder is then at the start of a character again. */
  flush(): string {
    this.#inCharacter = false
    return this.#utf8.decode()
  }

  #pushOne(id: number): string {
    if (this.#skips && this.#tokenizer.isSpecial(id) && !this.#keptIds.has(id)) return ''
    const { bytes, text } = this.#tokenizer.getPiece(id)
    // Nearly every token is whole characters between whole characters: no decoder needed.
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
