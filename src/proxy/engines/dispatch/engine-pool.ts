/** The engines of local mode, which come and go while calls run. Each is a member of the dispatcher. */
import { createHash } from 'node:crypto'
import type { EngineClient, EngineHealth } from '../port/engine-client.ts'
import type { Dispatcher } from './dispatcher.ts'
import { type EngineHealthReport, EngineHealthWatch, type EngineHealthWatchOptions } from './engine-health.ts'
import type { EffortRegistry } from './learned-efforts.ts'
import { LogprobsProbe } from './logprobs-probe.ts'
import type { Ability } from './placement.ts'

export interface EnginePoolOptions
  extends Pick<EngineHealthWatchOptions, 'tokenizer' | 'tellsTextIds' | 'logger' | 'clock'> {
  dispatcher: Dispatcher
  /** Calls that an engine of weight 1 serves at once. */
  maxConcurrency: number
  healthIntervalMs: number
  measuresLogprobs?: boolean | undefined
  /** Forgets what it learned from an engine that may have been replaced. */
  efforts?: EffortRegistry | undefined
}

export interface EngineFacts {
  weight: number
  modelName: string | null
  /** It serves only until another engine is there. */
  standIn: boolean
}

export interface EngineEntry extends EngineFacts {
  /** Derived from the engine's URL, so that one which is registered again, with a restarted proxy too, keeps it. */
  readonly id: string
  readonly client: EngineClient
  readonly watch: EngineHealthWatch
  /** Absent: nobody wants to know. */
  readonly logprobs?: LogprobsProbe | undefined
  readonly sinceMs: number
  draining: boolean
}

export class EnginePool {
  readonly #options: EnginePoolOptions
  /** By the names of their clients, which are the dispatcher's names for them too. */
  readonly #engines = new Map<string, EngineEntry>()

  constructor(options: EnginePoolOptions) {
    this.#options = options
  }

  get size(): number {
    return this.#engines.size
  }

  all(): EngineEntry[] {
    return [...this.#engines.values()]
  }

  get(name: string): EngineEntry | undefined {
    return this.#engines.get(name)
  }

  /**
   * The client is the pool's from here on. There must be no engine of its name.
   * @param known what the engine has said just now
   */
  add(client: EngineClient, facts: Partial<EngineFacts> = {}, known?: EngineHealth): EngineEntry {
    const { dispatcher, healthIntervalMs: intervalMs, logger, tokenizer } = this.#options
    const { name } = client
    const { weight = 1, modelName = null, standIn = false } = facts
    // Taken for healthy until a check or a call says otherwise, so that the first call waits for nothing; but not with a
    // tokenizer that may be another one.
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
        dispatcher.updateMember(name, memberChange(client, health))
      },
    })
    const standing = { weight, modelName, standIn, draining: false, sinceMs: Date.now() }
    const engine = { id: createEngineId(name), client, watch, logprobs, ...standing }
    this.#engines.set(name, engine)
    return engine
  }

  /** Changes what whoever registers it again says of it; one that was leaving stays. */
  renew(engine: EngineEntry, { weight, modelName }: Omit<EngineFacts, 'standIn'>): void {
    const { dispatcher } = this.#options
    const { name } = engine.client
    Object.assign(engine, { weight, modelName, standIn: false, draining: false })
    engine.logprobs?.forget()
    this.#options.efforts?.forget(name)
    dispatcher.updateMember(name, this.#limit(weight))
    dispatcher.keepMember(name)
  }

  /** Gives the engine nothing new; it is gone when the calls that it serves have ended, unless it is renewed before. */
  retire(engine: EngineEntry): void {
    if (engine.draining) return
    engine.draining = true
    const { client, watch } = engine
    const { dispatcher, logger, efforts } = this.#options
    dispatcher.retireMember(client.name, () => {
      this.#engines.delete(client.name)
      efforts?.forget(client.name)
      watch.stop()
      logger?.info({ engine: client.name }, 'engine is out of service')
      client
        .close()
        .catch((err: unknown) => logger?.warn({ engine: client.name, err }, 'engine did not close'))
    })
  }

  async close(): Promise<void> {
    const engines = this.all()
    for (const { watch } of engines) watch.stop()
    await Promise.all(engines.map(({ client }) => client.close()))
  }

  #limit(weight: number): { maxConcurrency: number } {
    return { maxConcurrency: this.#options.maxConcurrency * weight }
  }
}

function createEngineId(name: string): string {
  return `engine-${createHash('sha256').update(name).digest('hex').slice(0, 12)}`
}

/** Abilities are asked for after each check: what a server is may be known only once it has answered. */
function memberChange(client: EngineClient, health: EngineHealthReport) {
  const lacks: Ability[] = []
  if (!client.takesTokenIds) lacks.push('token_ids')
  if (!client.takesImages) lacks.push('images')
  return { ...health, lacks }
}
