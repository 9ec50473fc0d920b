/**
 * What single tokens read like, by `POST /detokenize`, which answers with one text for all of them
 * (`vllm/entrypoints/serve/tokenize/`): the tokens are sent with a separator between them.
 */
import { isRecord, parseJson } from '../../../../base/json.ts'

/** POSTs JSON to a path of the engine. @returns the body of its answer @throws ProxyError */
export type Post = (path: string, json: string) => Promise<string>

/** Of no language, so that no token spells it with a neighbour. */
const SEPARATOR = '\u241e\u241f\u241e'
const PER_REQUEST = 4_000
/** More different tokens, or pieces of characters, than these are not asked for: about what a vocabulary holds. */
const MAX_ASKED = 40_000
/** Stands for bytes that are no character by themselves. */
const PARTIAL = '\ufffd'
const MAX_KNOWN = 400_000

export class TokenTextCache {
  readonly #model: string
  /** By the ids of a token, or of several that spell a character together. */
  readonly #known = new Map<string, string>()
  #separator: readonly number[] | undefined

  constructor(model: string) {
    this.#model = model
  }

  /**
   * What each token adds to the text; neighbours that are no whole characters have their text at the last of them.
   * @returns undefined where the engine does not tell them apart
   * @throws ProxyError
   */
  async getTexts(ids: Int32Array, post: Post): Promise<string[] | undefined> {
    if (!(await this.#learn([...new Set(ids)].map(String), post))) return undefined
    const runs = partialRuns(ids, (id) => this.#known.get(String(id))!)
    if (!(await this.#learn([...new Set(runs.map(({ key }) => key))], post))) return undefined
    const texts = Array.from(ids, (id) => this.#known.get(String(id))!)
    for (const { start, end, key } of runs) {
      texts.fill('', start, end)
      texts[end - 1] = this.#known.get(key)!
    }
    return texts
  }

  /** @returns whether all of them are known then */
  async #learn(keys: readonly string[], post: Post): Promise<boolean> {
    if (this.#known.size > MAX_KNOWN) this.#known.clear()
    const unknown = keys.filter((key) => !this.#known.has(key))
    if (unknown.length > MAX_ASKED) return false
    for (let start = 0; start < unknown.length; start += PER_REQUEST) {
      const piece = unknown.slice(start, start + PER_REQUEST)
      const texts = await this.#ask(piece, post)
      if (texts === undefined) return false
      for (const [place, key] of piece.entries()) this.#known.set(key, texts[place]!)
    }
    return keys.every((key) => this.#known.has(key))
  }

  async #ask(keys: readonly string[], post: Post): Promise<string[] | undefined> {
    this.#separator ??= await this.#tokenize(SEPARATOR, post)
    const separator = this.#separator
    if (separator === undefined || separator.length === 0) return undefined
    const tokens = [...separator, ...keys.flatMap((key) => [...key.split(',').map(Number), ...separator])]
    const texts = (await this.#detokenize(tokens, post))?.split(SEPARATOR)
    // The first and the last are what is around all of them: a tokenizer that puts anything there is not understood.
    const isUnderstood = texts?.length === keys.length + 2 && texts[0] === '' && texts.at(-1) === ''
    return isUnderstood ? texts.slice(1, -1) : undefined
  }

  async #tokenize(prompt: string, post: Post): Promise<number[] | undefined> {
    const json = JSON.stringify({ model: this.#model, prompt, add_special_tokens: false })
    const said = parseJson(await post('/tokenize', json))
    return isRecord(said) && Array.isArray(said.tokens) ? (said.tokens as number[]) : undefined
  }

  async #detokenize(tokens: readonly number[], post: Post): Promise<string | undefined> {
    const said = parseJson(await post('/detokenize', JSON.stringify({ model: this.#model, tokens })))
    return isRecord(said) && typeof said.prompt === 'string' ? said.prompt : undefined
  }
}

interface TextRun {
  start: number
  end: number
  key: string
}

/** Neighbours that are no whole characters by themselves. */
function partialRuns(ids: Int32Array, textOf: (id: number) => string): TextRun[] {
  const runs: TextRun[] = []
  for (let start = 0; start < ids.length; start += 1) {
    let end = start
    while (end < ids.length && textOf(ids[end]!).includes(PARTIAL)) end += 1
    if (end - start > 1) runs.push({ start, end, key: ids.subarray(start, end).join(',') })
    if (end > start) start = end - 1
  }
  return runs
}
