/** Looks up a tokenizer's tokens by id and vice versa. */
import { ProxyError } from '../../../base/errors.ts'
import type { TokenizerJson } from './tokenizer-files.ts'

/** The names of tokens, including added ones, in the tokenizer's own alphabet (`Ġthe`). */
export interface TokenNames {
  /** One more than the highest id; undefined if the library does not provide it. */
  readonly size?: number
  getToken(id: number): string | undefined
  getId(token: string): number | undefined
}

/** Lists the vocabulary of a parsed `tokenizer.json`. @throws ProxyError `config_invalid` if there is no vocabulary */
export function readVocabulary(tokenizerJson: TokenizerJson): TokenNames & { readonly size: number } {
  const tokens = listTokensById(tokenizerJson)
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
 * Returns the tokens by id. If the vocabulary is a list, as in SentencePiece's unigram models, a token's index is its
 * id.
 *
 * A vocabulary may have more than 150,000 tokens, and start-up waits for this function, so it avoids `Object.entries`,
 * which would create an array for each token.
 */
function listTokensById({ model, added_tokens: added = [] }: TokenizerJson): (string | undefined)[] {
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
