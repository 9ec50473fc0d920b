/** The engines of local mode, which are added and removed while requests run. Each is a member of the dispatcher. */
import { createHash } from 'node:crypto'
import { logEvent } from '../../../base/log-events.ts'
import { assertTransition, type Transitions } from '../../../base/transitions.ts'
import type { EngineClient, EngineHealth } from '../port/engine-client.ts'
import type { Dispatcher } from './dispatcher.ts'
import { type EngineHealthReport, EngineHealthWatch, type EngineHealthWatchOptions } from './engine-health.ts'
import type { EffortRegistry } from './learned-efforts.ts'
import { LogprobsProbe } from './logprobs-probe.ts'
import type { MemberCapability } from './placement.ts'

export interface EnginePoolOptions
  extends Pick<EngineHealthWatchOptions, 'tokenizer' | 'reportsTextIds' | 'logger' | 'clock'> {
  dispatcher: Dispatcher
  /** The number of concurrent requests of an engine of weight 1. */
  maxConcurrency: number
  healthIntervalMs: number
  measuresLogprobs?: boolean | undefined
  /**
   * The registry of rejected efforts. Its entries for an engine are discarded when the engine may have been replaced.
   */
  efforts?: EffortRegistry | undefined
}

/** The settings of an engine's registration. */
export interface EngineSettings {
  weight: number
  modelName: string | null
  /** Whether the engine is a fallback that serves only until another engine is added. */
  isFallback: boolean
}

/** The state of an engine. `draining`: it finishes its running requests and receives no new ones. */
type EngineState = 'serving' | 'draining' | 'closed'

const TRANSITIONS: Transitions<EngineState> = {
  serving: ['draining', 'closed'],
  draining: ['serving', 'closed'],
  closed: [],
}

/** An engine of the pool. */
export interface EngineEntry extends EngineSettings {
  /**
   * An id derived from the engine's URL: an engine that is registered again has the same id, even after a restart of
   * the proxy.
   */
  readonly id: string
  readonly client: EngineClient
  readonly watch: EngineHealthWatch
  /** Absent unless `measuresLogprobs` is set. */
  readonly logprobs?: LogprobsProbe | undefined
  readonly sinceMs: number
  state: EngineState
}

export class EnginePool {
  readonly #options: EnginePoolOptions
  /** The engines by the name of their client, which is also the id of the dispatcher's member. */
  readonly #engines = new Map<string, EngineEntry>()

  constructor(options: EnginePoolOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#engines.size
  }

  list(): EngineEntry[] {
    return [...this.#engines.values()]
  }

  get(name: string): EngineEntry | undefined {
    return this.#engines.get(name)
  }

  /**
   * Adds an engine and takes ownership of its client. There must be no engine of this name.
   * @param known the result of a check that has just been made
   */
  add(client: EngineClient, facts: Partial<EngineSettings> = {}, known?: EngineHealth): EngineEntry {
    const { dispatcher, healthIntervalMs: intervalMs, logger, tokenizer } = this.#options
    const { name } = client
    const { weight = 1, modelName = null, isFallback = false } = facts
    // Unless its tokenizer must be compared first, the engine counts as healthy until a check or a request shows
    // otherwise, so that the first request need not wait.
    const healthy = tokenizer === undefined
    dispatcher.addMember({ id: name, ...this.#limit(weight), healthy, draining: false, models: [] })
    const logprobs = this.#options.measuresLogprobs ? new LogprobsProbe(client, logger) : undefined
    const watch = new EngineHealthWatch({
      ...this.#options,
      client,
      intervalMs,
      known,
      onHealth: (health) => {
        if (!health.healthy) {
          logprobs?.forget()
          this.#options.efforts?.forget(name)
        }
        dispatcher.updateMember(name, toMemberChange(client, health))
      },
    })
    const standing = {
      weight,
      modelName,
      isFallback,
      state: 'serving',
      sinceMs: Date.now(),
    } as const
    const engine: EngineEntry = { id: createEngineId(name), client, watch, logprobs, ...standing }
    this.#engines.set(name, engine)
    return engine
  }

  /**
   * Updates an engine that is registered again; cancels its removal if it was draining.
   * @throws AssertionError if it was removed
   */
  renew(engine: EngineEntry, { weight, modelName }: Omit<EngineSettings, 'isFallback'>): void {
    const { dispatcher } = this.#options
    const { name } = engine.client
    if (engine.state !== 'serving') this.#transition(engine, 'serving')
    Object.assign(engine, { weight, modelName, isFallback: false })
    engine.logprobs?.forget()
    this.#options.efforts?.forget(name)
    dispatcher.updateMember(name, this.#limit(weight))
    dispatcher.cancelRetirement(name)
  }

  /** Drains the engine and removes it when its running requests have ended, unless it is renewed before. */
  retire(engine: EngineEntry): void {
    if (engine.state !== 'serving') return
    this.#transition(engine, 'draining')
    const { name } = engine.client
    const { dispatcher, logger, efforts } = this.#options
    dispatcher.retireMember(name, () => {
      if (engine.state === 'closed') return
      this.#engines.delete(name)
      efforts?.forget(name)
      logEvent(logger, 'engine_retired', { engine: name })
      this.#close(engine).catch((err: unknown) =>
        logEvent(logger, 'engine_close_failed', { engine: name, err }),
      )
    })
  }

  async close(): Promise<void> {
    await Promise.all(this.list().map((engine) => this.#close(engine)))
  }

  async #close(engine: EngineEntry): Promise<void> {
    if (engine.state === 'closed') return
    this.#transition(engine, 'closed')
    engine.watch.stop()
    await engine.client.close()
  }

  #transition(engine: EngineEntry, to: EngineState): void {
    const { state: from, client } = engine
    assertTransition(TRANSITIONS, from, to)
    engine.state = to
    logEvent(this.#options.logger, 'engine_state', { engine: client.name, previous_state: from, state: to })
  }

  #limit(weight: number): { maxConcurrency: number } {
    return { maxConcurrency: this.#options.maxConcurrency * weight }
  }
}

function createEngineId(name: string): string {
  return `engine-${createHash('sha256').update(name).digest('hex').slice(0, 12)}`
}

/**
 * Returns the change of the dispatcher's member after a health check. Capabilities are read again each time, since they
 * may be known only once the server has responded.
 */
function toMemberChange(client: EngineClient, health: EngineHealthReport) {
  const lacks: MemberCapability[] = []
  if (!client.takesTokenIds) lacks.push('token_ids')
  if (!client.takesImages) lacks.push('images')
  return { ...health, lacks }
}
