import { isRecord } from '../../../../base/json.ts'
import { COMPARED_CHATS, type TokenizerQuery, type TokenizerReply } from '../../port/expected-tokenizer.ts'
import type { EngineConnection } from './connection.ts'

/** The time limit for a query; a busy engine is queried again at the next check. */
const READING_MS = 3_000

/** The request by which a kind of engine returns the texts of ids, and the parser of its response. */
export interface DetokenizeRequest {
  path: string
  buildBody(ids: readonly number[], model: string | undefined): string
  readTexts(response: unknown, ids: readonly number[]): (string | undefined)[] | undefined
}

/**
 * A server's tokenization of a text and of chats: `POST /tokenize` of vLLM and of newer SGLang (0.5.23 has it). A
 * server without that route scores ids, and returns their texts with their logprobs. Queried once, and again after the
 * server was unreachable: another one may have replaced it.
 */
export class RemoteTokenizer {
  readonly #connection: EngineConnection
  readonly #reading: DetokenizeRequest
  #known: TokenizerReply | undefined

  constructor(connection: EngineConnection, reading: DetokenizeRequest) {
    this.#connection = connection
    this.#reading = reading
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
    if (textIds === undefined) return await this.#read(question.ids, model, signal)
    const chatIds: Record<string, number[]> = {}
    for (const [name, chat] of question.chats ? Object.entries(COMPARED_CHATS) : []) {
      // The generation prompt is not specified: SGLang then renders as for its chat route, and both end with it.
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

  async #read(
    ids: readonly number[] | undefined,
    model: string | undefined,
    signal: AbortSignal,
  ): Promise<TokenizerReply> {
    if (ids === undefined) {
      this.#known = {}
      return this.#known
    }
    const limit = AbortSignal.timeout(READING_MS)
    try {
      const { path, buildBody: body, readTexts: textsIn } = this.#reading
      const either = AbortSignal.any([signal, limit])
      const response = await this.#connection.queryIfSupported(path, either, body(ids, model))
      const idTexts = textsIn(response, ids)
      this.#known = idTexts === undefined ? {} : { idTexts }
      return this.#known
    } catch (thrown) {
      if (limit.aborted && !signal.aborted) return {}
      throw thrown
    }
  }
}
