/**
 * A model's tokenizer, read from Hugging Face's files. The library encodes; decoding uses the bytes of each token, so
 * that complete texts and streams share one implementation (see `streaming-decoder.ts`).
 */
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers'
import { ProxyError } from '../../../base/errors.ts'
import { StreamingDecoder } from './streaming-decoder.ts'
import {
  createPiece,
  type PieceRules,
  readPieceRules,
  type TokenPiece,
  type TokenPieces,
} from './token-pieces.ts'
import { getSpecialTokenText, readTokenizerFiles, type TokenizerFiles } from './tokenizer-files.ts'
import { readVocabulary, type TokenNames } from './vocabulary.ts'

/**
 * Returns an upper bound of the characters per token. A character of a vocabulary entry represents one byte, and a
 * character of a text has at least one byte.
 */
export function computeLongestTokenChars(tokenizer: Pick<Tokenizer, 'vocabSize' | 'idToToken'>): number {
  let longest = 1
  for (let id = 0; id < tokenizer.vocabSize; id += 1)
    longest = Math.max(longest, tokenizer.idToToken(id)?.length ?? 0)
  return longest
}

/**
 * Reads `tokenizer.json` and, if there is one, `tokenizer_config.json`. Blocks for 0.3 to 1.5 s with a vocabulary of
 * current size, so it is intended for the start of a process or a thread.
 * @param source a directory, or the parsed files
 * @throws ProxyError `config_invalid` if a file is missing, invalid or of an unsupported kind
 */
export function loadTokenizer(source: string | TokenizerFiles): Tokenizer {
  const files = typeof source === 'string' ? readTokenizerFiles(source) : source
  return checkUsable(() => new Tokenizer(files, readVocabulary(files.tokenizerJson), () => files))
}

/**
 * Returns a tokenizer for a library that has read the vocabulary, which is read again only if it is needed as a list.
 * @param files may lack the model
 * @param directory contains the complete files
 * @throws ProxyError `config_invalid` for a decoder that is not supported
 */
export function createTokenizer(names: TokenNames, files: TokenizerFiles, directory: string): Tokenizer {
  return checkUsable(() => new Tokenizer(files, names, () => readTokenizerFiles(directory)))
}

function checkUsable(make: () => Tokenizer): Tokenizer {
  try {
    return make()
  } catch (error) {
    if (error instanceof ProxyError) throw error
    throw new ProxyError('config_invalid', `cannot use this tokenizer.json: ${String(error)}`, {
      cause: error,
    })
  }
}

/** Returns the data that is available without the vocabulary: each added token's text and id. */
export function readAddedTokens({ tokenizerJson, tokenizerConfig }: TokenizerFiles): {
  addedTokens: ReadonlyMap<string, number>
  eosTokenId: number | undefined
} {
  const addedTokens = new Map((tokenizerJson.added_tokens ?? []).map(({ content, id }) => [content, id]))
  const eos = getSpecialTokenText(tokenizerConfig.eos_token)
  return { addedTokens, eosTokenId: eos === undefined ? undefined : addedTokens.get(eos) }
}

const NOTHING: TokenPiece = { bytes: new Uint8Array(0), text: '' }

export class Tokenizer implements TokenPieces {
  readonly eosTokenId: number | undefined
  /** The text and id of each added token, special or not. */
  readonly addedTokens: ReadonlyMap<string, number>
  /** Returns the files with the model. */
  readonly #wholeFiles: () => TokenizerFiles
  readonly #addedIds: ReadonlySet<number>
  readonly #specialIds: ReadonlySet<number>
  readonly #rules: PieceRules
  readonly #vocabulary: TokenNames
  readonly #pieces = new Map<number, TokenPiece>()
  #size: number | undefined
  #library: HuggingFaceTokenizer | undefined

  constructor(files: TokenizerFiles, vocabulary: TokenNames, wholeFiles: () => TokenizerFiles) {
    const { tokenizerJson, tokenizerConfig } = files
    this.#vocabulary = vocabulary
    this.#wholeFiles = wholeFiles
    this.#rules = readPieceRules(tokenizerJson.decoder)
    const added = tokenizerJson.added_tokens ?? []
    this.#addedIds = new Set(added.map((token) => token.id))
    this.#specialIds = new Set(added.filter((token) => token.special).map((token) => token.id))
    this.addedTokens = new Map(added.map((token) => [token.content, token.id]))
    const eos = getSpecialTokenText(tokenizerConfig.eos_token)
    this.eosTokenId = eos === undefined ? undefined : this.tokenToId(eos)
  }

  /** One more than the highest token id. */
  get vocabSize(): number {
    this.#size ??= this.#vocabulary.size ?? readVocabulary(this.#wholeFiles().tokenizerJson).size
    return this.#size
  }

  get stripsFirstSpace(): boolean {
    return this.#rules.stripsFirstSpace
  }

  /** @param options whether the tokenizer adds its begin-of-text token, which chat templates write themselves */
  encode(text: string, { addSpecialTokens = false } = {}): number[] {
    // The library is loaded lazily: it is not needed for decoding, or with another encoder.
    if (this.#library === undefined) {
      const { tokenizerJson, tokenizerConfig } = this.#wholeFiles()
      this.#library = new HuggingFaceTokenizer(tokenizerJson, tokenizerConfig)
    }
    return this.#library.encode(text, { add_special_tokens: addSpecialTokens }).ids
  }

  /**
   * Returns the text of `ids`: bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary are omitted. Spaces
   * before punctuation are never removed, even if the config requires it, because engines do not remove them either.
   */
  decode(ids: Iterable<number>, { skipSpecialTokens = false } = {}): string {
    const decoder = new StreamingDecoder(this, { skipSpecialTokens, startsText: true })
    return decoder.push(ids) + decoder.flush()
  }

  /** Returns the vocabulary's entry, in the tokenizer's own alphabet (`Ġthe`). */
  idToToken(id: number): string | undefined {
    return this.#vocabulary.getToken(id)
  }

  /**
   * Returns a token's id. An added token is found at once; others are searched for in the complete vocabulary, which
   * takes about a millisecond.
   */
  tokenToId(token: string): number | undefined {
    return this.addedTokens.get(token) ?? this.#vocabulary.getId(token)
  }

  isSpecial(id: number): boolean {
    return this.#specialIds.has(id)
  }

  /** Returns whether every text is split at this token, as it is at special and other added tokens. */
  isAdded(id: number): boolean {
    return this.#addedIds.has(id)
  }

  getPiece(id: number): TokenPiece {
    const existing = this.#pieces.get(id)
    if (existing !== undefined) return existing
    const token = this.#vocabulary.getToken(id)
    if (token === undefined) return NOTHING
    const piece = createPiece(this.#rules.getBytes(token, this.#addedIds.has(id)))
    this.#pieces.set(id, piece)
    return piece
  }
}
