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

export interface FoundToken {
  id: number
  begin: number
  /** The character behind it. */
  end: number
}

/** Finds them as tokenizers do: the leftmost, of those the longest. */
export class AddedTokenFinder {
  readonly #ids: ReadonlyMap<string, number>
  readonly #firstCharacter: RegExp
  /** Of tokens by what they begin with, the longest first: some models have thousands of a few lengths. */
  readonly #lengths = new Map<string, number[]>()

  /** @param ids by text */
  constructor(ids: ReadonlyMap<string, number>) {
    this.#ids = ids
    for (const text of ids.keys()) {
      if (text === '') continue
      const first = text.charAt(0)
      const lengths = this.#lengths.get(first) ?? []
      if (!lengths.includes(text.length)) lengths.push(text.length)
      this.#lengths.set(first, lengths)
    }
    for (const lengths of this.#lengths.values()) lengths.sort((a, b) => b - a)
    const firsts = [...this.#lengths.keys()].map(
      (first) => `\\u${first.charCodeAt(0).toString(16).padStart(4, '0')}`,
    )
    this.#firstCharacter = new RegExp(`[${firsts.join('')}]`, 'g')
  }

  *find(text: string): Generator<FoundToken> {
    const pattern = new RegExp(this.#firstCharacter)
    for (let match = pattern.exec(text); match !== null; match = pattern.exec(text)) {
      const found = this.#at(text, match.index)
      if (found === undefined) continue
      yield found
      pattern.lastIndex = found.end
    }
  }

  #at(text: string, begin: number): FoundToken | undefined {
    for (const length of this.#lengths.get(text.charAt(begin))!) {
      const id = this.#ids.get(text.slice(begin, begin + length))
      if (id !== undefined) return { id, begin, end: begin + length }
    }
    return undefined
  }
}
