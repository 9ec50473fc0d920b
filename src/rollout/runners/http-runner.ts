import { HttpClient } from '../http-client.ts'
import type { AgentResult, AgentRunner, AgentTask } from './runner.ts'

export interface HttpRunnerOptions {
  /** The URL that receives a POST for each attempt. */
  webhookUrl: string
  /** Additional headers, for a webhook that requires a key. */
  headers?: Readonly<Record<string, string>>
  /** The time limit from the POST to the end of the session. */
  timeLimitMs?: number
}

const TIME_LIMIT_MS = 30 * 60_000
/** The number of characters of an error response that an error quotes. */
const QUOTED_LENGTH = 300

/**
 * A runner that notifies a webhook of each task, and waits until the service that runs the agent has completed or
 * aborted the session. The reward is the one that the service sets on the session.
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
    const body = JSON.stringify(buildWebhookBody(task))
    const { status, text } = await this.#http.send({ method: 'POST', url, headers, body, signal })
    if (status >= 300)
      throw new Error(`the webhook responded with ${status}: ${text.slice(0, QUOTED_LENGTH)}`)
    const ended = await task.untilEnded(signal)
    if (ended === 'completed') return { status: 'completed', rewards: {} }
    return { status: 'failed', rewards: {}, error: 'the session was aborted' }
  }
}

/** Returns the body of the POST, with the names of the HTTP API. */
function buildWebhookBody(task: AgentTask): object {
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
