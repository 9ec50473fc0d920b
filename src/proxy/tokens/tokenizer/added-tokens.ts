/** The tokens that are put in beside a tokenizer's vocabulary, `<|im_end|>` and its like, and where a text has them. */

/** An entry of a tokenizer.json's `added_tokens`. */
export interface AddedToken {
  id: number
  content: string
  special?: boolean
  /** It takes the white space before it, or behind it. */
  lstrip?: boolean
  rstrip?: boolean
  /** It is none within a word. */
  single_word?: boolean
  /** It is looked for in normalized text. */
  normalized?: boolean
}

export interface TokenMatch {
  id: number
  begin: number
  /** The character behind it. */
  end: number
}

/** A beginning that tokens have in common. */
interface TokenPrefix {
  /** The token that it is; undefined: it is none. */
  id: number | undefined
  /** By the code of the next character. */
  readonly next: Map<number, TokenPrefix>
}

/** Finds them as tokenizers do: the leftmost, of those the longest. */
export class AddedTokenFinder {
  readonly #root: TokenPrefix = { id: undefined, next: new Map() }
  readonly #firstCharacter: RegExp

  /** @param ids by text */
  constructor(ids: ReadonlyMap<string, number>) {
    for (const [text, id] of ids) if (text !== '') this.#add(text, id)
    const firsts = [...this.#root.next.keys()].map((code) => `\\u${code.toString(16).padStart(4, '0')}`)
    this.#firstCharacter = new RegExp(`[${firsts.join('')}]`, 'g')
  }

  #add(text: string, id: number): void {
    let at = this.#root
    for (let place = 0; place < text.length; place += 1) {
      const code = text.charCodeAt(place)
      const next = at.next.get(code) ?? { id: undefined, next: new Map() }
      at.next.set(code, next)
      at = next
    }
    at.id = id
  }

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
