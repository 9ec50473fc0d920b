import { HttpClient } from '../http-client.ts'
import type { AgentResult, AgentRunner, AgentTask } from './runner.ts'

export interface HttpRunnerOptions {
  /** Gets a POST for each try. */
  webhookUrl: string
  /** Sent along, for a webhook that wants a key. */
  headers?: Readonly<Record<string, string>>
  /** From the POST until the session has ended. */
  timeLimitMs?: number
}

const TIME_LIMIT_MS = 30 * 60_000
/** What is quoted of a refusal. */
const QUOTED_LENGTH = 300

/**
 * Tells a webhook of each task, and waits until the session is completed or aborted by whoever runs the agent. The
 * reward is the session's own.
 */
export class HttpRunner implements AgentRunner {
  readonly #options: HttpRunnerOptions
  readonly #http = new HttpClient()

  constructor(options: HttpRunnerOptions) {
    this.#options = options
  }

  async run(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    const limit = AbortSignal.timeout(this.#options.timeLimitMs ?? TIME_LIMIT_MS)
    try {
      return await this.#run(task, AbortSignal.any([signal, limit]))
    } catch (error) {
      signal.throwIfAborted()
      if (limit.aborted) return { status: 'timeout', rewards: {}, error: 'the session was not ended in time' }
      throw error
    }
  }

  async close(): Promise<void> {
    await this.#http.close()
  }

  async #run(task: AgentTask, signal: AbortSignal): Promise<AgentResult> {
    const { webhookUrl: url, headers = {} } = this.#options
    const body = JSON.stringify(webhookBody(task))
    const { status, text } = await this.#http.send({ method: 'POST', url, headers, body, signal })
    if (status >= 300) throw new Error(`the webhook answered with ${status}: ${text.slice(0, QUOTED_LENGTH)}`)
    const ended = await task.untilEnded(signal)
    if (ended === 'completed') return { status: 'completed', rewards: {} }
    return { status: 'failed', rewards: {}, error: 'the session was aborted' }
  }
}

/** Under the names of the HTTP API. */
function webhookBody(task: AgentTask): object {
  return {
    trial_id: task.trialId,
    session_id: task.sessionId,
    try: task.tryNumber,
    openai_base_url: task.openaiBaseUrl,
    anthropic_base_url: task.anthropicBaseUrl,
    api_key: task.apiKey,
    model_name: task.modelName ?? null,
    task_path: task.taskPath ?? null,
    sampling_params: task.samplingParams,
    task: task.sample,
  }
}
