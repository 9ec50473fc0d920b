import { ProxyError } from '../../../../base/errors.ts'
import { isRecord } from '../../../../base/json.ts'
import type { GenerationStream } from '../../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import type { EngineClient, EngineHealth } from '../../port/engine-client.ts'
import type { TokenizerQuestion } from '../../port/expected-tokenizer.ts'
import type { ScoreRequest, ScoreResult } from '../../port/score.ts'
import { OpenaiRoutes } from '../openai/routes.ts'
import { ToolCallConstraints } from '../tool-calls/tool-call-constraints.ts'
import type { ConnectionOptions } from '../wire/connection.ts'
import { readWith } from '../wire/generation.ts'
import { getModels } from '../wire/models.ts'
import {
  bodyWithIds,
  isTokenRequest,
  maxTokensOf,
  shownAlternatives,
  type TokenRequest,
  wantsLogprobs,
} from '../wire/request.ts'
import { ServerClient } from '../wire/server-client.ts'
import { ServerVersion } from '../wire/server-version.ts'
import { TokenizerAnswers } from '../wire/tokenizer-answers.ts'
import { weightVersionIn } from '../wire/weight-version.ts'
import { sglangCallTag, TAGS_SINCE } from './call-tags.ts'
import { GenerateReader } from './generate-reader.ts'
import { generateBody, imageBody } from './request.ts'
import { readSglangScores, SGLANG_READING, sglangScoreBody } from './score.ts'
import { SglangSessions } from './sessions.ts'

/** `npm run test:sglang` runs it. */
const TESTED = ['SGLang', '0.1', '0.5.23'] as const

/**
 * A client of SGLang's server: its routes of OpenAI's API (`python/sglang/srt/entrypoints/openai/`), whose versions differ
 * in how they give ids, and in token mode its own `/generate`.
 */
export function createSglangClient(options: ConnectionOptions): EngineClient {
  return new SglangClient(options)
}

class SglangClient extends ServerClient implements EngineClient {
  readonly kind = 'sglang'
  readonly takesTokenIds = true
  readonly takesImages = true
  readonly #openai: OpenaiRoutes
  readonly #tokenizer: TokenizerAnswers
  readonly #version: ServerVersion
  readonly #heldCalls: ToolCallConstraints
  readonly #sessions: SglangSessions
  /**
   * What its weights were called first: `/update_weights_from_disk` names them after their folder (`served_model_name` in
   * `tokenizer_manager.py`, 0.5.23), while calls go on to name the model; any name is its weights' to the server.
   */
  #servedName: string | undefined
  /** How many tokens its model holds, prompt and completion together, once a health check has seen it. */
  #contextLength: number | undefined
  #isOld: string | undefined
  /** Since its last failure: what is not ready after that is paused, and not starting. */
  #wasReady = false
  /** By the names that it lists. */
  #adapters: ReadonlySet<string> = new Set()

