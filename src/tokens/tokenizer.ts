/**
 * A model's tokenizer, read from Hugging Face's files. Encoding is the library's; decoding works on the bytes of
 * each token, so that the same code serves whole texts and streams (see `streaming-decoder.ts`).
 */
import { join } from 'node:path'
import { Tokenizer as HuggingFaceTokenizer } from '@huggingface/tokenizers'
import { ProxyError } from '../errors.ts'
import type { AddedToken } from './added-tokens.ts'
import { readModelJson } from './model-file.ts'
import { StreamingDecoder } from './streaming-decoder.ts'
import {
  type DecoderConfig,
  type PieceRules,
  pieceFromBytes,
  readPieceRules,
  type TokenPiece,
  type TokenPieces,
} from './token-pieces.ts'

/** Hugging Face's files, parsed. */
export interface TokenizerFiles {
  tokenizerJson: TokenizerJson
  tokenizerConfig: TokenizerConfig
}

/** A parsed tokenizer.json, as far as it is read here. */
export interface TokenizerJson {
  added_tokens?: AddedToken[]
  model?: { vocab?: Record<string, number> | [token: string, score: number][] }
  decoder?: DecoderConfig | null
  [field: string]: unknown
}

/** A parsed tokenizer_config.json, as far as it is read here. */
export interface TokenizerConfig {
  bos_token?: SpecialTokenConfig
  eos_token?: SpecialTokenConfig
  chat_template?: string | { name: string; template: string }[]
  [field: string]: unknown
}

/** A special token as the config writes it: bare, with its flags, or not there. */
export type SpecialTokenConfig = string | { content: string } | null | undefined

export interface EncodeOptions {
  /** Lets the tokenizer add its own begin-of-text token. Chat templates write theirs themselves. Default: false. */
  addSpecialTokens?: boolean
}

export interface DecodeOptions {
  /** Leaves special tokens out of the text. Default: false. */
  skipSpecialTokens?: boolean
}

export interface Tokenizer extends TokenPieces {
  /** One more than the highest token id. */
  readonly vocabSize: number
  readonly bosTokenId: number | undefined
  readonly eosTokenId: number | undefined
  /** Text of each special token and its id. */
  readonly specialTokens: ReadonlyMap<string, number>
  /** The same of all tokens beside the vocabulary, special or not. */
  readonly addedTokens: ReadonlyMap<string, number>

  encode(text: string, options?: EncodeOptions): number[]
  /**
   * The text of `ids`: bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary become nothing. Spaces
   * before punctuation are never cleaned up, whatever the config says: engines do not do it either.
   */
  decode(ids: Iterable<number>, options?: DecodeOptions): string
  /** The vocabulary's entry, in the tokenizer's own alphabet (`Ġthe`). */
  idToToken(id: number): string | undefined
  /** An added token is found at once; another one is looked for in the whole vocabulary, which takes about a millisecond. */
  tokenToId(token: string): number | undefined
  /** Whether every text is split at it; special tokens are, and others that were put in beside the vocabulary. */
  isAdded(id: number): boolean
}

/**
 * Reads `tokenizer.json` and, where there is one, `tokenizer_config.json`. Takes 0.3 to 1.5 s for a vocabulary of
 * today's size and blocks meanwhile: for the start of a process or a thread.
 * @param source a directory, or the parsed files
 * @throws ProxyError `config_invalid` if a file is missing, broken or of a kind that is not supported
 */
export function loadTokenizer(source: string | TokenizerFiles): Tokenizer {
  const files = typeof source === 'string' ? readTokenizerFiles(source) : source
  try {
    return new FileTokenizer(files)
  } catch (error) {
    if (error instanceof ProxyError) throw error
    throw new ProxyError('config_invalid', `cannot use this tokenizer.json: ${String(error)}`, {
      cause: error,
    })
  }
}

/** @throws ProxyError `config_invalid` if there is no `tokenizer.json`, or if a file is broken */
export function readTokenizerFiles(directory: string): TokenizerFiles {
  const path = join(directory, 'tokenizer.json')
  const tokenizerJson = readModelJson<TokenizerJson>(path)
  if (tokenizerJson === undefined) throw new ProxyError('config_invalid', `there is no ${path}`)
  return {
    tokenizerJson,
    tokenizerConfig: readModelJson<TokenizerConfig>(join(directory, 'tokenizer_config.json')) ?? {},
  }
}

