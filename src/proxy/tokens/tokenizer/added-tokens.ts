/**
 * Finds added tokens in a text: those that a tokenizer has in addition to its model's vocabulary, such as `<|im_end|>`.
 */

/** An entry of a tokenizer.json's `added_tokens`. */
export interface AddedToken {
  id: number
  content: string
  /** Whether decoders can omit the token. Default: false. */
  special?: boolean
  /** Whether a match includes the white space before the token. */
  lstrip?: boolean
  /** Whether a match includes the white space after the token. */
  rstrip?: boolean
  /** Whether the token is recognized only if no letter or digit is adjacent to it. */
  single_word?: boolean
  /** Whether the token is searched for in normalized text. */
  normalized?: boolean
}

/** An added token in a text. */
export interface TokenMatch {
  id: number
  begin: number
  /** The index after the token's last character. */
  end: number
}

/** A trie node, which represents a common prefix of tokens. */
interface TokenPrefix {
  /** Whether the prefix is a token. */
  isToken: boolean
  /** The nodes of longer prefixes, by the UTF-16 code unit that follows. */
  readonly next: Map<number, TokenPrefix>
}

/**
 * A search for added tokens that finds the same ones as tokenizers: the leftmost match, and the longest one at its
 * position. The trie of the tokens becomes a regular expression, because texts may contain millions of characters with
 * which a token begins: a million `<` take at most 5 ms, in a search of the trie 70 ms or more.
 */
export class AddedTokenFinder {
  readonly #ids: ReadonlyMap<string, number>
  readonly #pattern: RegExp

  /** @param ids the ids of the added tokens by text */
  constructor(ids: ReadonlyMap<string, number>) {
    this.#ids = ids
    const root: TokenPrefix = { isToken: false, next: new Map() }
    for (const text of ids.keys()) if (text !== '') add(root, text)
    this.#pattern = new RegExp(root.next.size === 0 ? '(?!)' : toPattern(root), 'g')
  }

  /** Generates the matches in a text from left to right. */
  *find(text: string): Generator<TokenMatch> {
    for (const { 0: token, index: begin } of text.matchAll(this.#pattern)) {
      yield { id: this.#ids.get(token)!, begin, end: begin + token.length }
    }
  }
}

function add(root: TokenPrefix, text: string): void {
  let at = root
  for (let index = 0; index < text.length; index += 1) {
    const code = text.charCodeAt(index)
    const next = at.next.get(code) ?? { isToken: false, next: new Map() }
    at.next.set(code, next)
    at = next
  }
  at.isToken = true
}

/**
 * Returns a regular expression for the rest of tokens after a prefix. It prefers the longest rest, and never backtracks
 * over more than a token, since at most one alternative begins with each character.
 */
function toPattern({ isToken, next }: TokenPrefix): string {
  if (next.size === 0) return ''
  const rests = Array.from(next, ([code, prefix]) => toEscape(code) + toPattern(prefix))
  if (rests.length === 1 && !isToken) return rests[0]!
  return `(?:${rests.join('|')})${isToken ? '?' : ''}`
}

function toEscape(code: number): string {
  return `\\u${code.toString(16).padStart(4, '0')}`
}
