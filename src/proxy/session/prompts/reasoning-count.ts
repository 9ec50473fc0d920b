/** Text enough to find the marker that opens reasoning: it is recognised at the beginning only. */
const HEAD_CHARS = 1_024

/** How many of an answer's tokens are its reasoning, without the markers, as vLLM counts (`count_reasoning_tokens`). */
export class ReasoningCount {
  /** null: the prompt has opened it. */
  readonly #openedBy: string | null
  readonly #open: string
  /** Where in the text each token begins. */
  readonly #begins: number[] = []
  #length = 0
  #head = ''
  #reasoningChars = 0

  constructor({ open }: { open: string }, startsInReasoning: boolean) {
    this.#open = open
    this.#openedBy = startsInReasoning ? null : open
  }

  /** @param text that the token completed */
  addToken(text: string): void {
    this.#begins.push(this.#length)
    this.#length += text.length
    if (this.#head.length < HEAD_CHARS) this.#head += text
  }

  addReasoning(text: string): void {
    this.#reasoningChars += text.length
  }

  count(): number {
    if (this.#reasoningChars === 0) return 0
    let from = this.#openedBy === null ? 0 : this.#head.indexOf(this.#openedBy)
    while (this.#head.startsWith(this.#open, from)) from += this.#open.length
    const end = from + this.#reasoningChars
    return this.#begins.filter((begin) => begin >= from && begin < end).length
  }
}
