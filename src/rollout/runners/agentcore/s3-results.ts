/**
 * Receives results that the agent's program writes to S3 under `{experiment}/{input}/{session}.json` (`AgentCoreRLApp`
 * of agentcore-rl-toolkit), by polling S3, or by reading S3's notifications from a queue.
 */
import { isRecord } from '../../../base/json.ts'
import { pause } from '../../backoff.ts'
import type { AgentResult } from '../runner.ts'
import type { AgentCoreEndpoint } from './endpoint.ts'
import { parseResult, quote } from './result.ts'
import type { ResultBucket } from './result-bucket.ts'
import type { ResultQueue } from './result-queue.ts'
import type { AgentCoreSession, ResultSource } from './result-source.ts'

export interface S3ResultsOptions {
  endpoint: AgentCoreEndpoint
  bucket: ResultBucket
  /** The queue of S3's notifications. Absent: S3 is only polled. */
  queue?: ResultQueue | undefined
  /** The first part of the keys, unique to this run. */
  experiment: string
}

const FIRST_POLL_MS = 500
const MAX_POLL_MS = 10_000
const POLL_GROWTH = 1.5
/** The poll interval with a queue: a lost message delays a result by this time, and does not lose it. */
const POLL_WITH_QUEUE_MS = 60_000
const LAST_POLL_TIMEOUT_MS = 10_000

export class S3Results implements ResultSource {
  readonly #options: S3ResultsOptions

  constructor(options: S3ResultsOptions) {
    this.#options = options
  }

  async prepare(signal: AbortSignal): Promise<void> {
    await this.#options.bucket.prepare(this.#options.experiment, signal)
    await this.#options.queue?.prepare(signal)
  }

  async run(session: AgentCoreSession, signal: AbortSignal): Promise<AgentResult> {
    const over = new AbortController()
    const untilOver = AbortSignal.any([signal, over.signal])
    const location = { key: this.#getObjectKey(session) }
    const announced = this.#options.queue?.waitForKey(session.id)
    try {
      // A result may exist before the call that started the agent returns.
      const written = this.#waitForResult(session, location, announced, untilOver)
      return await Promise.race([written, this.#start(session, location, untilOver)])
    } finally {
      over.abort()
      this.#options.queue?.forget(session.id)
    }
  }

  async checkOnce(session: AgentCoreSession): Promise<AgentResult | undefined> {
    return this.#fetchResult(session, this.#getObjectKey(session), AbortSignal.timeout(LAST_POLL_TIMEOUT_MS))
  }

  async close(): Promise<void> {
    await this.#options.queue?.close()
    await this.#options.bucket.close()
  }

  #getObjectKey({ id, inputId }: AgentCoreSession): string {
    return `${this.#options.experiment}/${inputId}/${id}.json`
  }

  /**
   * Starts the agent.
   * @returns the result of a program that has ended when it responds; never settles if the agent works in the background
   * @throws AgentCoreError if the start fails
   */
  async #start(
    session: AgentCoreSession,
    location: { key: string },
    signal: AbortSignal,
  ): Promise<AgentResult> {
    const start = { ...session.payload, ...this.#createConfig(session) }
    const response = await this.#options.endpoint.start(session, start, signal)
    if (isRecord(response) && typeof response.result_key === 'string') location.key = response.result_key
    else if (!isRecord(response) || response.status !== 'processing') {
      // The program has ended: a result that is not in S3 now will not appear later.
      const error = `its program wrote nothing to S3 and responded with ${quote(response)}; --results envelope accepts responses`
      return (
        (await this.#fetchResult(session, location.key, signal)) ?? { status: 'error', rewards: {}, error }
      )
    }
    return new Promise(() => {})
  }

  #createConfig({ id, inputId, model, samplingParams }: AgentCoreSession): object {
    const { experiment: exp_id, bucket, queue } = this.#options
    const where = { exp_id, input_id: inputId, s3_bucket: bucket.name }
    return {
      _config: model,
      _rollout: { ...where, ...model, sampling_params: samplingParams },
      // Apps that were written for queues read this field.
      ...(queue !== undefined && { _training: { ...where, session_id: id, sqs_url: queue.url } }),
    }
  }

  async #waitForResult(
    session: AgentCoreSession,
    location: { key: string },
    announced: Promise<string> | undefined,
    signal: AbortSignal,
  ): Promise<AgentResult> {
    let message = announced?.then((key) => {
      location.key = key
      message = undefined
    })
    let waitMs = announced === undefined ? FIRST_POLL_MS : POLL_WITH_QUEUE_MS
    for (;;) {
      const waiting = pause(waitMs, signal)
      await (message === undefined ? waiting : Promise.race([waiting, message]))
      const result = await this.#fetchResult(session, location.key, signal)
      if (result !== undefined) return result
      if (announced === undefined) waitMs = Math.min(MAX_POLL_MS, waitMs * POLL_GROWTH)
    }
  }

  async #fetchResult(
    { inputId }: AgentCoreSession,
    key: string,
    signal: AbortSignal,
  ): Promise<AgentResult | undefined> {
    const text = await this.#options.bucket.get(key, signal)
    return text === undefined ? undefined : parseResult(text, inputId)
  }
}
