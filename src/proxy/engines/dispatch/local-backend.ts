/** The backend that connects to engines over HTTP: an implementation of `Backend` with any number of engine clients. */

import { ProxyError } from '../../../base/errors.ts'
import { raceAbort } from '../../../base/race-abort.ts'
import type { EventSink, GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { ChatBody, GenerationRequest } from '../../../protocol/canonical/request.ts'
import type { Backend, BackendStatus } from '../port/backend.ts'
import { createCannotCountError } from '../port/count-tokens.ts'
import type { EngineClient, EngineHealth, EngineModel } from '../port/engine-client.ts'
import type { ExpectedTokenizer } from '../port/expected-tokenizer.ts'
import { DISPATCH_DEFAULTS, Dispatcher, type DispatcherOptions } from './dispatcher.ts'
import { EnginePool } from './engine-pool.ts'
import { type FailureVerdict, generateWithFailover, judgeResponse } from './failover.ts'
import { EffortNegotiation, EffortRegistry } from './learned-efforts.ts'
import type { LogprobsMode } from './logprobs-probe.ts'
import { isEngineFault } from './outlier-detector.ts'
import { createUnlistedPolicyError, type MemberLoad } from './placement.ts'
import { WeightStamp } from './weight-stamp.ts'

export interface LocalBackendOptions extends Partial<Omit<DispatcherOptions, 'createAbsentError'>> {
  /** The initial engines. */
  clients: readonly EngineClient[]
  /** Results of health checks that have just been made, by client name; the other engines are checked. */
  known?: ReadonlyMap<string, EngineHealth>
  /** Whether `clients` are fallbacks that serve only until another engine is added. */
  areFallbacks?: boolean
  /**
   * The number of concurrent requests per engine. It may exceed the engine's batch size, because engines queue
   * requests.
   */
  maxConcurrencyPerEngine?: number
  healthIntervalMs?: number
  /** Token mode: the expected tokenizer. An engine with another tokenizer receives no requests. */
  tokenizer?: ExpectedTokenizer | undefined
  /** Whether members report the ids by which the proxy compares tokenizers. */
  reportsTextIds?: boolean
  /**
   * Whether to replace reasoning efforts that an engine rejects. A worker's backend does not, because its proxy
   * replaces and records them.
   */
  adaptsEfforts?: boolean
  /** Whether to detect the logprobs mode of vLLM and SGLang by two short requests before an engine's first request. */
  measuresLogprobs?: boolean
}

export interface LocalBackend extends Backend {
  readonly engines: EnginePool
  /** Returns each engine's load by its name. */
  getLoads(): ReadonlyMap<string, MemberLoad>
}

const HEALTH_INTERVAL_MS = 5_000
/**
 * The number of engines after whose loss a request fails if it has no event yet: a request that crashes engines must
 * not reach all of them.
 */
const MAX_LOSSES = 2

/** Creates a local backend. @throws ProxyError `config_invalid` if two clients have the same engine */
export function createLocalBackend(options: LocalBackendOptions): LocalBackend {
  return new EngineBackend(options)
}

class EngineBackend implements LocalBackend {
  readonly mode = 'local'
  readonly engines: EnginePool
  readonly #dispatcher: Dispatcher
  readonly #efforts: EffortRegistry | undefined

  constructor(options: LocalBackendOptions) {
    const { clients, areFallbacks = false, maxConcurrencyPerEngine, healthIntervalMs } = options
    if (new Set(clients.map(({ name }) => name)).size < clients.length)
      throw new ProxyError('config_invalid', 'two engines have the same URL')
    this.#dispatcher = new Dispatcher({
      ...options,
      queueLimit: options.queueLimit ?? DISPATCH_DEFAULTS.queueLimit,
      waitMs: options.waitMs ?? DISPATCH_DEFAULTS.waitMs,
      createAbsentError: (request) =>
        createUnlistedPolicyError(request, this.getStatus().members) ?? {
          code: 'engine_unreachable',
          message: `no engine that could serve this request is healthy${this.#describeRejections()}`,
        },
    })
    this.#efforts = options.adaptsEfforts ? new EffortRegistry(options.logger) : undefined
    this.engines = new EnginePool({
      ...options,
      efforts: this.#efforts,
      dispatcher: this.#dispatcher,
      maxConcurrency: maxConcurrencyPerEngine ?? DISPATCH_DEFAULTS.maxConcurrency,
      healthIntervalMs: healthIntervalMs ?? HEALTH_INTERVAL_MS,
    })
    for (const client of clients)
      this.engines.add(client, { isFallback: areFallbacks }, options.known?.get(client.name))
  }

  generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    return generateWithFailover(
      {
        dispatcher: this.#dispatcher,
        serve: (engine, adapted, to) => this.#generateAt(engine, adapted, to, signal),
        getKind: (engine) => this.#engine(engine).client.kind,
        judge: (thrown, engine) => this.#judge(thrown, engine),
        efforts: this.#efforts,
        maxLosses: MAX_LOSSES,
        countMembers: () => this.engines.size,
      },
      request,
      sink,
      signal,
    )
  }

  /** Formats the reasons why reachable engines receive no requests. */
  #describeRejections(): string {
    const rejected = this.engines.list().filter(({ watch }) => watch.tokenizer === 'other')
    return rejected.length === 0
      ? ''
      : `: ${rejected.map(({ client, watch }) => `${client.name}: ${watch.error}`).join('; ')}`
  }

  async #generateAt(
    engine: string,
    request: GenerationRequest,
    sink: EventSink,
    signal: AbortSignal,
  ): Promise<void> {
    const { client, watch, logprobs } = this.#engine(engine)
    const mode = logprobs?.getMode(watch.models[0]?.id, signal)
    const logprobsMode = mode instanceof Promise ? await mode : mode
    // The weights of a response's continuation must be known at its dispatch, since a turn records them for each part.
    if (request.minWeightVersion !== undefined && watch.refreshing) await raceAbort(watch.refreshing, signal)
    const weights = new WeightStamp(watch)
    const write = (batch: readonly GenerationEvent[]) =>
      sink.write(withMode(weights.stamp(batch), logprobsMode))
    try {
      await client.generate(request, { write }, signal)
    } catch (thrown) {
      // Must precede the refresh, which discards the version.
      if (thrown instanceof ProxyError) thrown.weightsChanged ||= weights.haveWeightsChanged
      // A trainer aborts requests to load new weights. The check detects a paused engine, to which no request must be
      // dispatched until it is resumed.
      if (thrown instanceof ProxyError && thrown.code === 'engine_aborted')
        await raceAbort(watch.refresh(), signal)
      throw thrown
    }
  }

  #judge(thrown: unknown, engine: string): FailureVerdict {
    if (!(thrown instanceof ProxyError)) return 'final'
    if (thrown.code === 'engine_unreachable') {
      // Health checks detect when the engine can serve again.
      this.#engine(engine).watch.markUnhealthy(thrown)
      return 'unavailable'
    }
    if (thrown.code !== 'engine_lost') return judgeResponse(thrown)
    this.#engine(engine).logprobs?.forget()
    this.#efforts?.forget(engine)
    // Either the engine died, and its replacement may have other weights, or it closed a connection that seemed usable.
    void this.#engine(engine).watch.refresh()
    return 'lost'
  }

  /** Returns the engine of a running request: it stays in the pool until the request has ended. */
  #engine(name: string) {
    return this.engines.get(name)!
  }

  async listModels(): Promise<EngineModel[]> {
    const models = new Map<string, EngineModel>()
    for (const { watch, state } of this.engines.list()) {
      await watch.firstCheck
      for (const model of watch.healthy && state === 'serving' ? watch.models : []) {
        if (!models.has(model.id)) models.set(model.id, model)
      }
    }
    return [...models.values()]
  }

  /** Queries the healthy engines in order until one can count: all of them serve the same model. */
  async countTokens(body: ChatBody, signal: AbortSignal): Promise<number> {
    let failure: unknown = createCannotCountError('No engine can count the tokens of a prompt')
    for (const { client, watch, state } of this.engines.list()) {
      if (!client.countTokens || !watch.healthy || state !== 'serving') continue
      try {
        return await this.#countAt(client, body, signal)
      } catch (thrown) {
        if (signal.aborted || !(thrown instanceof ProxyError) || !isEngineFault(thrown)) throw thrown
        failure = thrown
      }
    }
    throw failure
  }

  /** Counts the prompt with the reasoning effort that a request would be sent with. */
  async #countAt(client: EngineClient, body: ChatBody, signal: AbortSignal): Promise<number> {
    const count = (sent: ChatBody) => client.countTokens!(sent, signal)
    if (this.#efforts === undefined) return await count(body)
    const negotiation = new EffortNegotiation(this.#efforts, body)
    const adapt = () => negotiation.adaptBody(client.name) ?? body
    try {
      return await count(adapt())
    } catch (thrown) {
      if (!negotiation.checkRejection(client.name, thrown)) throw thrown
    }
    try {
      const counted = await count(adapt())
      negotiation.confirm()
      return counted
    } catch (thrown) {
      throw negotiation.toAgentError(thrown)
    }
  }

  releaseSession(sessionId: string): void {
    this.#dispatcher.releaseSession(sessionId)
    for (const { client } of this.engines.list()) client.endSession?.(sessionId)
  }

  getStatus(): BackendStatus {
    const { members, waiting, pausedSinceMs, moves } = this.#dispatcher.getStats()
    return {
      queued: waiting,
      pausedSinceMs,
      moves,
      members: members.map(({ id, inFlight, maxConcurrency: capacity }) => {
        const { client, watch } = this.#engine(id)
        const { healthy, unavailable, models, weightVersion, error, tokenizer, textIds, chatIds } = watch
        const warnings = [client.warning, watch.warning].filter((text) => text !== undefined)
        return {
          name: id,
          kind: client.kind,
          healthy,
          unavailable,
          ejectedForMs: this.#dispatcher.getEjectionMs(id) || undefined,
          inFlight,
          capacity,
          models: models.map((model) => model.id),
          takesTokenIds: client.takesTokenIds,
          takesImages: client.takesImages || undefined,
          weightVersion,
          error,
          warning: warnings.join('; ') || undefined,
          tokenizer,
          ...(textIds && !tokenizer && { textIds, chatIds }),
        }
      }),
    }
  }

  getLoads(): ReadonlyMap<string, MemberLoad> {
    return new Map(this.#dispatcher.getStats().members.map((member) => [member.id, member]))
  }

  pause(): void {
    this.#dispatcher.pause()
  }

  resume(): Promise<void> {
    return this.#dispatcher.resumeAfter(this.refresh())
  }

  async refresh(): Promise<void> {
    const engines = this.engines.list()
    for (const { watch } of engines) watch.forgetWeights()
    const serving = engines.filter(({ watch }) => watch.healthy)
    await Promise.all(serving.map(({ watch }) => watch.refresh()))
  }

  async close(): Promise<void> {
    this.#dispatcher.close()
    await this.engines.close()
  }
}

/** Adds the mode to the start event of a generation's first batch, unless the engine reports one itself. */
function withMode(
  batch: readonly GenerationEvent[],
  logprobsMode: LogprobsMode | undefined,
): readonly GenerationEvent[] {
  const [start] = batch
  if (logprobsMode === undefined || start?.type !== 'start') return batch
  return [{ ...start, sampling: { logprobsMode, ...start.sampling } }, ...batch.slice(1)]
}
