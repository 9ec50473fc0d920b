/**
 * Reads a model's tokenizer from Hugging Face's files. Their library encodes texts. Decoding uses the bytes of each
 * token, so that complete texts and streams share one implementation (`streaming-decoder.ts`).
 */
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers'
import { ProxyError } from '../../../base/errors.ts'
import { concatIds, type TokenIds } from '../../../protocol/token-ids/token-ids.ts'
import { readTextSpecialTokens, type TextSpecialTokens } from './post-processor.ts'
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
 * Returns an upper bound of the number of characters that a token adds to a text: the length of the longest vocabulary
 * entry. A character of an entry represents one byte, and a character of a text has at least one byte.
 */
export function computeLongestTokenChars(tokenizer: Pick<Tokenizer, 'vocabSize' | 'idToToken'>): number {
  let longest = 1
  for (let id = 0; id < tokenizer.vocabSize; id += 1)
    longest = Math.max(longest, tokenizer.idToToken(id)?.length ?? 0)
  return longest
}

/**
 * Reads a tokenizer from `tokenizer.json` and the optional `tokenizer_config.json`. Blocks for 0.3 to 1.5 s with
 * vocabularies of current models, so it should be called only at the start of a process or a thread.
 * @param source a directory, or the parsed files
 * @throws ProxyError `config_invalid` if `tokenizer.json` is missing, or a file is invalid or not supported
 */
export function loadTokenizer(source: string | TokenizerFiles): Tokenizer {
  const files = typeof source === 'string' ? readTokenizerFiles(source) : source
  return createWithConfigErrors(() => new Tokenizer(files, readVocabulary(files.tokenizerJson), () => files))
}

/**
 * Creates a tokenizer that looks up tokens in a library that has read the vocabulary. The complete files are read only
 * if the vocabulary's size or the JavaScript encoder is used.
 * @param files the parsed files, with or without the model
 * @param directory contains the complete files
 * @throws ProxyError `config_invalid` for a decoder that is not supported
 */
export function createTokenizer(names: TokenNames, files: TokenizerFiles, directory: string): Tokenizer {
  return createWithConfigErrors(() => new Tokenizer(files, names, () => readTokenizerFiles(directory)))
}

/** Calls `create`, and converts errors of the library. @throws ProxyError `config_invalid` */
function createWithConfigErrors(create: () => Tokenizer): Tokenizer {
  try {
    return create()
  } catch (error) {
    if (error instanceof ProxyError) throw error
    throw new ProxyError('config_invalid', `cannot use this tokenizer.json: ${String(error)}`, {
      cause: error,
    })
  }
}

/**
 * Returns the ids of added tokens by text, and the id of the end-of-turn token, which do not require the vocabulary.
 */
export function readAddedTokens({ tokenizerJson, tokenizerConfig }: TokenizerFiles): {
  addedTokens: ReadonlyMap<string, number>
  eosTokenId: number | undefined
} {
  const addedTokens = new Map((tokenizerJson.added_tokens ?? []).map(({ content, id }) => [content, id]))
  const eos = getSpecialTokenText(tokenizerConfig.eos_token)
  return { addedTokens, eosTokenId: eos === undefined ? undefined : addedTokens.get(eos) }
}

const EMPTY_PIECE: TokenPiece = { bytes: new Uint8Array(0), text: '' }

/** A tokenizer: encodes texts, decodes ids and looks up tokens. */
export class Tokenizer implements TokenPieces {
  readonly eosTokenId: number | undefined
  /** The ids of all added tokens, special or not, by text. */
  readonly addedTokens: ReadonlyMap<string, number>
  /** Reads the files including the model. */
  readonly #readCompleteFiles: () => TokenizerFiles
  readonly #addedIds: ReadonlySet<number>
  readonly #specialIds: ReadonlySet<number>
  readonly #rules: PieceRules
  readonly #textTokens: TextSpecialTokens
  readonly #vocabulary: TokenNames
  readonly #pieces = new Map<number, TokenPiece>()
  #size: number | undefined
  #library: HuggingFaceTokenizer | undefined

