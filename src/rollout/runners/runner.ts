/** The port between a rollout and the runner of its agent. */

/**
 * A row of a dataset, with any fields. Rollouts read `instance_id` and `local_task_path`; runners read others, such as
 * `prompt`.
 */
export type Sample = Readonly<Record<string, unknown>>

/** The settings of a runner that one rollout overrides; a runner ignores those that it does not support. */
export interface AgentSettings {
  readonly agentName?: string
  readonly agentImportPath?: string
  readonly agentKwargs?: Readonly<Record<string, unknown>>
  readonly environmentOverrides?: Readonly<Record<string, unknown>>
  readonly environmentKwargs?: Readonly<Record<string, unknown>>
}

/** The input of a runner for one run of an agent. */
export interface AgentTask {
  /** The id of the rollout, equal for all its attempts. */
  readonly trialId: string
  /** The session of this attempt. */
  readonly sessionId: string
  /** 1 for the first attempt. */
  readonly tryNumber: number
  /** A copy for this attempt. */
  readonly sample: Sample
  /** The task's directory; undefined when the row has none. */
  readonly taskPath: string | undefined
  readonly samplingParams: Readonly<Record<string, unknown>>
  /** Base URL of an OpenAI client, which ends in `/v1`. */
  readonly openaiBaseUrl: string
  /** Base URL of an Anthropic client, which appends `/v1/messages` itself. */
  readonly anthropicBaseUrl: string
  /** The key that authorizes the agent's LLM requests only. */
  readonly apiKey: string
  readonly modelName: string | undefined
  readonly settings?: AgentSettings | undefined
  /** Waits for a session that its agent ends itself, and resolves with its status. @throws `signal.reason` */
  untilEnded(signal: AbortSignal): Promise<'completed' | 'aborted'>
}

/**
 * The outcome of an agent's run:
 * - `completed`: the agent ended by itself, successful or not.
 * - `timeout`: it was stopped at its time limit.
 * - `failed`: it crashed, or reported a failure.
 * - `error`: it could not be run, or its result is unknown.
 */
export type AgentStatus = 'completed' | 'timeout' | 'failed' | 'error'

/** The result of one run of an agent. */
export interface AgentResult {
  readonly status: AgentStatus
  /** Named parts of the reward, finite numbers; empty when the runner reports none. */
  readonly rewards: Readonly<Record<string, number>>
  /** The reason for a status other than `completed`. */
  readonly error?: string
  /** The end of the agent's output. */
  readonly output?: string
  /** Further data of the runner, which rollouts do not interpret. */
  readonly details?: unknown
}

export interface AgentRunner {
  /**
   * Checks that agents can be run, so that an invalid configuration is reported before the first run. `run` does not
   * require it.
   * @throws ProxyError `config_invalid`; `signal.reason`
   */
  prepare?(signal: AbortSignal): Promise<void>
  /** Describes the progress of the runs in one line. */
  describe?(): string
  /**
   * Runs one agent to its end. When `signal` aborts, it stops the agent and then throws the signal's reason. Any other
   * error that it throws counts as an `error` of the attempt.
   */
  run(task: AgentTask, signal: AbortSignal): Promise<AgentResult>
  /** Releases its resources. No agent is running when it is called. */
  close(): Promise<void>
}
