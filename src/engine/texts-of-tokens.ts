import { tokenTexts } from '../tokens/token-texts.ts'
import { loadTokenizer, type Tokenizer } from '../tokens/tokenizer.ts'
import { embeddedModelFolder } from './embedded/embedded-model.ts'

export interface NamedTokenizer {
  name: string
  tokenizer: Tokenizer
}

/**
 * Tells what tokens read like: by this tokenizer or, without one, by the embedded model's own for what that model sampled.
 * @returns undefined where no tokenizer is known
 */
export function textsOfTokens(named: NamedTokenizer | undefined) {
  let embedded: Tokenizer | undefined
  return async (model: string | null, ids: Int32Array) => {
    if (named !== undefined) return { source: named.name, texts: await tokenTexts(named.tokenizer, ids) }
    if (model !== 'embedded') return undefined
    embedded ??= loadTokenizer(embeddedModelFolder())
    return { source: model, texts: await tokenTexts(embedded, ids) }
  }
}
