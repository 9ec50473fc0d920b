/** Rollouts that this process runs, with the runner that its options name. */
import type { Logger } from '../../base/logger.ts'
import type { RunnerConfig } from '../../proxy/config/options/rollout.ts'
import { createRunner } from '../create-runner.ts'
import { RemoteAgentLoop } from '../remote-agent-loop.ts'
import type { RolloutOwners } from './owners.ts'
import { toRolloutSettings } from './request.ts'
import { Rollouts } from './rollouts.ts'

/** A caller whose connection broke, or that was started again, is back within this. */
const CALLER_GRACE_MS = 30_000

/** The proxy that agents call: it may be this process, which has no address before it listens. */
interface Proxy {
  proxyUrl: string
  adminKeys: readonly string[]
  /** Authorities to trust besides those of Node.js: a PEM file. */
  tlsCa: string | undefined
}

export class InProcessRollouts {
  readonly rollouts: Rollouts
  readonly owners: RolloutOwners | undefined
  readonly #config: RunnerConfig
  readonly #logger: Logger
  readonly #runner: ReturnType<typeof createRunner>
  readonly #loop = Promise.withResolvers<RemoteAgentLoop>()
  #opened: RemoteAgentLoop | undefined

  /**
   * @param owners where several nodes of one database run rollouts
   * @throws ProxyError `config_invalid` when the runner lacks an option
   */
  constructor(config: RunnerConfig & { db?: string }, logger: Logger, owners?: RolloutOwners) {
    this.owners = owners
    this.#config = config
    this.#logger = logger
    this.#runner = createRunner(config, (text) => logger.warn({}, text))
    this.rollouts = new Rollouts({
      run: async (request, signal) => {
        const loop = await this.#loop.promise
        return loop.rollout(request.sampling_params ?? {}, request.sample, toRolloutSettings(request), signal)
      },
      concurrency: config.concurrency,
      graceMs: CALLER_GRACE_MS,
      onForgotten: (rolloutId) => owners?.release(rolloutId),
    })
  }

  /**
   * To be called once; what was asked for before waits.
   * @throws ProxyError `proxy_failed`, and what the runner cannot begin without
   */
  async begin(proxy: Proxy): Promise<void> {
    const loop = new RemoteAgentLoop({
      ...this.#config,
      ...proxy,
      runner: this.#runner,
      logger: this.#logger,
    })
    this.#opened = loop
    await loop.reach()
    await this.#runner.prepare?.(new AbortController().signal)
    this.#loop.resolve(loop)
  }

  /** Ends the rollouts that run. */
  async close(): Promise<void> {
    await this.rollouts.stop(0)
    await (this.#opened ?? this.#runner).close()
  }
}
