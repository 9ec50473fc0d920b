import { isRecord } from '../../../../base/json.ts'
import { COMPARED_CHATS, type TokenizerQuery, type TokenizerReply } from '../../port/expected-tokenizer.ts'
import type { EngineConnection } from './connection.ts'

/** The time limit of a query for the texts of ids; a busy engine is queried again at the next health check. */
const DETOKENIZE_MS = 3_000

/** The request to which engines of a kind respond with the texts of ids, and the parser of the response. */
export interface DetokenizeRequest {
  path: string
  buildBody(ids: readonly number[], model: string | undefined): string
  readTexts(response: unknown, ids: readonly number[]): (string | undefined)[] | undefined
}

/**
 * Queries of a server's tokenizer. `POST /tokenize` of vLLM and of newer SGLang (0.5.23 has it) tokenizes a text and
 * chats. A server without that route scores ids, and returns their texts with the logprobs. The reply is cached until
 * the server was unreachable, because another one may have replaced it.
 */
export class RemoteTokenizer {
  readonly #connection: EngineConnection
  readonly #detokenize: DetokenizeRequest
  #known: TokenizerReply | undefined

  constructor(connection: EngineConnection, detokenize: DetokenizeRequest) {
    this.#connection = connection
    this.#detokenize = detokenize
  }

  forget(): void {
    this.#known = undefined
  }

  async query(
    question: TokenizerQuery | undefined,
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<TokenizerReply> {
    if (question === undefined) return {}
    if (this.#known !== undefined) return this.#known
    const textIds = await this.#tokenize({ model, prompt: question.text, add_special_tokens: false }, signal)
    if (textIds === undefined) return await this.#readIdTexts(question.ids, model, signal)
    const chatIds: Record<string, number[]> = {}
    for (const [name, chat] of question.chats ? Object.entries(COMPARED_CHATS) : []) {
      // `add_generation_prompt` is omitted: SGLang then renders as its chat route does, and both engines append the
      // generation prompt.
      const ids = await this.#tokenize({ model, ...chat }, signal)
      if (ids !== undefined) chatIds[name] = ids
    }
    this.#known = { textIds, chatIds }
    return this.#known
  }

  /** Returns the ids; undefined if the server does not report them. */
  async #tokenize(body: object, signal: AbortSignal): Promise<number[] | undefined> {
    const response = await this.#connection.queryIfSupported('/tokenize', signal, JSON.stringify(body))
    const tokens = isRecord(response) ? response.tokens : undefined
    return Array.isArray(tokens) && tokens.every(Number.isInteger) ? (tokens as number[]) : undefined
  }

  async #readIdTexts(
    ids: readonly number[] | undefined,
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<TokenizerReply> {
    if (ids === undefined) {
      this.#known = {}
      return this.#known
    }
    const limit = AbortSignal.timeout(DETOKENIZE_MS)
    try {
      const { path, buildBody, readTexts } = this.#detokenize
      const either = AbortSignal.any([signal, limit])
      const response = await this.#connection.queryIfSupported(path, either, buildBody(ids, model))
      const idTexts = readTexts(response, ids)
      this.#known = idTexts === undefined ? {} : { idTexts }
      return this.#known
    } catch (thrown) {
      if (limit.aborted && !signal.aborted) return {}
      throw thrown
    }
  }
}
