/**
 * The client of AgentCore's data plane, with its two operations: invoke and stop a session. API calls respect the rate
 * limit of the endpoint, and are retried if that is safe.
 */
import { addAbortSignal, type Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import type { BedrockAgentCoreClient } from '@aws-sdk/client-bedrock-agentcore'
import { ProxyError } from '../../../base/errors.ts'
import { parseJson } from '../../../base/json.ts'
import { importOptionalPackage } from '../../../base/optional-package.ts'
import { raceAbort } from '../../../base/race-abort.ts'
import { computeBackoffMs, pause } from '../../backoff.ts'
import { AgentCoreError, type AgentCoreErrorKind, toAgentCoreError } from './errors.ts'
import { getRateLimiter, type LimiterClock, type RateLimiter } from './rate-limiter.ts'
import type { AgentCoreSession } from './result-source.ts'

export interface EndpointOptions {
  /** `arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/name-id` */
  arn: string
  /** The name of the runtime's endpoint. */
  qualifier: string
  /** The rate limit in API calls per second. */
  tps: number
  /**
   * The maximum number of concurrent API calls: an agent that does not work in the background keeps one open until its
   * end.
   */
  maxCalls: number
  retryBaseMs: number
  /** Returns a random number from 0 to 1, as `Math.random` does. */
  random: () => number
  clock?: LimiterClock | undefined
  onThrottled(): void
}

/** The maximum number of attempts of an API call; the limiter slows down meanwhile. */
const MAX_ATTEMPTS = 8
/** How long to wait for a cancelled start: a cold one takes seconds. */
const START_TIMEOUT_MS = 60_000
const MAX_PAYLOAD_BYTES = 100_000_000
/** The kinds of errors after which nothing was started and a retry may succeed. */
const RETRYABLE: readonly AgentCoreErrorKind[] = ['throttled', 'quota', 'conflict']
const ARN = /^arn:[\w-]+:bedrock-agentcore:([\w-]+):\d*:runtime\/.+$/

type Sdk = typeof import('@aws-sdk/client-bedrock-agentcore')

export class AgentCoreEndpoint {
  readonly region: string
  readonly #options: EndpointOptions
  readonly #limiter: RateLimiter
  /** Pending starts by session id. */
  readonly #starting = new Map<string, Promise<unknown>>()
  readonly #closing = new AbortController()
  #opened: Promise<{ sdk: Sdk; client: BedrockAgentCoreClient }> | undefined

  /** @throws ProxyError `config_invalid` if the ARN is not that of a runtime */
  constructor(options: EndpointOptions) {
    const region = ARN.exec(options.arn)?.[1]
    if (region === undefined) {
      const example = 'arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/my_agent-abc'
      throw new ProxyError(
        'config_invalid',
        `"${options.arn}" is not the ARN of an AgentCore runtime, such as ${example}`,
      )
    }
    this.region = region
    this.#options = options
    this.#limiter = getRateLimiter(options.arn, options.tps, options.clock)
  }

  /** Loads the SDK and the credentials. @throws ProxyError `config_invalid` when there are no credentials */
  async prepare(): Promise<void> {
    const { client } = await this.#open()
    try {
      await client.config.credentials()
    } catch (cause) {
      throw new ProxyError('config_invalid', 'there are no AWS credentials', { cause })
    }
  }

  /**
   * Starts a session. Afterwards its `mayExist` is false only if it was certainly not created.
   * @returns the parsed response of the agent's program; undefined when it is not JSON
   * @throws AgentCoreError; `signal.reason`
   */
  async start(session: AgentCoreSession, payload: object, signal: AbortSignal): Promise<unknown> {
    const body = encode(payload)
    // A lost call is not retried: the agent may be running, and a second one would be recorded in its session.
    const starting = this.#retry(RETRYABLE, signal, async () => {
      await this.#limiter.acquire('start', signal)
      session.mayExist = true
      return this.#invokeDetached(session.id, body, signal)
    })
    return starting.catch((error: unknown) => {
      if (error instanceof AgentCoreError && error.isBeforeStart) session.mayExist = false
      throw error
    })
  }

  /**
   * Sends a poll to a session. Polls are idempotent, so they are also retried if it is unknown whether the call
   * arrived.
   */
  async pollSession(sessionId: string, payload: object, signal: AbortSignal): Promise<unknown> {
    const body = encode(payload)
    return this.#retry([...RETRYABLE, 'lost'], signal, async () => {
      await this.#limiter.acquire('poll', signal)
      return this.#invoke(sessionId, body, signal)
    })
  }

  /** Stops a session, if it exists, in one attempt. @throws AgentCoreError; `signal.reason` */
  async stop(sessionId: string, signal: AbortSignal): Promise<void> {
    const starting = this.#starting.get(sessionId)
    if ((await this.#stop(sessionId, signal)) === 'stopped' || starting === undefined) return
    // The session did not exist, but a start that was cancelled in flight may still create it.
    await raceAbort(starting, AbortSignal.any([signal, AbortSignal.timeout(START_TIMEOUT_MS)])).catch(
      () => {},
    )
    await this.#stop(sessionId, signal)
  }

  async #stop(sessionId: string, signal: AbortSignal): Promise<'stopped' | 'gone'> {
    const { sdk, client } = await this.#open()
    await this.#limiter.acquire('stop', signal)
    const command = new sdk.StopRuntimeSessionCommand(this.#at(sessionId))
    try {
      await this.#send(() => client.send(command, { abortSignal: signal }), signal)
      return 'stopped'
    } catch (error) {
      if (error instanceof AgentCoreError && error.kind === 'gone') return 'gone'
      throw error
    }
  }

  async close(): Promise<void> {
    this.#closing.abort()
    const opened = await this.#opened?.catch(() => undefined)
    opened?.client.destroy()
  }

  /**
   * Starts a session. An abort ends the wait, and the call continues in the background, because only its outcome shows
   * whether the session was created.
   */
  async #invokeDetached(sessionId: string, payload: Uint8Array, signal: AbortSignal): Promise<unknown> {
    const response = this.#invoke(sessionId, payload, this.#closing.signal)
    this.#starting.set(sessionId, response)
    const forget = () => this.#starting.delete(sessionId)
    response.then(forget, forget)
    return raceAbort(response, signal)
  }

  async #invoke(sessionId: string, payload: Uint8Array, signal: AbortSignal): Promise<unknown> {
    const { sdk, client } = await this.#open()
    const command = new sdk.InvokeAgentRuntimeCommand({
      ...this.#at(sessionId),
      contentType: 'application/json',
      accept: 'application/json',
      payload,
    })
    return this.#send(async () => {
      const { response, statusCode = 200 } = await client.send(command, { abortSignal: signal })
      const reply = response === undefined ? '' : await text(addAbortSignal(signal, response as Readable))
      if (statusCode >= 300) throw new AgentCoreError('agent', `status ${statusCode}: ${reply}`)
      return parseJson(reply)
    }, signal)
  }

  #at(runtimeSessionId: string) {
    const { arn: agentRuntimeArn, qualifier } = this.#options
    return { agentRuntimeArn, qualifier, runtimeSessionId }
  }

  async #send<T>(call: () => Promise<T>, signal: AbortSignal): Promise<T> {
    try {
      return await call()
    } catch (error) {
      signal.throwIfAborted()
      const apiError = toAgentCoreError(error)
      if (apiError.kind === 'throttled') {
        this.#limiter.reportThrottled()
        this.#options.onThrottled()
      }
      throw apiError
    }
  }

  async #retry<T>(
    again: readonly AgentCoreErrorKind[],
    signal: AbortSignal,
    call: () => Promise<T>,
  ): Promise<T> {
    const { retryBaseMs, random } = this.#options
    for (let failures = 1; ; failures += 1) {
      try {
        return await call()
      } catch (error) {
        if (!(error instanceof AgentCoreError) || !again.includes(error.kind) || failures === MAX_ATTEMPTS)
          throw error
        await pause(computeBackoffMs(retryBaseMs, failures, random), signal)
      }
    }
  }

  /** Loads the SDK on first use. */
  #open(): Promise<{ sdk: Sdk; client: BedrockAgentCoreClient }> {
    this.#opened ??= importOptionalPackage(
      '@aws-sdk/client-bedrock-agentcore',
      'AgentCore',
      () => import('@aws-sdk/client-bedrock-agentcore'),
    ).then((sdk) => {
      const sockets = { maxSockets: this.#options.maxCalls }
      const client = new sdk.BedrockAgentCoreClient({
        region: this.region,
        // Every attempt must pass the limiter, which the SDK's own retries would not.
        maxAttempts: 1,
        requestHandler: { httpAgent: sockets, httpsAgent: sockets },
      })
      return { sdk, client }
    })
    return this.#opened
  }
}

function encode(payload: object): Uint8Array {
  const body = Buffer.from(JSON.stringify(payload))
  if (body.byteLength <= MAX_PAYLOAD_BYTES) return body
  throw new AgentCoreError(
    'refused',
    `the row has ${body.byteLength} bytes; AgentCore accepts at most ${MAX_PAYLOAD_BYTES}`,
  )
}
