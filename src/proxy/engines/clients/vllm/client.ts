import { ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { EventSink, GenerationEvent } from '../../../../protocol/canonical/events.ts'
import { collapseImages, type PromptImages } from '../../../../protocol/canonical/images.ts'
import type { ChatBody, GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import type { EngineClient, EngineHealth, EngineModel, UnavailableReason } from '../../port/engine-client.ts'
import type { TokenizerQuery } from '../../port/expected-tokenizer.ts'
import type { ScoreRequest, ScoreResult } from '../../port/score.ts'
import { ToolCallConstraints } from '../tool-calls/tool-call-constraints.ts'
import type { ConnectionOptions, EngineConnection } from '../wire/connection.ts'
import { DefaultSamplingSink, toRecordedDefaults } from '../wire/default-sampling.ts'
import type { EngineResponse } from '../wire/engine-response.ts'
import { readCompletion } from '../wire/generation.ts'
import { getModels } from '../wire/models.ts'
import { RemoteTokenizer } from '../wire/remote-tokenizer.ts'
import {
  getMaxTokens,
  getRoute,
  isTokenRequest,
  serializeBody,
  serializeBodyWithIds,
  type TokenRequest,
} from '../wire/request.ts'
import { ServerClient } from '../wire/server-client.ts'
import { ServerVersion } from '../wire/server-version.ts'
import { findWeightVersion } from '../wire/weight-version.ts'
import { buildVllmCallTag, TAGS_SINCE } from './call-tags.ts'
import {
  buildVllmIdsBody,
  buildVllmImagesBody,
  findIdsRouteReason,
  IDS_ROUTE,
  type IdsRequestOptions,
  type IdsRouteFeatures,
  IMAGES_SINCE,
  isRouteMissing,
  SPANS_SINCE,
  STREAMS_SINCE,
} from './ids-route.ts'
import { PromptChecks } from './prompt-checks.ts'
import { buildVllmBody, buildVllmTokenBody, buildVllmTokenizeBody } from './request.ts'
import { SamplingDefaults } from './sampling-defaults.ts'
import { buildVllmScoreBody, readVllmScores, VLLM_DETOKENIZE } from './score.ts'
import { TokenTextCache } from './token-text-cache.ts'

const NO_ROUTE = {
  masks: 'sampling masks are not recorded',
  versions: 'the weight version of each token is not recorded',
}
const SCALE_OUT = 'its token-id route is disabled (vllm serve --enable-scale-out enables it)'
const NO_MASKS = 'sampling masks are not recorded: it reports none (vllm serve --return-sampling-mask)'

/**
 * The first version that streams ids for which a parser does not emit text yet (vllm-project/vllm#29074); 0.12.0 does
 * not.
 */
const COMPLETE_STREAMS_SINCE = '0.13'
/**
 * The minor version in which vLLM began to report ids (0.10.2); a lower number is that of a build without a version.
 */
const IDS_SINCE = '0.10'
/** The program, its first version, and the older of the versions that `npm run test:vllm` runs. */
const TESTED = ['vLLM', IDS_SINCE, '0.12'] as const

/**
 * Creates a client of vLLM's OpenAI-compatible server, from the first version with `return_token_ids` (0.10.2). Token
 * mode uses `/v1/completions`, and `/inference/v1/generate` for features that only the latter has: see `ids-route.ts`.
 */
export function createVllmClient(options: ConnectionOptions): EngineClient {
  return new VllmClient(options)
}

class VllmClient extends ServerClient implements EngineClient {
  readonly kind = 'vllm'
  readonly takesTokenIds = true
  readonly takesImages = true
  readonly #contextLength: ContextLength
  readonly #tokenizer: RemoteTokenizer
  readonly #version: ServerVersion
  readonly #toolCallConstraints: ToolCallConstraints
  readonly #promptChecks = new PromptChecks()
  readonly #defaults: SamplingDefaults
  // The next four fields are warnings for operators about missing features. They are cleared when a health check fails,
  // since another server may replace this one.
  #noRoute: string | undefined
  #noMasks: string | undefined
  #losesIds: string | undefined
  #versionWarning: string | undefined
  /** The token texts of the model for which texts were requested last. */
  #texts: { model: string; of: TokenTextCache } | undefined

  constructor(options: ConnectionOptions) {
    super(options)
    this.#contextLength = new ContextLength(this.connection)
    this.#tokenizer = new RemoteTokenizer(this.connection, VLLM_DETOKENIZE)
    this.#version = new ServerVersion(this.connection, ['/version'])
    this.#defaults = new SamplingDefaults(this.connection)
    this.#toolCallConstraints = new ToolCallConstraints(this.#version, { since: TAGS_SINCE })
  }

  generate(agentRequest: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    if (!isTokenRequest(agentRequest)) return this.#generateText(agentRequest, sink, signal)
    const { images } = agentRequest
    return images
      ? this.#generateWithImages(agentRequest, images, sink, signal)
      : this.#generateTokens(agentRequest, sink, signal)
  }

  async #generateTokens(agentRequest: TokenRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    const request = await this.#toolCallConstraints.constrain(
      agentRequest,
      buildVllmCallTag(agentRequest),
      signal,
    )
    const details = findIdsRouteReason(request, await this.#getIdsRouteFeatures(request, signal))
    const options = details && (await this.#getIdsRequestOptions(request, signal))
    const byIds = options && (await this.#sendByIds(request, options, signal))
    if (byIds !== undefined) {
      const informed = new DefaultSamplingSink(sink, toRecordedDefaults(options!.defaults))
      if (details !== 'masks') return await readCompletion(this.connection, request, byIds, informed)
      const watch = new MaskWatch(informed)
      await readCompletion(this.connection, request, byIds, watch)
      // Later requests that need only masks use `/v1/completions`.
      if (watch.areMissing) this.#noMasks = NO_MASKS
      return
    }
    const budget = await this.#contextLength.computeBudget(request, signal)
    const body = buildVllmTokenBody(request, budget, this.#promptChecks.startRequest())
    const json = serializeBodyWithIds(body, 'prompt', request)
    const response = await this.connection.sendRequest(getRoute(request), signal, json, request)
    // The server serves this request, so it was the route that was missing, not the model.
    if (details !== undefined) this.#noRoute = `${NO_ROUTE[details]}: ${SCALE_OUT}`
    await readCompletion(
      this.connection,
      request,
      response,
      this.#promptChecks.watch(this.name, request, sink),
    )
  }

  async #generateText(agentRequest: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    const isComplete =
      agentRequest.kind === 'chat' && agentRequest.stream && (await this.#detectLostIds(signal))
    const request = isComplete ? { ...agentRequest, stream: false } : agentRequest
    const json = serializeBody(buildVllmBody(request), request)
    const response = await this.connection.sendRequest(getRoute(request), signal, json, request)
    await readCompletion(this.connection, request, response, sink)
  }

  /** Returns whether the server's version loses ids of streamed chats, and sets the warning. */
  async #detectLostIds(signal: AbortSignal): Promise<boolean> {
    const isKnown = await this.#version.isSince(IDS_SINCE, signal)
    if (!isKnown || (await this.#version.isSince(COMPLETE_STREAMS_SINCE, signal))) return false
    const { version } = await this.#version.getFields(signal)
    this.#losesIds =
      `it is vLLM ${version}, whose streams lose token ids if a tool or reasoning parser is on, so chats are not ` +
      `streamed: upgrade it to ${COMPLETE_STREAMS_SINCE}, or use token mode (--tokenizer)`
    return true
  }

  async #getIdsRouteFeatures({ record }: TokenRequest, signal: AbortSignal): Promise<IdsRouteFeatures> {
    if (this.#noRoute !== undefined || (!record?.samplingMask && !record?.weightVersions))
      return { masks: false, streams: false, spans: false }
    const streams = await this.#version.isSince(STREAMS_SINCE, signal)
    const spans = streams && !(await this.#version.isSince(SPANS_SINCE, signal))
    return { masks: this.#noMasks === undefined, streams, spans }
  }

  /**
   * Sends a request to the ids route.
   * @returns undefined if the server lacks it; `/v1/completions` supports everything but masks and versions
   */
  async #sendByIds(
    request: TokenRequest,
    options: IdsRequestOptions,
    signal: AbortSignal,
  ): Promise<EngineResponse | undefined> {
    const body = buildVllmIdsBody(request, options)
    try {
      const json = serializeBodyWithIds(body, 'token_ids', request)
      return await this.connection.sendRequest(IDS_ROUTE, signal, json, request)
    } catch (thrown) {
      if (isRouteMissing(thrown)) return undefined
      throw thrown
    }
  }

  async #getIdsRequestOptions(request: TokenRequest, signal: AbortSignal): Promise<IdsRequestOptions> {
    const defaults = await this.#defaults.get(signal)
    const maxTokens = await this.#contextLength.computeBudget(request, signal)
    return { maxTokens, defaults, streams: await this.#version.isSince(STREAMS_SINCE, signal) }
  }

  /**
   * Serves a request with images. The server reads them and computes their placeholders; the prompt that it reports is
   * recorded.
   * @throws ProxyError `unsupported` for a version that would ignore the images
   */
  async #generateWithImages(
    request: TokenRequest,
    images: PromptImages,
    sink: EventSink,
    signal: AbortSignal,
  ): Promise<void> {
    if (!(await this.#version.isSince(IMAGES_SINCE, signal))) {
      const message = `the engine at ${this.name} does not accept images with token ids: vLLM does since ${IMAGES_SINCE}`
      throw new ProxyError('unsupported', message, { param: 'messages' })
    }
    const ids = new PromptIds(collapseImages(request.promptTokenIds.toArray(), images, images.edges))
    const options = await this.#getIdsRequestOptions(request, signal)
    const body = buildVllmImagesBody(request, options)
    const json = serializeBodyWithIds(body, 'token_ids', { ...request, promptTokenIds: ids })
    const response = await this.connection.sendRequest(IDS_ROUTE, signal, json, request)
    const informed = new DefaultSamplingSink(sink, toRecordedDefaults(options.defaults))
    await readCompletion(this.connection, request, response, informed)
  }

  async countTokens(body: ChatBody, signal: AbortSignal): Promise<number> {
    const json = JSON.stringify(buildVllmTokenizeBody(body))
    const counted = parseJson(await this.connection.query('/tokenize', signal, json))
    if (isRecord(counted) && typeof counted.count === 'number') return counted.count
    throw new ProxyError('engine_failed', `the engine at ${this.name} counted no tokens`)
  }

  async score(request: ScoreRequest, signal: AbortSignal): Promise<ScoreResult> {
    const text = await this.connection.query('/v1/completions', signal, buildVllmScoreBody(request))
    return { tokens: readVllmScores(this.name, text, request) }
  }

  getTokenTexts(model: string, ids: Int32Array, signal: AbortSignal): Promise<string[] | undefined> {
    const post = (path: string, json: string) => this.connection.query(path, signal, json)
    if (this.#texts?.model !== model) this.#texts = { model, of: new TokenTextCache(model) }
    return this.#texts.of.getTexts(ids, post)
  }

  get warning(): string | undefined {
    const { warning } = this.connection.missingPromptIdCounter
    const lacks = [
      this.#versionWarning,
      this.#losesIds,
      this.#toolCallConstraints.warning,
      this.#noRoute,
      this.#noMasks,
      warning,
    ]
    return lacks.filter((lack) => lack !== undefined).join('; ') || undefined
  }

  async checkHealth(signal: AbortSignal, question?: TokenizerQuery): Promise<EngineHealth> {
    try {
      return await this.#checkHealth(signal, question)
    } catch (thrown) {
      // A timeout does not show that the server was replaced, so its reported capabilities are kept.
      if (signal.aborted) throw thrown
      this.connection.forgetMissing()
      this.#version.forget()
      this.#toolCallConstraints.forget()
      this.#tokenizer.forget()
      this.#promptChecks.restart()
      this.#defaults.forget()
      this.#noRoute = this.#noMasks = this.#losesIds = this.#versionWarning = undefined
      throw thrown
    }
  }

  async #checkHealth(signal: AbortSignal, question?: TokenizerQuery): Promise<EngineHealth> {
    // The list of models is available even if the engine behind the server is dead; /health is not.
    await this.connection.queryOptional('/health', signal)
    const models = await getModels(this.connection, signal)
    this.#contextLength.readModels(models)
    this.#defaults.setModel(models[0]?.id)
    // A route of vLLM's development mode, which responds with `{"weight_version": "v7"}`.
    const weightVersion = findWeightVersion(await this.connection.queryOptional('/weight_info', signal))
    const unavailable = await this.#findUnavailableReason(signal)
    this.#versionWarning = await this.#version.findWarning(TESTED, signal)
    // Without a query about the tokenizer, the proxy is in chat mode.
    if (question === undefined) await this.#detectLostIds(signal)
    // An engine that is asleep or paused does not respond to queries of its tokenizer.
    const tokenizer = unavailable ? {} : await this.#tokenizer.query(question, models[0]?.id, signal)
    return { models, weightVersion, unavailable, ...tokenizer }
  }

  /**
   * Returns whether the engine is asleep or paused, as vLLM reports on routes of its development mode; undefined if it
   * is neither. Such an engine queues requests. vLLM 0.32 reports a paused engine as sleeping too.
   */
  async #findUnavailableReason(signal: AbortSignal): Promise<UnavailableReason | undefined> {
    const isTrue = async (name: string) => {
      const body = parseJson((await this.connection.queryOptional(`/${name}`, signal)) ?? '')
      return isRecord(body) && body[name] === true
    }
    if (await isTrue('is_paused')) return 'paused'
    return (await isTrue('is_sleeping')) ? 'asleep' : undefined
  }
}

/** A sink that forwards all events and detects that the server reports no sampling masks. */
class MaskWatch implements EventSink {
  readonly #sink: EventSink
  #hasSampled = false
  #hasMasks = false

  constructor(sink: EventSink) {
    this.#sink = sink
  }

  get areMissing(): boolean {
    return this.#hasSampled && !this.#hasMasks
  }

  write(events: readonly GenerationEvent[]): Promise<void> | undefined {
    for (const event of events) {
      if (event.type !== 'delta') continue
      this.#hasSampled ||= (event.tokenIds?.length ?? 0) > 0
      this.#hasMasks ||= event.details?.sampling_mask !== undefined
    }
    return this.#sink.write(events)
  }
}

/** The context length of an engine's models in tokens, prompt and completion together. */
class ContextLength {
  readonly #connection: EngineConnection
  #models: readonly EngineModel[] | undefined

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /** Stores the models that a health check has reported. */
  readModels(models: readonly EngineModel[]): void {
    this.#models = models
  }

  /**
   * Returns the limit to send: the agent's, or the rest of the context. Limits are derived from the length in the
   * model's files; an engine may serve less (vLLM's `--max-model-len`), and would reject the request, so a limit is
   * reduced to the length that health checks have reported. The minimum is 1, so that the engine rejects a prompt that
   * is too long with its own message. Without a limit the models are requested unless they are known.
   * @throws ProxyError `unsupported` if there is no limit and the engine does not report one, and as `getModels`
   */
  async computeBudget({ body, promptTokenIds }: TokenRequest, signal: AbortSignal): Promise<number> {
    const limit = getMaxTokens(body)
    if (limit === undefined) this.#models ??= await getModels(this.#connection, signal)
    const own = this.#models?.find((model) => model.id === body.model)
    // An adapter has the length of its base model, which vLLM does not repeat.
    const length = own?.maxModelLen ?? this.#models?.find((model) => model.maxModelLen)?.maxModelLen
    const left = length === undefined ? undefined : Math.max(1, length - promptTokenIds.length)
    if (left !== undefined) return Math.min(limit ?? left, left)
    if (limit !== undefined) return limit
    throw new ProxyError(
      'unsupported',
      `the engine at ${this.#connection.name} does not report its context length: the request must set max_tokens`,
      { param: 'max_tokens' },
    )
  }
}
