import { ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'
import { COMPARED_CHATS, type TokenizerQuery, type TokenizerReply } from '../../port/expected-tokenizer.ts'
import type { EngineConnection } from './connection.ts'
import { isLastingRejection } from './failures.ts'

/** The time limit of a query for the texts of ids; a busy engine is queried again at the next health check. */
const DETOKENIZE_MS = 3_000
/**
 * The number of queries with error responses after which the reply is cached: SGLang without a tokenizer
 * (`--skip-tokenizer-init`, 0.5.23) responds with 500 and logs a traceback each time.
 */
const MAX_FAILED_QUERIES = 3

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
  readonly #connection: Pick<EngineConnection, 'query'>
  readonly #detokenize: DetokenizeRequest
  #known: TokenizerReply | undefined
  /** The number of consecutive queries with an error response that may be transient. */
  #failedQueries = 0
  /** The transient failure of a request of the current query; undefined: the reply is complete. */
  #failure: 'error' | 'timeout' | undefined

  constructor(connection: Pick<EngineConnection, 'query'>, detokenize: DetokenizeRequest) {
    this.#connection = connection
    this.#detokenize = detokenize
  }

  forget(): void {
    this.#known = undefined
    this.#failedQueries = 0
  }

  /** Returns the server's reply, as far as it supports the query. Must not be invoked concurrently. */
  async query(
    question: TokenizerQuery | undefined,
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<TokenizerReply> {
    if (question === undefined) return {}
    if (this.#known !== undefined) return this.#known
    this.#failure = undefined
    const reply = await this.#requestReply(question, model, signal)
    if (this.#failure === 'error') this.#failedQueries += 1
    if (this.#failure === undefined || this.#failedQueries >= MAX_FAILED_QUERIES) this.#known = reply
    return reply
  }

  async #requestReply(
    question: TokenizerQuery,
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<TokenizerReply> {
    const textIds = await this.#tokenize({ model, prompt: question.text, add_special_tokens: false }, signal)
    if (textIds === undefined) return await this.#readIdTexts(question.ids, model, signal)
    const chatIds: Record<string, number[]> = {}
    for (const [name, chat] of question.chats ? Object.entries(COMPARED_CHATS) : []) {
      // `add_generation_prompt` is omitted: SGLang then renders as its chat route does, and both engines append the
      // generation prompt.
      const ids = await this.#tokenize({ model, ...chat }, signal)
      if (ids !== undefined) chatIds[name] = ids
    }
    return { textIds, chatIds }
  }

  /** Returns the ids; undefined if the server does not report them. */
  async #tokenize(body: object, signal: AbortSignal): Promise<number[] | undefined> {
    const response = await this.#post('/tokenize', signal, JSON.stringify(body))
    const tokens = isRecord(response) ? response.tokens : undefined
    return Array.isArray(tokens) && tokens.every(Number.isInteger) ? (tokens as number[]) : undefined
  }

  async #readIdTexts(
    ids: readonly number[] | undefined,
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<TokenizerReply> {
    if (ids === undefined) return {}
    const limit = AbortSignal.timeout(DETOKENIZE_MS)
    try {
      const { path, buildBody, readTexts } = this.#detokenize
      const either = AbortSignal.any([signal, limit])
      const idTexts = readTexts(await this.#post(path, either, buildBody(ids, model)), ids)
      return idTexts === undefined ? {} : { idTexts }
    } catch (thrown) {
      if (!limit.aborted || signal.aborted) throw thrown
      this.#failure = 'timeout'
      return {}
    }
  }

  /**
   * Returns the response of a POST, parsed as JSON.
   * @returns undefined for an error response: a gateway may block a route, a server may have no tokenizer
   */
  async #post(path: string, signal: AbortSignal, json: string): Promise<unknown> {
    try {
      return parseJson(await this.#connection.query(path, signal, json))
    } catch (thrown) {
      const isResponse =
        thrown instanceof ProxyError && ['engine_rejected', 'engine_failed'].includes(thrown.code)
      if (!isResponse) throw thrown
      if (!isLastingRejection(thrown)) this.#failure = 'error'
      return undefined
    }
  }
}
