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
  /** The id of the token that equals the prefix; undefined if none does. */
  id: number | undefined
  /** The nodes of longer prefixes, by the UTF-16 code unit that follows. */
  readonly next: Map<number, TokenPrefix>
}

/**
 * A search for added tokens that finds the same ones as tokenizers: the leftmost match, and the longest one at its
 * position.
 */
export class AddedTokenFinder {
  readonly #root: TokenPrefix = { id: undefined, next: new Map() }
  readonly #firstCharacter: RegExp

  /** @param ids the ids of the added tokens by text */
  constructor(ids: ReadonlyMap<string, number>) {
    for (const [text, id] of ids) if (text !== '') this.#add(text, id)
    const firsts = [...this.#root.next.keys()].map((code) => `\\u${code.toString(16).padStart(4, '0')}`)
    this.#firstCharacter = new RegExp(`[${firsts.join('')}]`, 'g')
  }

  #add(text: string, id: number): void {
    let at = this.#root
    for (let index = 0; index < text.length; index += 1) {
      const code = text.charCodeAt(index)
      const next = at.next.get(code) ?? { id: undefined, next: new Map() }
      at.next.set(code, next)
      at = next
    }
    at.id = id
  }

  /** Generates the matches in a text from left to right. */
  *find(text: string): Generator<TokenMatch> {
    const pattern = new RegExp(this.#firstCharacter)
    for (let match = pattern.exec(text); match !== null; match = pattern.exec(text)) {
      const found = this.#at(text, match.index)
      if (found === undefined) continue
      yield found
      pattern.lastIndex = found.end
    }
  }

  #at(text: string, begin: number): TokenMatch | undefined {
    let longest: TokenMatch | undefined
    let at = this.#root.next.get(text.charCodeAt(begin))
    for (let end = begin + 1; at !== undefined; end += 1) {
      if (at.id !== undefined) longest = { id: at.id, begin, end }
      at = at.next.get(text.charCodeAt(end))
    }
    return longest
  }
}
