/**
 * A cache of the texts of single tokens from vLLM's `POST /detokenize` (`vllm/entrypoints/serve/tokenize/`). The route
 * returns one text for all tokens, so they are sent with a separator between them.
 */
import { isRecord, parseJson } from '../../../../base/json.ts'

/** A function that POSTs JSON to a path of the engine and returns the response body. @throws ProxyError */
export type JsonPoster = (path: string, json: string) => Promise<string>

/** Characters of no language, so that no token forms a character with them. */
const SEPARATOR = '\u241e\u241f\u241e'
const PER_REQUEST = 4_000
/**
 * The maximum number of texts to request for one list of ids, one for each different token or group of tokens that form
 * a character: about the size of a vocabulary.
 */
const MAX_REQUESTED = 40_000
/** The replacement for bytes that do not form a character. */
const PARTIAL = '\ufffd'
/** The number of cached texts beyond which the cache is cleared. */
const MAX_KNOWN = 400_000

export class TokenTextCache {
  readonly #model: string
  /** The text by id of a token, or by the ids of several tokens that form a character together. */
  readonly #known = new Map<string, string>()
  #separator: readonly number[] | undefined

  constructor(model: string) {
    this.#model = model
  }

  /**
   * Returns the text that each token adds; adjacent tokens with incomplete characters have their text at the last of
   * them.
   * @returns undefined if more than {@link MAX_REQUESTED} texts are unknown, or if the engine's text cannot be split
   * @throws ProxyError
   */
  async getTexts(ids: Int32Array, post: JsonPoster): Promise<string[] | undefined> {
    if (!(await this.#requestUnknown([...new Set(ids)].map(String), post))) return undefined
    const runs = findPartialRuns(ids, (id) => this.#known.get(String(id))!)
    if (!(await this.#requestUnknown([...new Set(runs.map(({ key }) => key))], post))) return undefined
    const texts = Array.from(ids, (id) => this.#known.get(String(id))!)
    for (const { start, end, key } of runs) {
      texts.fill('', start, end)
      texts[end - 1] = this.#known.get(key)!
    }
    return texts
  }

  /** Requests the unknown texts. @returns whether all texts are known afterwards */
  async #requestUnknown(keys: readonly string[], post: JsonPoster): Promise<boolean> {
    if (this.#known.size > MAX_KNOWN) this.#known.clear()
    const unknown = keys.filter((key) => !this.#known.has(key))
    if (unknown.length > MAX_REQUESTED) return false
    for (let start = 0; start < unknown.length; start += PER_REQUEST) {
      const chunk = unknown.slice(start, start + PER_REQUEST)
      const texts = await this.#requestTexts(chunk, post)
      if (texts === undefined) return false
      for (const [index, key] of chunk.entries()) this.#known.set(key, texts[index]!)
    }
    return keys.every((key) => this.#known.has(key))
  }

  async #requestTexts(keys: readonly string[], post: JsonPoster): Promise<string[] | undefined> {
    this.#separator ??= await this.#tokenize(SEPARATOR, post)
    const separator = this.#separator
    if (separator === undefined || separator.length === 0) return undefined
    const tokens = [...separator, ...keys.flatMap((key) => [...key.split(',').map(Number), ...separator])]
    const texts = (await this.#detokenize(tokens, post))?.split(SEPARATOR)
    // The first and last text must be empty: a tokenizer that adds text there is not supported.
    const isUnderstood = texts?.length === keys.length + 2 && texts[0] === '' && texts.at(-1) === ''
    return isUnderstood ? texts.slice(1, -1) : undefined
  }

  async #tokenize(prompt: string, post: JsonPoster): Promise<number[] | undefined> {
    const json = JSON.stringify({ model: this.#model, prompt, add_special_tokens: false })
    const response = parseJson(await post('/tokenize', json))
    return isRecord(response) && Array.isArray(response.tokens) ? (response.tokens as number[]) : undefined
  }

  async #detokenize(tokens: readonly number[], post: JsonPoster): Promise<string | undefined> {
    const response = parseJson(await post('/detokenize', JSON.stringify({ model: this.#model, tokens })))
    return isRecord(response) && typeof response.prompt === 'string' ? response.prompt : undefined
  }
}

/** The tokens from `start` up to, not including, `end`; `key` contains their ids. */
interface TextRun {
  start: number
  end: number
  key: string
}

/** Returns the runs of two or more adjacent tokens that have incomplete characters. */
function findPartialRuns(ids: Int32Array, getText: (id: number) => string): TextRun[] {
  const runs: TextRun[] = []
  for (let start = 0; start < ids.length; start += 1) {
    let end = start
    while (end < ids.length && getText(ids[end]!).includes(PARTIAL)) end += 1
    if (end - start > 1) runs.push({ start, end, key: ids.subarray(start, end).join(',') })
    if (end > start) start = end - 1
  }
  return runs
}
