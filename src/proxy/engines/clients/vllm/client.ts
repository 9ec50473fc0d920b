import { ProxyError } from '../../../../base/errors.ts'
import { isRecord, parseJson } from '../../../../base/json.ts'
import type { GenerationStream } from '../../../../protocol/canonical/events.ts'
import { collapseImages, type PromptImages } from '../../../../protocol/canonical/images.ts'
import type { ChatBody, GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { PromptIds } from '../../../../protocol/token-ids/prompt-ids.ts'
import type { EngineClient, EngineHealth, ModelInfo, Unavailable } from '../../port/engine-client.ts'
import type { TokenizerQuestion } from '../../port/expected-tokenizer.ts'
import type { ScoreRequest, ScoreResult } from '../../port/score.ts'
import { ToolCallConstraints } from '../tool-calls/tool-call-constraints.ts'
import type { ConnectionOptions, EngineConnection, EngineResponse } from '../wire/connection.ts'
import { readAnswer } from '../wire/generation.ts'
import { getModels } from '../wire/models.ts'
import {
  bodyJson,
  bodyWithIds,
  isTokenRequest,
  maxTokensOf,
  routeOf,
  type TokenRequest,
} from '../wire/request.ts'
import { ServerClient } from '../wire/server-client.ts'
import { ServerVersion } from '../wire/server-version.ts'
import { TokenizerAnswers } from '../wire/tokenizer-answers.ts'
import { weightVersionIn } from '../wire/weight-version.ts'
import { TAGS_SINCE, vllmCallTag } from './call-tags.ts'
import {
  defaultsIn,
  detailsByIds,
  IDS_ROUTE,
  type IdsRequestOptions,
  type IdsRoute,
  IMAGES_SINCE,
  isRouteMissing,
  SPANS_SINCE,
  STREAMS_SINCE,
  vllmIdsBody,
  vllmImagesBody,
} from './ids-route.ts'
import { PromptChecks } from './prompt-checks.ts'
import { vllmBody, vllmTokenBody, vllmTokenizeBody } from './request.ts'
import { readVllmScores, VLLM_READING, vllmScoreBody } from './score.ts'
import { TokenTextCache } from './token-text-cache.ts'

const NO_ROUTE = {
  masks: 'sampling masks are not recorded',
  versions: 'the weight version of each token is not recorded',
}
const SCALE_OUT = 'it lets nobody ask by its route of ids (vllm serve --enable-scale-out)'
const NO_MASKS = 'sampling masks are not recorded: it tells none (vllm serve --return-sampling-mask)'

/** The first version that sends ids of which a parser makes no text yet (vllm-project/vllm#29074): 0.12.0 has it not. */
const WHOLE_STREAMS_SINCE = '0.13'
/** The first releases that tell ids at all; a lower number is a build without one. */
const IDS_SINCE = '0.10'
/** The older one of those that `npm run test:vllm` runs. */
const TESTED = ['vLLM', IDS_SINCE, '0.12'] as const

/**
 * A client of vLLM's OpenAI-compatible server, from the version on that knows `return_token_ids` (0.10.2). Token mode
 * uses `/v1/completions`, and `/inference/v1/generate` for what only that gives: see `ids-route.ts`.
 */
export function createVllmClient(options: ConnectionOptions): EngineClient {
  return new VllmClient(options)
}

class VllmClient extends ServerClient implements EngineClient {
  readonly kind = 'vllm'
  readonly takesTokenIds = true
  readonly takesImages = true
  readonly #contextLength: ContextLength
  readonly #tokenizer: TokenizerAnswers
  readonly #version: ServerVersion
  readonly #heldCalls: ToolCallConstraints
  readonly #promptChecks = new PromptChecks()
  // What this server lacks, for an operator. Until a health check fails: it may be another server after that.
  #noRoute: string | undefined
  #noMasks: string | undefined
  #losesIds: string | undefined
  #isOld: string | undefined
  /** What a call samples with that does not say it. */
  #defaults: Record<string, unknown> | undefined
  /** Of the model that was asked for last. */
  #texts: { model: string; of: TokenTextCache } | undefined

  constructor(options: ConnectionOptions) {
    super(options)
    this.#contextLength = new ContextLength(this.connection)
    this.#tokenizer = new TokenizerAnswers(this.connection, VLLM_READING)
    this.#version = new ServerVersion(this.connection, ['/version'])
    this.#heldCalls = new ToolCallConstraints(this.#version, { since: TAGS_SINCE })
  }

  generate(asked: GenerationRequest, signal: AbortSignal): GenerationStream {
    if (!isTokenRequest(asked)) return this.#generateText(asked, signal)
    const { images } = asked
    return images ? this.#generateWithImages(asked, images, signal) : this.#generateTokens(asked, signal)
  }

  async *#generateTokens(asked: TokenRequest, signal: AbortSignal): GenerationStream {
    const request = await this.#heldCalls.hold(asked, vllmCallTag(asked), signal)
    const details = detailsByIds(request, await this.#idsRoute(request, signal))
    const byIds = details && (await this.#askByIds(request, signal))
    if (byIds !== undefined) {
      const events = readAnswer(this.connection, request, byIds, signal)
      yield* details === 'masks' ? this.#watchingForMasks(events) : events
      return
    }
    const budget = await this.#contextLength.budget(request, signal)
    const body = vllmTokenBody(request, budget, this.#promptChecks.next())
    const json = bodyWithIds(body, 'prompt', request)
    const response = await this.connection.request(routeOf(request), signal, json, request)
    // The server answers this call: it was not the model that it did not know.
    if (details !== undefined) this.#noRoute = `${NO_ROUTE[details]}: ${SCALE_OUT}`
    const events = readAnswer(this.connection, request, response, signal)
    yield* this.#promptChecks.watch(this.name, request, events)
  }

  async *#generateText(asked: GenerationRequest, signal: AbortSignal): GenerationStream {
    const isWhole = asked.kind === 'chat' && asked.stream && (await this.#noteLostIds(signal))
    const request = isWhole ? { ...asked, stream: false } : asked
    const json = bodyJson(vllmBody(request), request)
    const response = await this.connection.request(routeOf(request), signal, json, request)
    yield* readAnswer(this.connection, request, response, signal)
  }

  /** @returns whether this version loses ids of chats that stream */
  async #noteLostIds(signal: AbortSignal): Promise<boolean> {
    const isKnown = await this.#version.isSince(IDS_SINCE, signal)
    if (!isKnown || (await this.#version.isSince(WHOLE_STREAMS_SINCE, signal))) return false
    const { version } = await this.#version.said(signal)
    this.#losesIds =
      `it is vLLM ${version}, whose streams lose token ids where a tool or reasoning parser is on, so chats are asked ` +
      `whole: upgrade it to ${WHOLE_STREAMS_SINCE}, or use token mode (--tokenizer)`
    return true
  }

  async #idsRoute({ record }: TokenRequest, signal: AbortSignal): Promise<IdsRoute> {
    if (this.#noRoute !== undefined || (!record?.samplingMask && !record?.weightVersions))
      return { masks: false, streams: false, spans: false }
    const streams = await this.#version.isSince(STREAMS_SINCE, signal)
    const spans = streams && !(await this.#version.isSince(SPANS_SINCE, signal))
    return { masks: this.#noMasks === undefined, streams, spans }
  }

  /** @returns undefined where the server lacks the route; `/v1/completions` is for all but a mask and versions */
  async #askByIds(request: TokenRequest, signal: AbortSignal): Promise<EngineResponse | undefined> {
    const body = vllmIdsBody(request, await this.#sentByIds(request, signal))
    try {
      const json = bodyWithIds(body, 'token_ids', request)
      return await this.connection.request(IDS_ROUTE, signal, json, request)
    } catch (thrown) {
      if (isRouteMissing(thrown)) return undefined
      throw thrown
    }
  }

  async #sentByIds(request: TokenRequest, signal: AbortSignal): Promise<IdsRequestOptions> {
    this.#defaults ??= defaultsIn(await this.#rendered(request, signal))
    const defaults = this.#defaults
    const maxTokens = await this.#contextLength.budget(request, signal)
    return { maxTokens, defaults, streams: await this.#version.isSince(STREAMS_SINCE, signal) }
  }

  /** What becomes of a call that says nothing; undefined where the server does not tell. */
  async #rendered({ body: { model } }: TokenRequest, signal: AbortSignal): Promise<unknown> {
    const json = JSON.stringify({ model, prompt: '.', max_tokens: 1 })
    return await this.connection.askIfTold('/v1/completions/render', signal, json)
  }

  /** Calls that want nothing else from there go elsewhere then. */
  async *#watchingForMasks(events: GenerationStream): GenerationStream {
    let sampled = false
    let masked = false
    for await (const batch of events) {
      for (const event of batch) {
        if (event.type !== 'delta') continue
        sampled ||= (event.tokenIds?.length ?? 0) > 0
        masked ||= event.details?.sampling_mask !== undefined
      }
      yield batch
    }
    if (sampled && !masked) this.#noMasks = NO_MASKS
  }

  /**
   * The server reads the images itself, and counts their tokens: what prompt it made of it is recorded.
   * @throws ProxyError `unsupported` for a version that would leave the images out
   */
  async *#generateWithImages(
    request: TokenRequest,
    images: PromptImages,
    signal: AbortSignal,
  ): GenerationStream {
    if (!(await this.#version.isSince(IMAGES_SINCE, signal))) {
      const message = `the engine at ${this.name} takes no images beside token ids: vLLM does from ${IMAGES_SINCE} on`
      throw new ProxyError('unsupported', message, { param: 'messages' })
    }
    const ids = new PromptIds(collapseImages(request.promptTokenIds.whole(), images, images.edges))
    const body = vllmImagesBody(request, await this.#sentByIds(request, signal))
    const json = bodyWithIds(body, 'token_ids', { ...request, promptTokenIds: ids })
    const response = await this.connection.request(IDS_ROUTE, signal, json, request)
    yield* readAnswer(this.connection, request, response, signal)
  }

  async countTokens(body: ChatBody, signal: AbortSignal): Promise<number> {
    const json = JSON.stringify(vllmTokenizeBody(body))
    const said = parseJson(await this.connection.ask('/tokenize', signal, json))
    if (isRecord(said) && typeof said.count === 'number') return said.count
    throw new ProxyError('engine_failed', `the engine at ${this.name} counted no tokens`)
  }

  async score(request: ScoreRequest, signal: AbortSignal): Promise<ScoreResult> {
    const text = await this.connection.ask('/v1/completions', signal, vllmScoreBody(request))
    return { tokens: readVllmScores(this.name, text, request) }
  }

  tokenTexts(model: string, ids: Int32Array, signal: AbortSignal): Promise<string[] | undefined> {
    const ask = (path: string, json: string) => this.connection.ask(path, signal, json)
    if (this.#texts?.model !== model) this.#texts = { model, of: new TokenTextCache(model) }
    return this.#texts.of.getTexts(ids, ask)
  }

  get warning(): string | undefined {
    const { warning } = this.connection.promptReports
    const lacks = [
      this.#isOld,
      this.#losesIds,
      this.#heldCalls.warning,
      this.#noRoute,
      this.#noMasks,
      warning,
    ]
    return lacks.filter((said) => said !== undefined).join('; ') || undefined
  }

  async checkHealth(signal: AbortSignal, question?: TokenizerQuestion): Promise<EngineHealth> {
    try {
      return await this.#checkHealth(signal, question)
    } catch (thrown) {
      this.#version.forget()
      this.#heldCalls.forget()
      this.#tokenizer.forget()
      this.#promptChecks.restart()
      this.#noRoute = this.#noMasks = this.#losesIds = this.#isOld = this.#defaults = undefined
      throw thrown
    }
  }

  async #checkHealth(signal: AbortSignal, question?: TokenizerQuestion): Promise<EngineHealth> {
    // The list of models is answered even when the engine behind the server is dead; /health is not.
    await this.connection.askOptional('/health', signal)
    const models = await getModels(this.connection, signal)
    this.#contextLength.note(models)
    // Of a vLLM in development mode: `{"weight_version": "v7"}`.
    const weightVersion = weightVersionIn(await this.connection.askOptional('/weight_info', signal))
    const unavailable = await this.#unavailable(signal)
    this.#isOld = await this.#version.warningBefore(TESTED, signal)
    // Asked for no ids of a text: chats are sent to it as chats.
    if (question === undefined) await this.#noteLostIds(signal)
    // One that rests reads nothing.
    const tokenizer = unavailable ? {} : await this.#tokenizer.of(question, models[0]?.id, signal)
    return { models, weightVersion, unavailable, ...tokenizer }
  }

  /** Routes of development mode; a call to an engine that sleeps waits in it. vLLM 0.32 says of a paused one that it sleeps. */
  async #unavailable(signal: AbortSignal): Promise<Unavailable | undefined> {
    const says = async (name: string) => {
      const said = parseJson((await this.connection.askOptional(`/${name}`, signal)) ?? '')
      return isRecord(said) && said[name] === true
    }
    if (await says('is_paused')) return 'paused'
    return (await says('is_sleeping')) ? 'asleep' : undefined
  }
}

/** How many tokens the models of one engine hold, prompt and completion together. */
class ContextLength {
  readonly #connection: EngineConnection
  #models: readonly ModelInfo[] | undefined

  constructor(connection: EngineConnection) {
    this.#connection = connection
  }

  /** A health check has asked the engine for its models. */
  note(models: readonly ModelInfo[]): void {
    this.#models = models
  }

  /**
   * The limit to send: the agent's, else what is left for the completion. A limit was made or cut to the length in the model's
   * files; an engine may serve less (vLLM's `--max-model-len`), and would refuse the call: it is cut to what health checks
   * have seen. At least 1, for the engine to refuse a prompt that is too long in its own words. Without a limit the engine
   * is asked for its models if nobody has asked yet.
   * @throws ProxyError `unsupported` when there is no limit and the engine does not tell, and as `getModels`
   */
  async budget({ body, promptTokenIds }: TokenRequest, signal: AbortSignal): Promise<number> {
    const limit = maxTokensOf(body)
    if (limit === undefined) this.#models ??= await getModels(this.#connection, signal)
    const own = this.#models?.find((model) => model.id === body.model)
    // An adapter has the length of its base model, and vLLM does not repeat it.
    const length = own?.maxModelLen ?? this.#models?.find((model) => model.maxModelLen)?.maxModelLen
    const left = length === undefined ? undefined : Math.max(1, length - promptTokenIds.length)
    if (left !== undefined) return Math.min(limit ?? left, left)
    if (limit !== undefined) return limit
    throw new ProxyError(
      'unsupported',
      `the engine at ${this.#connection.name} does not tell its context length: the call must set max_tokens`,
      { param: 'max_tokens' },
    )
  }
}
