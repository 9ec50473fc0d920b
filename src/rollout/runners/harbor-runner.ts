import { ProxyError } from '../../base/errors.ts'
import { HarborClient, type HarborMetadata } from './harbor-client.ts'
import type { HarborFields, HarborOptions } from './harbor-trial-runner.ts'
import type { AgentResult, AgentRunner, AgentTask } from './runner.ts'
import { createSessionEnvironment } from './session-environment.ts'

export interface HarborRunnerOptions extends HarborOptions {
  /** The URL of the server. */
  harborUrl: string | undefined
  timeoutMultiplier?: number
  /** The verifier's settings, which the server interprets. */
  harborVerifier?: HarborFields
}

/** A runner that runs and judges each agent on a Harbor server, in a separate environment. */
export class HarborRunner implements AgentRunner {
  readonly #options: HarborRunnerOptions
  readonly #client: HarborClient

  /** @throws ProxyError `config_invalid` */
  constructor(options: HarborRunnerOptions) {
    const { harborUrl: serverUrl, harborTimeoutMs: timeoutMs } = options
    if (serverUrl === undefined) {
      throw new ProxyError(
        'config_invalid',
        'the Harbor runner needs a server: give harborUrl or HARBOR_SERVER_URL',
      )
    }
    this.#options = options
    this.#client = new HarborClient({ serverUrl, timeoutMs })
  }

  async run(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    const run = await this.#client.submit(this.#toMetadata(task), signal)
    const { status, rewards, error, ...details } = run
    return { status, rewards: rewards ?? {}, details, ...(error != null && { error }) }
  }

  close(): Promise<void> {
    return this.#client.close()
  }

  #toMetadata(task: AgentTask): HarborMetadata {
    const { taskPath, openaiBaseUrl, modelName } = task
    if (taskPath === undefined) {
      throw new Error(
        'the row names no task directory: it has no local_task_path, and no dataset directory has its instance_id',
      )
    }
    const options = { ...this.#options, ...task.settings }
    const { agentName, agentImportPath, agentKwargs = {}, environmentOverrides = {} } = options
    return {
      task_path: taskPath,
      agent: {
        name: agentName ?? null,
        import_path: agentImportPath ?? null,
        model_name: modelName ?? null,
        llm_proxy_url: openaiBaseUrl,
        kwargs: agentKwargs,
      },
      timeout_multiplier: options.timeoutMultiplier ?? 1,
      verifier: options.harborVerifier ?? {},
      environment_overrides: { ...environmentOverrides, ...createSessionEnvironment(task) },
      environment_kwargs: options.environmentKwargs ?? {},
    }
  }
}
