/** The embedded engine, which samples from a small n-gram model, for tests, benchmarks and demonstrations. */
import { ProxyError } from '../../base/errors.ts'
import { raceAbort } from '../../base/race-abort.ts'
import type { EventSink, GenerationEvent } from '../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../protocol/canonical/request.ts'
import { PromptIds } from '../../protocol/token-ids/prompt-ids.ts'
import { isTokenRequest } from '../../proxy/engines/clients/wire/request.ts'
import type { EngineClient, EngineHealth } from '../../proxy/engines/port/engine-client.ts'
import type { TokenizerQuery } from '../../proxy/engines/port/expected-tokenizer.ts'
import type { ScoreRequest, ScoreResult } from '../../proxy/engines/port/score.ts'
import { hermes } from '../../proxy/tokens/parsers/json-families.ts'
import type { OutputParser } from '../../proxy/tokens/parsers/output-parser.ts'
import {
  createJavaScriptEncoder,
  openRustEncoder,
  type TextEncoder,
} from '../../proxy/tokens/tokenizer/encoder.ts'
import defaultPlaybook from './default-playbook.json' with { type: 'json' }
import { type EmbeddedModel, getEmbeddedModelFolder, loadEmbeddedModel } from './embedded-model.ts'
import { Generation } from './generation.ts'
import { TokenPacer } from './pace.ts'
import { Playbook } from './playbook.ts'
import {
  buildChatPrompt,
  buildCompletionPrompt,
  buildTokenPrompt,
  checkTokenIds,
  type EmbeddedPrompt,
} from './prompt.ts'
import { readPrompt } from './prompt-conversation.ts'
import {
  createTooLongError,
  readLogprobsOptions,
  readSamplingParams,
  type SamplingParams,
} from './sampling-params.ts'
import { rankTokens, type TokenRank } from './score.ts'

/** The options of an {@link EmbeddedEngine}. */
export interface EmbeddedEngineOptions {
  /** The model's name in responses and lists. Requests may name any model. Default: `embedded`. */
  model?: string | undefined
  /**
   * The maximum number of tokens of prompt and completion together. Default: 131072, which is enough for the first
   * prompts of all tested agents.
   */
  contextLength?: number | undefined
  /** The time to the first token, in milliseconds. Default: 0. */
  latencyMs?: number
  /** The rate of the tokens after the first one; 0: unlimited. Default: 0. */
  tokensPerSecond?: number
  /** The initial value of {@link EmbeddedEngine.weightVersion}. Default: none. */
  weightVersion?: string | undefined
  /** Forced completions. Default: the built-in playbook, a calculator's tool loop. */
  playbook?: Playbook | undefined
  /**
   * The length of a constant completion, for benchmarks. Every completion is this text, or its beginning if the request
   * sets a lower limit; logprobs are still the model's own. Default: completions are sampled.
   */
  cannedTokens?: number
}

/** The default of `max_tokens` in completion requests of OpenAI's and vLLM's API. */
const COMPLETION_MAX_TOKENS = 16

/** The maximum length of a text that is encoded on the event loop, which takes about 16 ms. */
const INLINE_LIMIT_CHARS = 16 * 1024

/** The embedded engine. It accepts chat, completion and token requests. */
export class EmbeddedEngine implements EngineClient {
  readonly kind = 'embedded'
  readonly name = 'embedded'
  readonly takesTokenIds = true
  readonly model: string
  readonly contextLength: number
  /** The weight version that completions report when they start and when they end. */
  weightVersion: string | undefined
  #running = 0
  /**
   * The seed of the next request that sets none. Requests have different completions, but a restarted engine repeats
   * the same ones, like vLLM with its default seed of 0.
   */
  #nextSeed = 0
  readonly #model: EmbeddedModel
  /** The encoder of long texts, which is opened for the first one. */
  #encoder: Promise<TextEncoder> | undefined
  readonly #playbook: Playbook
  readonly #latencyMs: number
  readonly #tokensPerSecond: number
  readonly #canned: readonly number[] | undefined

