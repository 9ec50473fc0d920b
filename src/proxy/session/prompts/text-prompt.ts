/**
 * The prompt of a text completion in token mode. The request and its response are forwarded unchanged unless the engine
 * request is cut. An engine decodes only the part that it samples, so the text after a cut is decoded here, from the
 * ids of all parts.
 */
import { ProxyError } from '../../../base/errors.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import {
  type CompletionDecoder,
  createCompletionText,
  createTextDecoder,
  getEndTokenIds,
} from './completion-decoder.ts'
import { type ContinuationPlanner, TokenContinuationPlanner } from './continuation.ts'
import type { RequestPrompt } from './prompts.ts'

/** A request to an engine with a prompt of text or ids. */
type TextGenerationRequest = Extract<GenerationRequest, { kind: 'completion' }>

/** The prompt of one text completion. */
export class TextPrompt implements RequestPrompt {
  readonly request: TextGenerationRequest
  readonly #model: TokenModel
  /** The planner, created when {@link continuation} is first read. */
  #continuation: ContinuationPlanner | undefined
  #promptIds: readonly number[] | undefined
  #isStarted = false
  /** The text that the engine has sent so far, collected only if the response may be continued. */
  #text = ''
  /** The ids of the first part; undefined: it was not cut. */
  #sampled: number[] | undefined
  /** The decoder of all text after the first part. */
  #decoder: CompletionDecoder | undefined

  constructor(model: TokenModel, request: TextGenerationRequest) {
    const { prompt } = request.body
    this.#model = model
    this.request = request
    this.#promptIds = typeof prompt === 'string' ? undefined : prompt
  }

  /**
   * The planner of a continuation. It must be read before the response begins, because the data that it needs is
   * collected only from then on.
   */
  get continuation(): ContinuationPlanner {
    this.#continuation ??= this.#createPlanner()
    return this.#continuation
  }

  prepareToRead(): void {}

  read(events: readonly GenerationEvent[]): readonly GenerationEvent[] | Promise<readonly GenerationEvent[]> {
    if (this.#continuation === undefined) return events
    if (this.#sampled !== undefined) return this.#decode(this.#sampled, events)
    for (const event of events) {
      if (event.type === 'delta') this.#text += event.content ?? ''
      if (event.type !== 'start') continue
      this.#isStarted = true
      this.#promptIds ??= event.promptTokenIds && [...event.promptTokenIds.toArray()]
    }
    return events
  }

  onCommitted(): void {}

  #createPlanner(): ContinuationPlanner {
    const { request } = this
    const { body } = request
    const continuation = new TokenContinuationPlanner({
      request,
      body,
      endTokenIds: getEndTokenIds(this.#model, body),
      createText: () => createCompletionText(this.#model, body),
      extend: (sampled, limit) => {
        if (sampled.length === 0) return request
        const prompt = [...this.#promptIds!, ...sampled]
        return { ...request, body: { ...body, prompt, max_tokens: limit ?? null } }
      },
    })
    const findObstacle = () => this.#findObstacle() ?? continuation.obstacle
    return {
      get obstacle() {
        return findObstacle()
      },
      plan: (sampled) => {
        // Before the first token, the start has not been forwarded: the next part is read like a first one.
        if (sampled.length > 0) this.#sampled ??= [...sampled]
        return continuation.plan(sampled)
      },
    }
  }

  #findObstacle(): string | undefined {
    const { body, record } = this.request
    const { prompt, max_tokens: limit, suffix, truncate_prompt_tokens: truncation } = body
    // Engines apply a default limit, which would apply to each part separately.
    if (typeof limit !== 'number') return "it does not set 'max_tokens'"
    if (typeof suffix === 'string' && suffix !== '') return "it sets 'suffix'"
    if (typeof truncation === 'number') return "it sets 'truncate_prompt_tokens'"
    if (typeof prompt === 'string' && record !== undefined)
      return 'it records token data after a prompt of text'
    if (this.#isStarted && this.#promptIds === undefined)
      return 'the engine did not report the token ids of its prompt'
    return undefined
  }

  async #decode(
    sampled: readonly number[],
    events: readonly GenerationEvent[],
  ): Promise<readonly GenerationEvent[]> {
    // The decoder reads only the events after the start.
    const rest = events.filter((event) => event.type !== 'start')
    if (this.#decoder !== undefined) return this.#decoder.read(rest)
    const { decoder, missing } = await this.#decodeFirstPart(sampled)
    this.#decoder = decoder
    return [{ type: 'delta', content: missing }, ...(await decoder.read(rest))]
  }

  /**
   * Decodes the first part again.
   * @returns the decoder for the following tokens, and the part of the text that the agent has not received
   */
  async #decodeFirstPart(
    sampled: readonly number[],
  ): Promise<{ decoder: CompletionDecoder; missing: string }> {
    // If a prompt of ids ends within a character, the text that vLLM returns begins with the rest of that character.
    for (const preceding of [[], this.#promptIds!]) {
      const decoder = createTextDecoder(this.#model, this.request.body)
      const [first] = await decoder.read([{ type: 'delta', tokenIds: [...preceding, ...sampled] }])
      const text = (first?.type === 'delta' && first.content) || ''
      if (text.startsWith(this.#text)) return { decoder, missing: text.slice(this.#text.length) }
    }
    throw new ProxyError('engine_failed', "The engine decodes tokens differently from this proxy's tokenizer")
  }
}