  constructor(files: TokenizerFiles, vocabulary: TokenNames, readCompleteFiles: () => TokenizerFiles) {
    const { tokenizerJson, tokenizerConfig } = files
    this.#vocabulary = vocabulary
    this.#readCompleteFiles = readCompleteFiles
    this.#rules = readPieceRules(tokenizerJson.decoder)
    this.#textTokens = readTextSpecialTokens(tokenizerJson.post_processor)
    const added = tokenizerJson.added_tokens ?? []
    this.#addedIds = new Set(added.map((token) => token.id))
    this.#specialIds = new Set(added.filter((token) => token.special).map((token) => token.id))
    this.addedTokens = new Map(added.map((token) => [token.content, token.id]))
    const eos = getSpecialTokenText(tokenizerConfig.eos_token)
    this.eosTokenId = eos === undefined ? undefined : this.tokenToId(eos)
  }

  /** One more than the highest token id. */
  get vocabSize(): number {
    this.#size ??= this.#vocabulary.size ?? readVocabulary(this.#readCompleteFiles().tokenizerJson).size
    return this.#size
  }

  get stripsFirstSpace(): boolean {
    return this.#rules.stripsFirstSpace
  }

  /** Encodes a text synchronously, without the special tokens of {@link addSpecialTokens}. */
  encode(text: string): number[] {
    // The library is loaded lazily, because decoding and other encoders do not need it.
    if (this.#library === undefined) {
      const { tokenizerJson, tokenizerConfig } = this.#readCompleteFiles()
      this.#library = new HuggingFaceTokenizer(tokenizerJson, tokenizerConfig)
    }
    return this.#library.encode(text, { add_special_tokens: false }).ids
  }

  /** Adds the special tokens that the tokenizer adds to a text, such as the begin-of-text token. */
  addSpecialTokens(ids: TokenIds): TokenIds {
    const getIds = (tokens: readonly string[]) => tokens.flatMap((token) => this.tokenToId(token) ?? [])
    const [before, after] = [getIds(this.#textTokens.before), getIds(this.#textTokens.after)]
    return before.length + after.length === 0 ? ids : concatIds(before, ids, after)
  }

  /**
   * Decodes ids. Bytes that are not UTF-8 become U+FFFD, and ids outside the vocabulary are omitted. Spaces before
   * punctuation are never removed, even if the config requires it, because engines do not remove them either.
   */
  decode(ids: Iterable<number>, { skipSpecialTokens = false } = {}): string {
    const decoder = new StreamingDecoder(this, { skipSpecialTokens, startsText: true })
    return decoder.push(ids) + decoder.flush()
  }

  /** Returns a token's vocabulary entry, in the tokenizer's own alphabet (`Ġthe`). */
  idToToken(id: number): string | undefined {
    return this.#vocabulary.getToken(id)
  }

  /**
   * Returns the id of an added token or a vocabulary entry. Searching a listed vocabulary takes about a millisecond.
   */
  tokenToId(token: string): number | undefined {
    return this.addedTokens.get(token) ?? this.#vocabulary.getId(token)
  }

  isSpecial(id: number): boolean {
    return this.#specialIds.has(id)
  }

  /** Returns whether this is the id of an added token, at which the tokenizer splits every text. */
  isAdded(id: number): boolean {
    return this.#addedIds.has(id)
  }

  getPiece(id: number): TokenPiece {
    const existing = this.#pieces.get(id)
    if (existing !== undefined) return existing
    const token = this.#vocabulary.getToken(id)
    if (token === undefined) return EMPTY_PIECE
    const piece = createPiece(this.#rules.getBytes(token, this.#addedIds.has(id)))
    this.#pieces.set(id, piece)
    return piece
  }
}
