/** The registry of local mode: the engines from the command line, and those that are registered at run time. */
import { ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import type { EngineClient } from '../port/engine-client.ts'
import type { EngineRegistration, MemberRegistry, RegistryEntry } from '../port/registry.ts'
import type { EngineEntry } from './engine-pool.ts'
import type { LocalBackend } from './local-backend.ts'

export interface EngineRegistryOptions {
  backend: LocalBackend
  /** Creates the client of a URL. @throws ProxyError `config_invalid` */
  open(url: string): EngineClient
  /** Token mode: engines that do not accept token ids are rejected. */
  needsTokenIds: boolean
  logger: Logger
}

export class EngineRegistry implements MemberRegistry {
  readonly #options: EngineRegistryOptions

  constructor(options: EngineRegistryOptions) {
    this.#options = options
  }

  list(): RegistryEntry[] {
    const { backend } = this.#options
    const loads = backend.getLoads()
    return backend.engines.list().map((engine) => toRegistryEntry(engine, loads.get(engine.client.name)))
  }

  async register({ url, weight, modelName }: EngineRegistration): Promise<RegistryEntry> {
    const engine = await this.#addOrRenew(this.#options.open(url), { weight, modelName })
    this.#retireFallbacks()
    await engine.watch.firstCheck
    this.#rejectIncompatible(engine)
    return toRegistryEntry(engine, this.#options.backend.getLoads().get(engine.client.name))
  }

  remove(id: string): void {
    const engine = this.#options.backend.engines.list().find((each) => each.id === id)
    if (engine === undefined) {
      throw new ProxyError('worker_not_found', `There is no engine ${id}; GET /admin/workers lists them`)
    }
    logEvent(this.#options.logger, 'engine_removed', { engine: engine.client.name })
    this.#options.backend.engines.retire(engine)
  }

  async #addOrRenew(client: EngineClient, facts: { weight: number; modelName: string | null }) {
    const { engines } = this.#options.backend
    const existing = engines.get(client.name)
    if (existing === undefined) {
      logEvent(this.#options.logger, 'engine_registered', { engine: client.name, weight: facts.weight })
      return engines.add(client, facts)
    }
    engines.renew(existing, facts)
    await client.close()
    // An engine is registered again after a restart, perhaps with other weights, so the known version is discarded.
    await existing.watch.refresh()
    return existing
  }

  /**
   * Retires fallback engines immediately, even if the new engine is not up, because samples of a fallback might be
   * trained on.
   */
  #retireFallbacks(): void {
    for (const engine of this.#options.backend.engines.list()) {
      if (!engine.isFallback || engine.state !== 'serving') continue
      logEvent(this.#options.logger, 'embedded_engine_retired', {})
      this.#options.backend.engines.retire(engine)
    }
  }

  #rejectIncompatible(engine: EngineEntry): void {
    const { client, watch } = engine
    const isOther = watch.tokenizer === 'other'
    if (!isOther && (!this.#options.needsTokenIds || client.takesTokenIds)) return
    this.#options.backend.engines.retire(engine)
    const message = isOther
      ? `${client.name} is rejected: ${watch.error}`
      : `token mode needs engines that accept token ids, and ${client.name} does not: use vLLM or SGLang`
    throw new ProxyError('unsupported', message, { param: 'url' })
  }
}

function toRegistryEntry(
  engine: EngineEntry,
  load: { inFlight: number; maxConcurrency: number } | undefined,
) {
  const { id, client, watch, modelName, weight, state, sinceMs } = engine
  return {
    id,
    kind: 'engine',
    url: client.kind === 'embedded' ? null : client.name,
    engineKind: client.kind,
    modelName,
    weight,
    version: null,
    load: load?.inFlight ?? 0,
    maxConcurrency: load?.maxConcurrency ?? 0,
    models: watch.models.map((model) => model.id),
    weightVersion: watch.weightVersion ?? null,
    healthy: watch.healthy,
    error: watch.error ?? null,
    draining: state === 'draining',
    sinceMs,
  } satisfies RegistryEntry
}