  constructor(options: ConnectionOptions) {
    super(options)
    this.#openai = new OpenaiRoutes(this.connection)
    this.#tokenizer = new TokenizerAnswers(this.connection, SGLANG_READING)
    this.#version = new ServerVersion(this.connection, ['/server_info', '/get_server_info'])
    this.#sessions = new SglangSessions(this.connection)
    this.#heldCalls = new ToolCallConstraints(this.#version, {
      since: TAGS_SINCE,
      // Its other backends know fewer kinds of tags.
      allows: ({ grammar_backend: backend }) => (backend ?? 'xgrammar') === 'xgrammar',
    })
  }

  async *generate(request: GenerationRequest, signal: AbortSignal): GenerationStream {
    const asked = this.#inSession(this.#withAdapter(withoutZero(request)))
    if (isTokenRequest(asked)) yield* this.#generateTokens(asked, signal)
    else yield* this.#openai.generate(asked, signal)
  }

  /** An agent's own session of the server is another way to make a prompt, which is not taken in token mode. */
  #inSession(request: GenerationRequest): GenerationRequest {
    if (!isTokenRequest(request) && isRecord(request.body.session_params)) return request
    const session_id = this.#sessions.getSessionName(request)
    return { ...request, body: { ...request.body, session_id } } as GenerationRequest
  }

  /** SGLang goes by `lora_path`, and takes any model's name for its own: the base weights would sample. */
  #withAdapter(request: GenerationRequest): GenerationRequest {
    const { model } = request.body
    if (model === undefined || !this.#adapters.has(model)) return request
    return { ...request, body: { ...request.body, lora_path: model } } as GenerationRequest
  }

  /**
   * No `rid` goes with the request, and a cancelled one is not named to `/abort_request`: that route takes an id for all
   * that begin with it. The server aborts what nobody is connected for.
   */
  async *#generateTokens(asked: TokenRequest, signal: AbortSignal): GenerationStream {
    const held = await this.#heldCalls.hold(asked, sglangCallTag(asked), signal)
    const request = withinLength(held, this.#contextLength)
    const json =
      request.images === undefined
        ? bodyWithIds(generateBody(request), 'input_ids', request)
        : JSON.stringify(imageBody(request, request.images))
    const response = await this.connection.request('/generate', signal, json, request)
    const reader = new GenerateReader({
      engine: this.name,
      promptTokenIds: request.promptTokenIds,
      hasImages: request.images !== undefined,
      wantsLogprobs: wantsLogprobs(request),
      ...(request.record && { record: request.record }),
      alternatives: shownAlternatives(request),
      expertsStart: request.expertsStart,
      redact: this.connection.endpoint.redact,
    })
    yield* readWith(reader, this.connection, response, signal)
  }

  async score(request: ScoreRequest, signal: AbortSignal): Promise<ScoreResult> {
    const text = await this.connection.ask('/generate', signal, sglangScoreBody(request))
    return { tokens: readSglangScores(this.name, text, request) }
  }

  get warning(): string | undefined {
    const said = [this.#openai.warning, this.#heldCalls.warning, this.#isOld]
    return said.filter((each) => each !== undefined).join('; ') || undefined
  }

  checkHealth(signal: AbortSignal, question?: TokenizerQuestion): Promise<EngineHealth> {
    return this.#openai.watch(() =>
      this.#checkHealth(signal, question).catch((thrown) => {
        this.#version.forget()
        this.#heldCalls.forget()
        this.#tokenizer.forget()
        this.#servedName = undefined
        this.#wasReady = false
        throw thrown
      }),
    )
  }

  async #checkHealth(signal: AbortSignal, question?: TokenizerQuestion): Promise<EngineHealth> {
    const isPaused = await this.#isPaused(signal)
    // Generates a token, on most versions: a dead engine behind its server does not pass, nor does a paused one.
    if (!isPaused) await this.connection.askOptional('/health', signal)
    const models = await getModels(this.connection, signal)
    this.#sessions.note(await this.#version.said(signal))
    this.#isOld = await this.#version.warningBefore(TESTED, signal)
    this.#adapters = new Set(models.filter(({ isAdapter }) => isAdapter).map(({ id }) => id))
    const weights = models.find(({ isAdapter }) => !isAdapter)
    this.#servedName ??= weights?.id
    this.#contextLength = weights?.maxModelLen
    if (weights && !models.some(({ id }) => id === this.#servedName))
      models.push({ ...weights, id: this.#servedName! })
    const info =
      (await this.connection.askOptional('/model_info', signal)) ??
      (await this.connection.askOptional('/get_model_info', signal))
    // One that is paused reads nothing.
    const tokenizer = isPaused ? {} : await this.#tokenizer.of(question, models[0]?.id, signal)
    return {
      models,
      weightVersion: weightVersionIn(info),
      unavailable: isPaused ? 'paused' : undefined,
      ...tokenizer,
    }
  }

  /** `/ready` is 503 while generation is paused (`is_ready` in `tokenizer_manager.py`, 0.5.23); older versions do not tell. */
  async #isPaused(signal: AbortSignal): Promise<boolean> {
    try {
      this.#wasReady = (await this.connection.askOptional('/ready', signal)) !== undefined
      return false
    } catch (thrown) {
      const isRefused = thrown instanceof ProxyError && thrown.code === 'engine_failed'
      if (!isRefused || !this.#wasReady) return false
      // Asks the engine behind the server, which answers this while it is paused.
      return (await this.connection.askOptional('/server_info', signal)) !== undefined
    }
  }

  override endSession(sessionId: string): void {
    super.endSession(sessionId)
    this.#sessions.end(sessionId)
  }
}

/**
 * A limit was made or cut to the length in the model's files; an engine may serve less (`--context-length`), and would
 * refuse the call. Without one it samples what is left.
 */
function withinLength(request: TokenRequest, contextLength = Number.POSITIVE_INFINITY): TokenRequest {
  const { body, promptTokenIds } = request
  if (promptTokenIds.length + (maxTokensOf(body) ?? 0) < contextLength) return request
  return { ...request, body: { ...body, max_tokens: null, max_completion_tokens: null } }
}

/** To vLLM and others 0 is no limit, as -1 is; SGLang refuses it. */
function withoutZero(request: GenerationRequest): GenerationRequest {
  if (request.body.top_k !== 0) return request
  return { ...request, body: { ...request.body, top_k: -1 } } as GenerationRequest
}