/** What is known without reading the vocabulary: each added token's text and id. */
export function readAddedTokens({ tokenizerJson, tokenizerConfig }: TokenizerFiles): {
  addedTokens: ReadonlyMap<string, number>
  eosTokenId: number | undefined
} {
  const addedTokens = new Map((tokenizerJson.added_tokens ?? []).map(({ content, id }) => [content, id]))
  const eos = specialTokenText(tokenizerConfig.eos_token)
  return { addedTokens, eosTokenId: eos === undefined ? undefined : addedTokens.get(eos) }
}

/** The text of a special token, however the config writes it. */
export function specialTokenText(token: SpecialTokenConfig): string | undefined {
  return typeof token === 'string' ? token : token?.content
}

/**
 * The tokens by id. Of a list, as SentencePiece's unigram models have it, a token's place is its id.
 *
 * A vocabulary has 150,000 tokens and more, and a process that starts waits for it: no entry of it becomes a list here.
 */
function tokensById({ model, added_tokens: added = [] }: TokenizerJson): (string | undefined)[] {
  const vocab = model?.vocab
  if (typeof vocab !== 'object' || vocab === null) {
    throw new ProxyError('config_invalid', 'cannot use this tokenizer.json: it has no vocabulary')
  }
  const tokens: (string | undefined)[] = []
  if (Array.isArray(vocab)) for (const [token] of vocab) tokens.push(token)
  else for (const token in vocab) tokens[vocab[token]!] = token
  for (const { content, id } of added) tokens[id] = content
  return tokens
}

const NOTHING: TokenPiece = { bytes: new Uint8Array(0), text: '' }

class FileTokenizer implements Tokenizer {
  readonly vocabSize: number
  readonly bosTokenId: number | undefined
  readonly eosTokenId: number | undefined
  readonly specialTokens: ReadonlyMap<string, number>
  readonly addedTokens: ReadonlyMap<string, number>
  readonly #files: TokenizerFiles
  readonly #addedIds: ReadonlySet<number>
  readonly #specialIds: ReadonlySet<number>
  readonly #rules: PieceRules
  /** By id. */
  readonly #tokens: readonly (string | undefined)[]
  readonly #pieces: (TokenPiece | undefined)[]
  #library: HuggingFaceTokenizer | undefined

  constructor(files: TokenizerFiles) {
    const { tokenizerJson, tokenizerConfig } = files
    this.#files = files
    this.#rules = readPieceRules(tokenizerJson.decoder)
    const added = tokenizerJson.added_tokens ?? []
    const special = added.filter((token) => token.special)
    this.#addedIds = new Set(added.map((token) => token.id))
    this.#specialIds = new Set(special.map((token) => token.id))
    this.addedTokens = new Map(added.map((token) => [token.content, token.id]))
    this.specialTokens = new Map(special.map((token) => [token.content, token.id]))
    this.#tokens = tokensById(tokenizerJson)
    this.vocabSize = this.#tokens.length
    this.#pieces = new Array(this.vocabSize)
    this.bosTokenId = this.#idOf(tokenizerConfig.bos_token)
    this.eosTokenId = this.#idOf(tokenizerConfig.eos_token)
  }

  get stripsFirstSpace(): boolean {
    return this.#rules.stripsFirstSpace
  }

  encode(text: string, { addSpecialTokens = false }: EncodeOptions = {}): number[] {
    // Whoever decodes only, or encodes elsewhere, does without it.
    this.#library ??= new HuggingFaceTokenizer(this.#files.tokenizerJson, this.#files.tokenizerConfig)
    return this.#library.encode(text, { add_special_tokens: addSpecialTokens }).ids
  }

  decode(ids: Iterable<number>, options: DecodeOptions = {}): string {
    const decoder = new StreamingDecoder(this, { ...options, startsText: true })
    return decoder.push(ids) + decoder.flush()
  }

  idToToken(id: number): string | undefined {
    return this.#tokens[id]
  }

  tokenToId(token: string): number | undefined {
    const added = this.addedTokens.get(token)
    if (added !== undefined) return added
    const id = this.#tokens.indexOf(token)
    return id === -1 ? undefined : id
  }

  isSpecial(id: number): boolean {
    return this.#specialIds.has(id)
  }

  isAdded(id: number): boolean {
    return this.#addedIds.has(id)
  }

  pieceOf(id: number): TokenPiece {
    const known = this.#pieces[id]
    if (known !== undefined) return known
    const token = this.#tokens[id]
    if (token === undefined) return NOTHING
    const piece = pieceFromBytes(this.#rules.bytesOf(token, this.#addedIds.has(id)))
    this.#pieces[id] = piece
    return piece
  }

  #idOf(token: SpecialTokenConfig): number | undefined {
    const text = specialTokenText(token)
    return text === undefined ? undefined : this.tokenToId(text)
  }
}