  constructor(options: EmbeddedEngineOptions = {}) {
    this.model = options.model ?? 'embedded'
    this.contextLength = options.contextLength ?? 131_072
    this.weightVersion = options.weightVersion
    this.#model = loadEmbeddedModel()
    this.#playbook = options.playbook ?? new Playbook(defaultPlaybook, 'default-playbook.json')
    this.#latencyMs = options.latencyMs ?? 0
    this.#tokensPerSecond = options.tokensPerSecond ?? 0
    this.#canned = options.cannedTokens
      ? createCannedCompletion(this.#model, options.cannedTokens)
      : undefined
  }

  /** The number of running completions. */
  get running(): number {
    return this.#running
  }

  async generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    signal.throwIfAborted()
    if (request.images !== undefined) {
      const message = `the engine at ${this.name} does not accept images with token ids: token mode needs vLLM or SGLang for them`
      throw new ProxyError('unsupported', message, { param: 'messages' })
    }
    const { promptIds, generation } = await this.#begin(request)
    const { name: engine, model, weightVersion } = this
    const start = { type: 'start', engine, model, promptTokenIds: promptIds, weightVersion } as const
    let events: GenerationEvent[] = [start]
    await this.#run(generation, signal, async (batch) => {
      events.push(...batch)
      if (!request.stream && !generation.done) return
      const accepted = sink.write(events)
      if (accepted !== undefined) await raceAbort(accepted, signal)
      events = []
    })
  }

  checkHealth(signal: AbortSignal, question?: TokenizerQuery): Promise<EngineHealth> {
    signal.throwIfAborted()
    const { model: id, contextLength: maxModelLen, weightVersion } = this
    const reply = question && { textIds: this.#model.tokenizer.encode(question.text) }
    return Promise.resolve({ models: [{ id, maxModelLen }], weightVersion, ...reply })
  }

  async close(): Promise<void> {
    await (await this.#encoder)?.close()
  }

  /** Returns the ids of the prompt with which `generate` samples these messages. @throws ProxyError as `generate` */
  async tokenizeChat(body: ChatBody): Promise<number[]> {
    return (await buildChatPrompt((text) => this.tokenizeText(text), body)).ids
  }

  async countTokens(body: ChatBody): Promise<number> {
    return (await this.tokenizeChat(body)).length
  }

  async score({ promptTokenIds, completionTokenIds, alternatives }: ScoreRequest): Promise<ScoreResult> {
    const ids = [...promptTokenIds, ...completionTokenIds]
    return { tokens: this.rankTokens(ids, promptTokenIds.length, alternatives) }
  }

  /**
   * Scores and ranks the tokens of a sequence.
   * @param from the index of the first token to rank
   * @param count the number of most probable tokens to return with each token
   * @throws ProxyError `engine_rejected` for invalid ids
   */
  rankTokens(ids: readonly number[], from: number, count: number): TokenRank[] {
    checkTokenIds(this.#model, ids, 'prompt')
    return rankTokens(this.#model.ngrams, ids, from, count)
  }

  /** Tokenizes a text. Long texts are encoded off the event loop. */
  async tokenizeText(text: string): Promise<number[]> {
    const { tokenizer } = this.#model
    if (text.length <= INLINE_LIMIT_CHARS) return tokenizer.encode(text)
    this.#encoder ??= openRustEncoder(getEmbeddedModelFolder()).then(
      (rust) => rust ?? createJavaScriptEncoder(tokenizer),
    )
    return Array.from(await (await this.#encoder).encode(text))
  }

  /** Decodes ids to text. @throws ProxyError `engine_rejected` for invalid ids */
  detokenize(ids: readonly number[]): string {
    checkTokenIds(this.#model, ids, 'tokens')
    return this.#model.tokenizer.decode(ids)
  }

  /** Returns the vocabulary entry of each token. */
  getTokenStrings(ids: readonly number[]): string[] {
    return ids.map((id) => this.#model.tokenizer.idToToken(id) ?? '')
  }

  async #begin(request: GenerationRequest): Promise<{ promptIds: PromptIds; generation: Generation }> {
    const { kind, body } = request
    const prompt = await this.#createPrompt(request)
    const params = readSamplingParams(body, {
      contextLength: this.contextLength,
      promptLength: prompt.ids.length,
      defaultMaxTokens: kind === 'chat' ? this.contextLength : COMPLETION_MAX_TOKENS,
      defaultSeed: this.#nextSeed++,
      cutsMaxTokens: isTokenRequest(request),
    })
    const logprobsOptions = readLogprobsOptions(body)
    const forced = this.#findForcedCompletion(prompt, body.model, params)
    const generation = new Generation(this.#model, {
      promptIds: prompt.ids,
      ...forced,
      parser: kind === 'chat' && !isTokenRequest(request) ? makeParser(body) : undefined,
      logprobsOptions,
      record: request.record,
    })
    return { promptIds: PromptIds.from(prompt.ids), generation }
  }

  /** Encodes a prompt. A text that exceeds the context length in any encoding is rejected before it is encoded. */
  readonly #encodePrompt = (text: string): Promise<number[]> => {
    const atLeast = Math.ceil(text.length / this.#model.longestTokenChars)
    if (atLeast > this.contextLength) throw createTooLongError({ contextLength: this.contextLength, atLeast })
    return this.tokenizeText(text)
  }

  async #createPrompt(request: GenerationRequest): Promise<EmbeddedPrompt> {
    if (isTokenRequest(request)) return buildTokenPrompt(this.#model, Array.from(request.promptTokenIds))
    return request.kind === 'chat'
      ? await buildChatPrompt(this.#encodePrompt, request.body)
      : await buildCompletionPrompt(this.#model, this.#encodePrompt, request.body)
  }

  /**
   * Returns the forced beginning of the completion, if there is one, and the parameters, in which a rule of the
   * playbook may have reduced the maximum length.
   */
  #findForcedCompletion(
    prompt: EmbeddedPrompt,
    model: string | undefined,
    params: SamplingParams,
  ): { params: SamplingParams; forcedIds?: readonly number[] } {
    if (this.#canned) return { params, forcedIds: this.#canned }
    const conversation = this.#playbook.isEmpty ? undefined : readPrompt(prompt.text())
    const response = conversation && this.#playbook.findResponse(conversation, model)
    if (!response) return { params }
    const forcedIds = [...this.#model.tokenizer.encode(response.text), this.#model.eosTokenId]
    if (response.cutAfterTokens === undefined) return { params, forcedIds }
    const maxTokens = Math.min(params.maxTokens, response.cutAfterTokens)
    return { params: { ...params, maxTokens }, forcedIds }
  }

  /** Generates tokens at the engine's rate. Each batch is written before the next one is generated. */
  async #run(
    generation: Generation,
    signal: AbortSignal,
    write: (batch: readonly GenerationEvent[]) => Promise<void>,
  ): Promise<void> {
    const pace = new TokenPacer(this.#latencyMs, this.#tokensPerSecond)
    this.#running++
    try {
      while (!generation.done) {
        const events: GenerationEvent[] = []
        await pace.generateDue(signal, () => {
          events.push(...generation.generateNext())
          return !generation.done
        })
        const last = events.at(-1)
        if (last?.type === 'end') last.weightVersion = this.weightVersion
        await write(events)
        signal.throwIfAborted()
      }
    } finally {
      this.#running--
    }
  }
}

function makeParser(body: ChatBody): OutputParser {
  return hermes.create({ tools: body.tool_choice === 'none' ? null : body.tools })
}

/** The sentence of which constant completions consist. */
const SENTENCE =
  'The server reads a request, asks the engine for tokens, and writes them down before it answers. '

/** Returns the ids of a text of exactly `length` tokens; the last one ends the turn. */
function createCannedCompletion({ tokenizer, eosTokenId }: EmbeddedModel, length: number): number[] {
  const sentence = tokenizer.encode(SENTENCE)
  const text = Array.from({ length: length - 1 }, (_, i) => sentence[i % sentence.length]!)
  return [...text, eosTokenId]
}
