import { readFileSync } from 'node:fs'
import { folderPath } from '../../base/assets.ts'
import { loadTokenizer, longestTokenChars, type Tokenizer } from '../../proxy/tokens/tokenizer/tokenizer.ts'
import { NgramModel } from './ngram-model.ts'

/** Where `tools/embedded-model/train-model.ts` puts the tokenizer, its chat template and the n-gram counts. */
export function embeddedModelFolder(): string {
  return folderPath(new URL('../model', import.meta.url))
}

/** Its tokenizer alone. */
export function loadEmbeddedTokenizer(): Tokenizer {
  return loadTokenizer(embeddedModelFolder())
}

export interface EmbeddedModel {
  tokenizer: Tokenizer
  ngrams: NgramModel
  /** Ends an assistant message. */
  eosTokenId: number
  /** Of the text of any token: so many letters are a token at least. */
  longestTokenChars: number
}

/** Reads the committed model; about 20 ms. */
export function loadEmbeddedModel(): EmbeddedModel {
  const folder = embeddedModelFolder()
  const tokenizer = loadTokenizer(folder)
  if (tokenizer.eosTokenId === undefined) {
    throw new Error(`${folder} lacks an end-of-turn token; train it again`)
  }
  const ngrams = NgramModel.fromFile(readFileSync(`${folder}/ngrams.bin`))
  return {
    tokenizer,
    ngrams,
    eosTokenId: tokenizer.eosTokenId,
    longestTokenChars: longestTokenChars(tokenizer),
  }
}
