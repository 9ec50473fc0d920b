/** Rollouts that run in this process, with the configured runner. */
import { logEvent } from '../../base/log-events.ts'
import type { Logger } from '../../base/logger.ts'
import type { JsonObject } from '../../proxy/config/option.ts'
import { createRunner } from '../create-runner.ts'
import type { RunnerConfig } from '../options.ts'
import { RemoteAgentLoop } from '../remote-agent-loop.ts'
import type { RolloutOwners } from './owners.ts'
import { toRolloutSettings } from './request.ts'
import { Rollouts } from './rollouts.ts'

/** The time that a caller has to reconnect after it lost its connection or was restarted. */
const CALLER_GRACE_MS = 30_000

/** The proxy that agents use. It may be this process, which has no address before it listens. */
interface ProxyConnection {
  proxyUrl: string
  adminKeys: readonly string[]
  /** A PEM file of authorities to trust in addition to those of Node.js. */
  tlsCa: string | undefined
}

interface InProcessConfig extends RunnerConfig {
  /** The database of the proxy, if it is this process. */
  db?: string
  /** The sampling parameters of rollouts whose request has none. */
  samplingParams?: JsonObject
}

export class InProcessRollouts {
  readonly rollouts: Rollouts
  readonly owners: RolloutOwners | undefined
  readonly #config: InProcessConfig
  readonly #logger: Logger
  readonly #runner: ReturnType<typeof createRunner>
  readonly #loop = Promise.withResolvers<RemoteAgentLoop>()
  #opened: RemoteAgentLoop | undefined

  /**
   * @param owners set if several nodes of one database run rollouts
   * @throws ProxyError `config_invalid` when an option that the runner needs is missing
   */
  constructor(config: InProcessConfig, logger: Logger, owners?: RolloutOwners) {
    this.owners = owners
    this.#config = config
    this.#logger = logger
    this.#runner = createRunner(config, (note) => logEvent(logger, 'runner_note', { note }))
    this.rollouts = new Rollouts({
      run: async (request, signal) => {
        const loop = await this.#loop.promise
        const samplingParams = request.sampling_params ?? config.samplingParams ?? {}
        return loop.rollout(samplingParams, request.sample, toRolloutSettings(request), signal)
      },
      concurrency: config.concurrency,
      graceMs: CALLER_GRACE_MS,
      onRemoved: (rolloutId) => owners?.release(rolloutId),
    })
  }

  /**
   * Starts the rollouts. Requests that arrived earlier wait for this. Call it once.
   * @throws ProxyError `proxy_failed`, and errors of the runner's preparation
   */
  async begin(proxy: ProxyConnection): Promise<void> {
    const options = { ...this.#config, ...proxy, runner: this.#runner, logger: this.#logger }
    // The configuration is complete. A trainer's variables may be for rollouts on another machine.
    const loop = new RemoteAgentLoop(options, {})
    this.#opened = loop
    await loop.reach()
    await this.#runner.prepare?.(new AbortController().signal)
    this.#loop.resolve(loop)
  }

  /** Cancels running rollouts and closes the runner. */
  async close(): Promise<void> {
    await this.rollouts.stop(0)
    await (this.#opened ?? this.#runner).close()
  }
}
