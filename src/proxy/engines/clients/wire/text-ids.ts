import { ProxyError } from '../../../../base/errors.ts'
import type { EngineConnection } from './connection.ts'
import { isRecord, parseJson } from './failures.ts'

/**
 * What a server's tokenizer makes of a text: `POST /tokenize` of vLLM and of newer SGLang (0.5.23 has it). Asked once, and
 * again after the server was away: it may be another one then.
 */
export class TextIds {
  readonly #connection: EngineConnection
  #known: { ids: readonly number[] | undefined } | undefined

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  forget(): void {
    this.#known = undefined
  }

  /** @returns undefined where the server does not tell */
  async of(
    text: string,
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<readonly number[] | undefined> {
    this.#known ??= { ids: await this.#ask(text, model, signal) }
    return this.#known.ids
  }

  async #ask(prompt: string, model: string | undefined, signal: AbortSignal) {
    const json = JSON.stringify({ model, prompt, add_special_tokens: false })
    try {
      const response = await this.#connection.request('/tokenize', signal, json)
      const said = parseJson(await this.#connection.text(response, signal))
      const tokens = isRecord(said) ? said.tokens : undefined
      return Array.isArray(tokens) && tokens.every(Number.isInteger) ? (tokens as number[]) : undefined
    } catch (thrown) {
      // A gateway may keep the route to itself, and a server may have been started without a tokenizer.
      const refuses = ['engine_rejected', 'engine_failed']
      if (thrown instanceof ProxyError && refuses.includes(thrown.code)) return undefined
      throw thrown
    }
  }
}
