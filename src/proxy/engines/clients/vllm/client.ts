import { ProxyError } from '../../../../base/errors.ts'
import type { GenerationStream } from '../../../../protocol/canonical/events.ts'
import type { PromptImages } from '../../../../protocol/canonical/images.ts'
import type { ChatBody, GenerationRequest } from '../../../../protocol/canonical/request.ts'
import type { EngineClient, EngineHealth, ModelInfo, Unavailable } from '../../port/engine-client.ts'
import type { Scored, ScoreRequest } from '../../port/score.ts'
import { HeldCalls } from '../calls/held-calls.ts'
import { type ConnectionOptions, EngineConnection, type EngineResponse } from '../wire/connection.ts'
import { isRecord, parseJson } from '../wire/failures.ts'
import { readAnswer } from '../wire/generation.ts'
import { getModels } from '../wire/models.ts'
import { OptionalRoutes } from '../wire/optional-routes.ts'
import {
  type BodyPieces,
  bodyJson,
  bodyWithIds,
  isTokenRequest,
  maxTokensOf,
  routeOf,
  type TokenRequest,
} from '../wire/request.ts'
import { TextIds } from '../wire/text-ids.ts'
import { weightVersionOf } from '../wire/weight-version.ts'
import { TAGS_SINCE, vllmCallTag } from './call-tags.ts'
import { IDS_ROUTE, mayLackRoute, vllmFeaturesBody, vllmIdsBody, wantsMaskByIds } from './ids-route.ts'
import { placedFeatures, RENDER_PATH, vllmRenderBody } from './images.ts'
import { vllmBody, vllmTokenBody, vllmTokenizeBody } from './request.ts'
import { readVllmScores, vllmScoreBody } from './score.ts'
import { DetokenizedTexts } from './token-texts.ts'

const NO_ROUTE =
  'sampling masks are not recorded: it lets nobody ask by its route of ids (vllm serve --enable-scale-out)'
const NO_MASKS = 'sampling masks are not recorded: it tells none (vllm serve --return-sampling-mask)'

/**
 * A client of vLLM's OpenAI-compatible server, from the version on that knows `return_token_ids` (0.10.2). Token mode
 * uses `/v1/completions`, and `/inference/v1/generate` for what only that gives: see `ids-route.ts`.
 */
export function createVllmClient(options: ConnectionOptions): EngineClient {
  return new VllmClient(options)
}

class VllmClient implements EngineClient {
  readonly kind = 'vllm'
  readonly takesTokenIds = true
  readonly takesImages = true
  readonly #connection: EngineConnection
  readonly #contextLength: ContextLength
  readonly #routes: OptionalRoutes
  readonly #textIds: TextIds
  readonly #heldCalls: HeldCalls
  /** Why this server tells no masks, for an operator. Until a health check fails: it may be another server after that. */
  #noMasks: string | undefined
  /** Of the model that was asked for last. */
  #texts: { model: string; of: DetokenizedTexts } | undefined

  constructor(options: ConnectionOptions) {
    this.#connection = new EngineConnection(options)
    this.#contextLength = new ContextLength(this.#connection)
    this.#routes = new OptionalRoutes(this.#connection)
    this.#textIds = new TextIds(this.#connection)
    this.#heldCalls = new HeldCalls(this.#connection, { paths: ['/version'], since: TAGS_SINCE })
  }

  get name(): string {
    return this.#connection.name
  }

