/** The port between a rollout and whatever runs its agent. */

/** A row of a dataset: any fields; `instance_id`, `local_task_path` and `prompt` have a meaning here. */
export type Sample = Readonly<Record<string, unknown>>

/** What one rollout may have otherwise than its runner was made with; a runner takes what it knows. */
export interface AgentSettings {
  readonly agentName?: string
  readonly agentImportPath?: string
  readonly agentKwargs?: Readonly<Record<string, unknown>>
  readonly environmentOverrides?: Readonly<Record<string, unknown>>
  readonly environmentKwargs?: Readonly<Record<string, unknown>>
}

/** What a runner needs to know to run an agent once. */
export interface AgentTask {
  /** One rollout, the same for all its tries. */
  readonly trialId: string
  /** The session of this try. */
  readonly sessionId: string
  /** 1 for the first try. */
  readonly tryNumber: number
  /** A copy that is this try's own. */
  readonly sample: Sample
  /** The task's directory; undefined when the row has none. */
  readonly taskPath: string | undefined
  readonly samplingParams: Readonly<Record<string, unknown>>
  /** Base URL of an OpenAI client, which ends in `/v1`. */
  readonly openaiBaseUrl: string
  /** Base URL of an Anthropic client, which appends `/v1/messages` itself. */
  readonly anthropicBaseUrl: string
  /** With it the agent calls, and can do nothing else. */
  readonly apiKey: string
  readonly modelName: string | undefined
  readonly settings?: AgentSettings | undefined
  /** Resolves with how the session ended, for agents that end it themselves. @throws `signal.reason` */
  untilEnded(signal: AbortSignal): Promise<'completed' | 'aborted'>
}

/**
 * - `completed`: the agent came to its own end, whatever it achieved.
 * - `timeout`: it was stopped because its time was up.
 * - `failed`: it crashed, or gave up.
 * - `error`: it could not be run, or its result could not be found out.
 */
export type AgentStatus = 'completed' | 'timeout' | 'failed' | 'error'

export interface AgentResult {
  readonly status: AgentStatus
  /** Named parts of the reward; empty when the runner knows of none. Finite numbers. */
  readonly rewards: Readonly<Record<string, number>>
  /** Why it is not `completed`. */
  readonly error?: string
  /** The end of what the agent printed. */
  readonly output?: string
  /** What else the runner has to tell; it is handed on as it is. */
  readonly details?: unknown
}

export interface AgentRunner {
  /**
   * Finds out whether agents can be run at all, before the first one is; `run` does without it.
   * @throws ProxyError `config_invalid`; `signal.reason`
   */
  prepare?(signal: AbortSignal): Promise<void>
  /** What it has to tell of a run that is under way, for one line. */
  describe?(): string
  /**
   * Runs one agent to its end. When `signal` aborts it stops the agent, and then throws the signal's reason. What it
   * throws otherwise counts as an `error` of the try.
   */
  run(task: AgentTask, signal: AbortSignal): Promise<AgentResult>
  /** Lets go of what it holds. No agent runs any more. */
  close(): Promise<void>
}
