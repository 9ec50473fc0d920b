import { ProxyError } from '../base/errors.ts'
import type { Logger } from '../base/logger.ts'
import { loadConfig } from '../proxy/config/load.ts'
import { readTrustedAuthorities } from '../proxy/config/trusted-authorities.ts'
import type { AgentLoopOutputs, RolloutResult } from './agent-loop-output.ts'
import { HttpClient } from './http-client.ts'
import { REMOTE_AGENT, type RemoteAgentConfig } from './options.ts'
import { ProxyClient, type RowChoice } from './proxy-client.ts'
import { Rollout, type RolloutOptions } from './rollout.ts'
import { HarborRunner } from './runners/harbor-runner.ts'
import type { AgentRunner, Sample } from './runners/runner.ts'
import { getAgentFacingUrl, toProxyBaseUrl } from './session-urls.ts'
import { findTaskPath } from './task-path.ts'

/** The options of the loop. Omitted ones are read from the environment; docs/rollouts.md lists the names. */
export interface RemoteAgentLoopOptions extends Partial<RemoteAgentConfig> {
  /** The runner of agents; default: the Harbor server of `harborUrl`. The loop closes it. */
  runner?: AgentRunner
  /** Whether responses continue after their engine request was cut; default: as the proxy is configured. */
  continueResponses?: boolean
  /** Logs each failed attempt. Default: no log. */
  logger?: Logger
  /** Returns a random number from 0 to 1; default: `Math.random`. */
  random?: () => number
}

export const NO_PROXY = 'a rollout needs a proxy: give --proxy-url, proxyUrl or PROXY_SERVER_URL'

/** The settings that one rollout may override. */
export type RolloutSettings = {
  [Name in
    | keyof RowChoice
    | 'agent'
    | 'modelName'
    | 'trustAgent'
    | 'continueResponses'
    | 'maxRetries'
    | 'retryBaseDelayMs'
    | 'onTimeLimit']?: RolloutOptions[Name] | undefined
} & { agentHost?: string | undefined }

/**
 * The trainer's interface to the proxy: runs an agent for each sample, and returns the tokens that it sampled and the
 * reward, ready for PPO or GRPO. Any number of rollouts may run concurrently.
 */
export class RemoteAgentLoop {
  readonly #http: HttpClient
  readonly #proxy: ProxyClient
  readonly #proxyUrl: string
  readonly #rollout: RolloutOptions

  /** @throws ProxyError `config_invalid` that names the option or the variable */
  constructor(options: RemoteAgentLoopOptions = {}, env: NodeJS.ProcessEnv = process.env) {
    const { runner, logger = NO_LOGGER, random = Math.random, ...rest } = options
    const config = { ...loadConfig(REMOTE_AGENT, {}, env), ...omitUndefined(rest) }
    if (config.proxyUrl === undefined) {
      throw new ProxyError('config_invalid', NO_PROXY)
    }
    const proxyUrl = toProxyBaseUrl(config.proxyUrl)
    this.#http = new HttpClient(readTrustedAuthorities(config.tlsCa))
    this.#proxyUrl = proxyUrl
    const adminKey = config.adminKeys[0]
    this.#proxy = new ProxyClient({ proxyUrl, adminKey, http: this.#http, random })
    this.#rollout = {
      ...config,
      logger,
      random,
      runner: runner ?? new HarborRunner(config),
      proxy: this.#proxy,
      agentFacingUrl: getAgentFacingUrl(proxyUrl, config.agentHost),
      findTaskPath: (sample) => findTaskPath(sample, config),
    }
  }

  /**
   * Checks once that the proxy responds, so that a wrong URL fails immediately. A rollout itself retries for up to 16
   * s, in case the proxy restarts.
   * @throws ProxyError `proxy_failed`
   */
  reach(): Promise<void> {
    return this.#proxy.reach()
  }

  /**
   * Runs one rollout. A failed agent is run again; after the last retry the result is a padding row, not an error.
   * @param samplingParams override those that the agent requests
   * @param sample a row of the dataset; it is not modified
   * @param signal stops the agent when it aborts
   * @returns a row for each branch of the session, or one padding row if there is nothing to train on
   * @throws ProxyError of the proxy (`proxy_failed`, `unauthorized`, `invalid_request`, …); `signal.reason`
   */
  async run(
    samplingParams: Readonly<Record<string, unknown>>,
    sample: Sample,
    signal: AbortSignal = new AbortController().signal,
  ): Promise<AgentLoopOutputs> {
    return (await this.rollout(samplingParams, sample, {}, signal)).rows
  }

  /**
   * Runs one rollout as `run` does, with settings that override those of the loop. The result also has the reward and
   * the images of the rollout.
   */
  async rollout(
    samplingParams: Readonly<Record<string, unknown>>,
    sample: Sample,
    { agentHost, ...settings }: RolloutSettings,
    signal: AbortSignal,
  ): Promise<RolloutResult> {
    const options = { ...this.#rollout, ...omitUndefined(settings) }
    if (agentHost !== undefined) options.agentFacingUrl = getAgentFacingUrl(this.#proxyUrl, agentHost)
    return new Rollout(options, samplingParams, sample).run(signal)
  }

  /** Closes the runner and all connections. Call it when no rollout is running. */
  async close(): Promise<void> {
    await this.#rollout.runner.close()
    await this.#http.close()
  }
}

const NO_LOGGER: Logger = { debug() {}, info() {}, warn() {}, error() {} }

type WithoutUndefined<T> = { [K in keyof T]?: Exclude<T[K], undefined> }

export function omitUndefined<T extends object>(options: T): WithoutUndefined<T> {
  const defined = Object.entries(options).filter(([, value]) => value !== undefined)
  return Object.fromEntries(defined) as WithoutUndefined<T>
}
