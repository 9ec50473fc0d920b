/** Loads the embedded model. */
import { readFileSync } from 'node:fs'
import { getFolderPath } from '../../base/assets.ts'
import {
  computeLongestTokenChars,
  loadTokenizer,
  type Tokenizer,
} from '../../proxy/tokens/tokenizer/tokenizer.ts'
import { NgramModel } from './ngram-model.ts'

/**
 * Returns the folder that contains the tokenizer, its chat template and the n-gram counts, all of which
 * `tools/embedded-model/train-model.ts` writes.
 */
export function getEmbeddedModelFolder(): string {
  return getFolderPath(new URL('../model', import.meta.url))
}

/** Loads the embedded model's tokenizer. */
export function loadEmbeddedTokenizer(): Tokenizer {
  return loadTokenizer(getEmbeddedModelFolder())
}

/** The embedded model. */
export interface EmbeddedModel {
  tokenizer: Tokenizer
  ngrams: NgramModel
  /** The token that ends an assistant message. */
  eosTokenId: number
  /** The length of the longest vocabulary entry; see {@link computeLongestTokenChars}. */
  longestTokenChars: number
}

/** Loads the committed model, which takes about 20 ms. */
export function loadEmbeddedModel(): EmbeddedModel {
  const folder = getEmbeddedModelFolder()
  const tokenizer = loadTokenizer(folder)
  if (tokenizer.eosTokenId === undefined) {
    throw new Error(`${folder} lacks an end-of-turn token; train it again`)
  }
  const ngrams = NgramModel.fromFile(readFileSync(`${folder}/ngrams.bin`))
  return {
    tokenizer,
    ngrams,
    eosTokenId: tokenizer.eosTokenId,
    longestTokenChars: computeLongestTokenChars(tokenizer),
  }
}
