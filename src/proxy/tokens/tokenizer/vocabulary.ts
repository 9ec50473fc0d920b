/** A tokenizer's tokens by id, and back: listed here, or asked of the library that has read them anyway. */
import { ProxyError } from '../../../base/errors.ts'
import type { TokenizerJson } from './tokenizer-files.ts'

/** What tokens are called, in the tokenizer's own alphabet (`Ġthe`); those beside the vocabulary are among them. */
export interface TokenNames {
  tokenOf(id: number): string | undefined
  idOf(token: string): number | undefined
}

export interface Vocabulary extends TokenNames {
  /** One more than the highest id. */
  readonly size: number
}

/** @throws ProxyError `config_invalid` if there is no vocabulary */
export function listedVocabulary(tokenizerJson: TokenizerJson): Vocabulary {
  const tokens = tokensById(tokenizerJson)
  return {
    size: tokens.length,
    tokenOf: (id) => tokens[id],
    idOf: (token) => {
      const id = tokens.indexOf(token)
      return id === -1 ? undefined : id
    },
  }
}

/**
 * A vocabulary that somebody else holds. Its size is what only a list of it tells, which is made when it is asked for.
 */
export function heldVocabulary(names: TokenNames, read: () => TokenizerJson): Vocabulary {
  let size: number | undefined
  return {
    get size() {
      size ??= tokensById(read()).length
      return size
    },
    tokenOf: (id) => names.tokenOf(id),
    idOf: (token) => names.idOf(token),
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
