/** A tokenizer's tokens by id, and back: listed here, or asked of the library that has read them anyway. */
import { ProxyError } from '../../../base/errors.ts'
import type { TokenizerJson } from './tokenizer-files.ts'

/** What tokens are called, in the tokenizer's own alphabet (`Ġthe`); those beside the vocabulary are among them. */
export interface TokenNames {
  /** One more than the highest id; undefined: only a list tells it. */
  readonly size?: number
  getToken(id: number): string | undefined
  getId(token: string): number | undefined
}

/** @throws ProxyError `config_invalid` if there is no vocabulary */
export function listedVocabulary(tokenizerJson: TokenizerJson): TokenNames & { readonly size: number } {
  const tokens = tokensById(tokenizerJson)
  return {
    size: tokens.length,
    getToken: (id) => tokens[id],
    getId: (token) => {
      const id = tokens.indexOf(token)
      return id === -1 ? undefined : id
    },
  }
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
