import { ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { EventSink } from '../../../../protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import type { EngineClient, EngineHealth } from '../../port/engine-client.ts'
import type { TokenizerQuery } from '../../port/expected-tokenizer.ts'
import type { ScoreRequest, ScoreResult } from '../../port/score.ts'
import { OpenaiRoutes } from '../openai/routes.ts'
import { ToolCallConstraints } from '../tool-calls/tool-call-constraints.ts'
import type { ConnectionOptions } from '../wire/connection.ts'
import { DefaultSamplingSink, toRecordedDefaults } from '../wire/default-sampling.ts'
import { readResponse } from '../wire/generation.ts'
import { getModels } from '../wire/models.ts'
import { RemoteTokenizer } from '../wire/remote-tokenizer.ts'
import {
  getMaxTokens,
  getShownAlternatives,
  isTokenRequest,
  serializeBodyWithIds,
  type TokenRequest,
  wantsLogprobs,
} from '../wire/request.ts'
import { ServerClient } from '../wire/server-client.ts'
import { ServerVersion } from '../wire/server-version.ts'
import { findWeightVersion } from '../wire/weight-version.ts'
import { buildSglangCallTag, TAGS_SINCE } from './call-tags.ts'
import { GenerateReader } from './generate-reader.ts'
import { buildGenerateBody, buildImageBody } from './request.ts'
import { buildSglangScoreBody, readSglangScores, SGLANG_DETOKENIZE } from './score.ts'
import { SglangSessions } from './sessions.ts'

/** The program, its first version, and the version that `npm run test:sglang` runs. */
const TESTED = ['SGLang', '0.1', '0.5.23'] as const

/**
 * Creates a client of SGLang's server: its routes of OpenAI's API (`python/sglang/srt/entrypoints/openai/`), whose
 * versions differ in how they report ids, and in token mode its own `/generate`.
 */
export function createSglangClient(options: ConnectionOptions): EngineClient {
  return new SglangClient(options)
}

class SglangClient extends ServerClient implements EngineClient {
  readonly kind = 'sglang'
  readonly takesTokenIds = true
  readonly takesImages = true
  readonly #openai: OpenaiRoutes
  readonly #tokenizer: RemoteTokenizer
  readonly #version: ServerVersion
  readonly #toolCallConstraints: ToolCallConstraints
  readonly #sessions: SglangSessions
  /**
   * The first name under which the server listed its weights. `/update_weights_from_disk` renames them to their folder
   * (`served_model_name` in `tokenizer_manager.py`, 0.5.23), while requests continue to name the model; the server
   * accepts any name for its weights.
   */
  #servedName: string | undefined
  /** The context length of the server's model in tokens, prompt and completion together; known after a health check. */
  #contextLength: number | undefined
  /** The defaults of sampling parameters in token mode, if a health check has reported them. */
  #defaults: Record<string, number> | undefined
  #versionWarning: string | undefined
  /**
   * Whether the server was ready since its last failure: if it is not ready afterwards, it is paused rather than
   * starting.
   */
  #wasReady = false
  /** The adapters by the names that the server lists. */
  #adapters: ReadonlySet<string> = new Set()

  constructor(options: ConnectionOptions) {
    super(options)
    this.#openai = new OpenaiRoutes(this.connection)
    this.#tokenizer = new RemoteTokenizer(this.connection, SGLANG_DETOKENIZE)
    this.#version = new ServerVersion(this.connection, ['/server_info', '/get_server_info'])
    this.#sessions = new SglangSessions(this.connection)
    this.#toolCallConstraints = new ToolCallConstraints(this.#version, {
      since: TAGS_SINCE,
      // SGLang's other grammar backends support fewer kinds of tags.
      allows: ({ grammar_backend: backend }) => (backend ?? 'xgrammar') === 'xgrammar',
    })
  }

  async generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    const prepared = this.#withSession(this.#withAdapter(withoutZeroTopK(request)))
    if (isTokenRequest(prepared)) await this.#generateTokens(prepared, sink, signal)
    else await this.#openai.generate(prepared, sink, signal)
  }

  /**
   * Adds the session id. In chat mode an agent may send `session_params` instead, SGLang's other way to extend a
   * prompt.
   */
  #withSession(request: GenerationRequest): GenerationRequest {
    if (!isTokenRequest(request) && isRecord(request.body.session_params)) return request
    const session_id = this.#sessions.getSessionName(request)
    return { ...request, body: { ...request.body, session_id } } as GenerationRequest
  }

  /** Selects the adapter by `lora_path`: SGLang accepts any model name and would sample from the base weights. */
  #withAdapter(request: GenerationRequest): GenerationRequest {
    const { model } = request.body
    if (model === undefined || !this.#adapters.has(model)) return request
    return { ...request, body: { ...request.body, lora_path: model } } as GenerationRequest
  }

  /**
   * Serves a request in token mode. It is sent without a `rid`, and a cancelled one is not sent to `/abort_request`,
   * because that route aborts all requests whose id starts with the given one. The server aborts requests whose
   * connection is closed.
   */
  async #generateTokens(tokenRequest: TokenRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    const constrained = await this.#toolCallConstraints.constrain(
      tokenRequest,
      buildSglangCallTag(tokenRequest),
      signal,
    )
    const request = limitToContext(constrained, this.#contextLength)
    const json =
      request.images === undefined
        ? serializeBodyWithIds(buildGenerateBody(request), 'input_ids', request)
        : JSON.stringify(buildImageBody(request, request.images))
    const response = await this.connection.sendRequest('/generate', signal, json, request)
    const reader = new GenerateReader({
      engine: this.name,
      promptTokenIds: request.promptTokenIds,
      hasImages: request.images !== undefined,
      wantsLogprobs: wantsLogprobs(request),
      ...(request.record && { record: request.record }),
      alternatives: getShownAlternatives(request),
      expertsStart: request.expertsStart,
      redact: this.connection.endpoint.redact,
    })
    const informed = this.#defaults === undefined ? sink : new DefaultSamplingSink(sink, this.#defaults)
    await readResponse(reader, this.connection, response, informed)
  }

  async score(request: ScoreRequest, signal: AbortSignal): Promise<ScoreResult> {
    const text = await this.connection.query('/generate', signal, buildSglangScoreBody(request))
    return { tokens: readSglangScores(this.name, text, request) }
  }

  get warning(): string | undefined {
    const warnings = [this.#openai.warning, this.#toolCallConstraints.warning, this.#versionWarning]
    return warnings.filter((each) => each !== undefined).join('; ') || undefined
  }

  checkHealth(signal: AbortSignal, question?: TokenizerQuery): Promise<EngineHealth> {
    return this.#openai.runHealthCheck(() =>
      this.#checkHealth(signal, question).catch((thrown) => {
        // A timeout does not show that the server was replaced, so its reported capabilities are kept.
        if (signal.aborted) throw thrown
        this.connection.forgetMissing()
        this.#version.forget()
        this.#toolCallConstraints.forget()
        this.#tokenizer.forget()
        this.#servedName = this.#defaults = undefined
        this.#wasReady = false
        throw thrown
      }),
    )
  }

  async #checkHealth(signal: AbortSignal, question?: TokenizerQuery): Promise<EngineHealth> {
    const isPaused = await this.#isPaused(signal)
    // In most versions this route generates a token, so it fails if the engine process is dead, or if it is paused.
    if (!isPaused) await this.connection.queryOptional('/health', signal)
    const models = await getModels(this.connection, signal)
    this.#sessions.readSupport(await this.#version.getFields(signal))
    this.#versionWarning = await this.#version.findWarning(TESTED, signal)
    this.#adapters = new Set(models.filter(({ isAdapter }) => isAdapter).map(({ id }) => id))
    const weights = models.find(({ isAdapter }) => !isAdapter)
    this.#servedName ??= weights?.id
    this.#contextLength = weights?.maxModelLen
    if (weights && !models.some(({ id }) => id === this.#servedName))
      models.push({ ...weights, id: this.#servedName! })
    const info =
      (await this.connection.queryOptional('/model_info', signal)) ??
      (await this.connection.queryOptional('/get_model_info', signal))
    this.#defaults = readDefaults(info)
    // A paused engine does not respond to queries of its tokenizer.
    const tokenizer = isPaused ? {} : await this.#tokenizer.query(question, models[0]?.id, signal)
    return {
      models,
      weightVersion: findWeightVersion(info),
      unavailable: isPaused ? 'paused' : undefined,
      ...tokenizer,
    }
  }

  /**
   * Returns whether generation is paused: `/ready` then responds with 503 (`is_ready` in `tokenizer_manager.py`,
   * 0.5.23). Older versions do not report a pause.
   */
  async #isPaused(signal: AbortSignal): Promise<boolean> {
    try {
      this.#wasReady = (await this.connection.queryOptional('/ready', signal)) !== undefined
      return false
    } catch (thrown) {
      const isNotReady = thrown instanceof ProxyError && thrown.code === 'engine_failed'
      if (!isNotReady || !this.#wasReady) return false
      // A paused engine process responds to this query; a dead one does not.
      return (await this.connection.queryOptional('/server_info', signal)) !== undefined
    }
  }

  override endSession(sessionId: string): void {
    super.endSession(sessionId)
    this.#sessions.end(sessionId)
  }
}

/**
 * Returns the defaults of `/generate` that the server reports (`--preferred-sampling-params`); undefined if it reports
 * none. That route, other than the chat route, does not read the model's `generation_config.json`
 * (`_create_tokenized_object` in `tokenizer_manager.py`, 0.5.23).
 */
function readDefaults(info: string | undefined): Record<string, number> | undefined {
  const body = info === undefined ? undefined : parseJson(info)
  if (!isRecord(body)) return undefined
  const { preferred_sampling_params: preferred } = body
  if (preferred === null) return toRecordedDefaults({})
  return isRecord(preferred) ? toRecordedDefaults(preferred) : undefined
}

/**
 * Removes a limit that exceeds the context. Limits are derived from the length in the model's files; an engine may
 * serve less (`--context-length`), and would reject the request. Without a limit it samples up to the context length.
 */
function limitToContext(request: TokenRequest, contextLength = Number.POSITIVE_INFINITY): TokenRequest {
  const { body, promptTokenIds } = request
  if (promptTokenIds.length + (getMaxTokens(body) ?? 0) < contextLength) return request
  return { ...request, body: { ...body, max_tokens: null, max_completion_tokens: null } }
}

/** Replaces a `top_k` of 0: for vLLM and others it means no limit, as -1 does; SGLang rejects it. */
function withoutZeroTopK(request: GenerationRequest): GenerationRequest {
  if (request.body.top_k !== 0) return request
  return { ...request, body: { ...request.body, top_k: -1 } } as GenerationRequest
}