  async *generate(asked: GenerationRequest, signal: AbortSignal): GenerationStream {
    if (isTokenRequest(asked) && asked.images !== undefined) {
      yield* this.#generateWithImages(asked, asked.images, signal)
      return
    }
    const request = isTokenRequest(asked)
      ? await this.#heldCalls.hold(asked, vllmCallTag(asked), signal)
      : asked
    const byIds = isTokenRequest(request) ? await this.#askForMask(request, signal) : undefined
    if (byIds !== undefined && byIds !== 'no route') {
      yield* this.#watchingForMasks(
        readAnswer(this.#connection, { ...request, stream: false }, byIds, signal),
      )
      return
    }
    const json = isTokenRequest(request)
      ? await this.#tokenBody(request, signal)
      : bodyJson(vllmBody(request), request)
    const response = await this.#connection.request(routeOf(request), signal, json, request)
    // The server answers this call: it was not the model that it did not know.
    if (byIds === 'no route') this.#noMasks = NO_ROUTE
    yield* readAnswer(this.#connection, request, response, signal)
  }

  /** @returns undefined for a call that needs no mask, or cannot have one; `/v1/completions` is for all but an answer */
  async #askForMask(
    request: TokenRequest,
    signal: AbortSignal,
  ): Promise<EngineResponse | 'no route' | undefined> {
    if (this.#noMasks !== undefined || !wantsMaskByIds(request)) return undefined
    const maxTokens = await this.#contextLength.budget(request, signal)
    const body = bodyWithIds(vllmIdsBody(request, maxTokens), 'token_ids', request)
    try {
      return await this.#connection.request(IDS_ROUTE, signal, body, request)
    } catch (thrown) {
      if (mayLackRoute(thrown)) return 'no route'
      throw thrown
    }
  }

  /** Without masks there is no reason to ask for answers whole. */
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
   * vLLM makes features of the images on one route and samples after ids with such features on another. Asked whole: its
   * stream leaves out a last step that has no new ids, and the finish reason with it.
   */
  async *#generateWithImages(
    request: TokenRequest,
    images: PromptImages,
    signal: AbortSignal,
  ): GenerationStream {
    const ask = async (path: string, json: string | BodyPieces) =>
      await this.#connection.request(path, signal, json, request)
    const maxTokens = await this.#contextLength.budget(request, signal)
    const rendered = await ask(RENDER_PATH, JSON.stringify(vllmRenderBody(request)))
    const features = placedFeatures(await this.#connection.text(rendered, signal), request, images, this.name)
    const body = vllmFeaturesBody(request, maxTokens, features)
    const response = await ask(IDS_ROUTE, bodyWithIds(body, 'token_ids', request))
    yield* readAnswer(this.#connection, { ...request, stream: false }, response, signal)
  }

  async #tokenBody(request: TokenRequest, signal: AbortSignal): Promise<BodyPieces> {
    const maxTokens = await this.#contextLength.budget(request, signal)
    return bodyWithIds(vllmTokenBody(request, maxTokens), 'prompt', request)
  }

  async countTokens(body: ChatBody, signal: AbortSignal): Promise<number> {
    const response = await this.#connection.request(
      '/tokenize',
      signal,
      JSON.stringify(vllmTokenizeBody(body)),
    )
    const said = parseJson(await this.#connection.text(response, signal))
    if (isRecord(said) && typeof said.count === 'number') return said.count
    throw new ProxyError('engine_failed', `the engine at ${this.name} counted no tokens`)
  }

  async score(request: ScoreRequest, signal: AbortSignal): Promise<Scored> {
    const response = await this.#connection.request('/v1/completions', signal, vllmScoreBody(request))
    const text = await this.#connection.text(response, signal)
    return { tokens: readVllmScores(this.name, text, request) }
  }

  tokenTexts(model: string, ids: Int32Array, signal: AbortSignal): Promise<string[] | undefined> {
    const ask = async (path: string, json: string) =>
      this.#connection.text(await this.#connection.request(path, signal, json), signal)
    if (this.#texts?.model !== model) this.#texts = { model, of: new DetokenizedTexts(model) }
    return this.#texts.of.textsOf(ids, ask)
  }

  get warning(): string | undefined {
    const warnings = [this.#heldCalls.warning, this.#noMasks].filter((said) => said !== undefined)
    return warnings.length === 0 ? undefined : warnings.join('; ')
  }

  async checkHealth(signal: AbortSignal, text?: string): Promise<EngineHealth> {
    try {
      return await this.#checkHealth(signal, text)
    } catch (thrown) {
      this.#heldCalls.forget()
      this.#textIds.forget()
      this.#noMasks = undefined
      throw thrown
    }
  }

  async #checkHealth(signal: AbortSignal, text?: string): Promise<EngineHealth> {
    // The list of models is answered even when the engine behind the server is dead; /health is not.
    await this.#routes.get('/health', signal)
    const models = await getModels(this.#connection, signal)
    this.#contextLength.note(models)
    const weightVersion = weightVersionIn(await this.#routes.get('/weight_info', signal))
    const unavailable = await this.#unavailable(signal)
    const textIds = text === undefined ? undefined : await this.#textIds.of(text, models[0]?.id, signal)
    return {
      models,
      ...(weightVersion !== undefined && { weightVersion }),
      ...(unavailable && { unavailable }),
      ...(textIds && { textIds }),
    }
  }

  /** Routes of development mode; a call to an engine that sleeps waits in it. vLLM 0.32 says of a paused one that it sleeps. */
  async #unavailable(signal: AbortSignal): Promise<Unavailable | undefined> {
    const says = async (name: string) => {
      const said = parseJson((await this.#routes.get(`/${name}`, signal)) ?? '')
      return isRecord(said) && said[name] === true
    }
    if (await says('is_paused')) return 'paused'
    return (await says('is_sleeping')) ? 'asleep' : undefined
  }

  async close(): Promise<void> {
    await this.#connection.close()
  }
}

/** `GET /weight_info` of a vLLM in development mode: `{"weight_version": "v7"}`. */
function weightVersionIn(info: string | undefined): string | undefined {
  const said = info === undefined ? undefined : parseJson(info)
  return isRecord(said) ? weightVersionOf(said.weight_version) : undefined
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
