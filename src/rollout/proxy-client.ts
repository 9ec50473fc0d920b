/** The client of the proxy's REST API that rollouts use: docs/http-api.md. */
import Type, { type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { ERROR_CATALOGUE, type ErrorCode, ProxyError } from '../base/errors.ts'
import { parseJson } from '../base/json.ts'
import { toShownUrl } from '../base/shown-url.ts'
import { ownRowFields, rowExtraFields } from '../protocol/schema/agent-loop-output.ts'
import { nullable, pickFields, toProperties, toReader } from '../protocol/schema/field.ts'
import { readFormerNames } from '../protocol/schema/former-names.ts'
import { rowFields, rowTurnFields } from '../protocol/schema/row.ts'
import { capturedFields } from '../protocol/schema/row-details.ts'
import { computeBackoffMs, pause } from './backoff.ts'
import type { HttpClient, HttpResponse } from './http-client.ts'
import { toDetailNames } from './row-details.ts'
import { toSessionSegment } from './session-urls.ts'

const Status = Type.Enum(['active', 'completed', 'aborted'])

const CreateResponse = Type.Object({ session_id: Type.String(), agent_key: Type.Optional(Type.String()) })
const Session = Type.Object({ status: Status })
const Numbers = Type.Record(Type.String(), Type.Number())
/** The rewards of agent roles and turns. Older proxies do not return rewards of turns. */
const RewardsResponse = Type.Object({
  reward_agent_roles: Type.Optional(Numbers),
  reward_turns: Type.Optional(Numbers),
})
const EndResponse = Type.Object({ status: Type.Union([Status, Type.Literal('not_found')]) })
const Row = Type.Object({
  ...toReader({ ...ownRowFields, ...rowExtraFields, ...pickFields(rowFields, ['exact', 'inexact_reason']) })
    .properties,
  reward: Type.Optional(nullable(Type.Number())),
  turns: Type.Array(toReader(pickFields(rowTurnFields, ['turn_id', 'start', 'end', 'reward']))),
  /** The images whose tokens are in the row, in order; absent unless requested. */
  images: Type.Optional(Type.Array(Type.Object({ sha256: Type.String() }))),
  ...toProperties(capturedFields),
})
const Trajectories = Type.Object({
  reward: nullable(Type.Number()),
  reward_components: Type.Record(Type.String(), Type.Number()),
  excluded_turns: Type.Record(Type.String(), Type.Integer()),
  trajectories: Type.Array(Row),
  images: Type.Optional(Type.Record(Type.String(), Type.String())),
})
const ErrorBody = Type.Object({ detail: Type.String(), code: Type.Optional(Type.String()) })

export type TrajectoryRow = Static<typeof Row>
export type SessionTrajectories = Static<typeof Trajectories>

export interface SessionRequest {
  session_id: string
  metadata: Record<string, unknown>
  sampling_params: Record<string, unknown>
  trust_agent?: boolean | undefined
  continue_responses?: boolean | undefined
  record?: readonly string[] | undefined
}

/** The selection of rows of a session, and their limits. */
export interface RowChoice {
  select: 'all' | 'main' | 'longest' | 'last'
  promptLength?: number | undefined
  responseLength?: number | undefined
  /** Whether tokens of older weights than the newest of their row are masked. */
  maskStaleTokens?: boolean | undefined
  /** Whether rows reference their images; the response then contains each image once. */
  images?: boolean | undefined
  /** The token data that the session captures beyond ids and logprobs; its rows include it. */
  record?: readonly string[] | undefined
}

export interface ProxyClientOptions {
  /** `http://proxy:8080` */
  proxyUrl: string
  adminKey?: string | undefined
  http: HttpClient
  /** Returns a random number from 0 to 1; default: `Math.random`. */
  random?: () => number
}

/** The time limit of one response: a long session has a long response. */
const RESPONSE_TIMEOUT_MS = 120_000
/** The time limit of the check that the proxy responds. */
const REACH_TIMEOUT_MS = 10_000
/** The duration of one long poll, shorter than the idle timeouts of intermediaries. */
const POLL_S = 30
/** The number of retries of a request. Their waits add up to 16 s at most, enough for a proxy to restart. */
const RETRIES = 6
const RETRY_BASE_MS = 250
const NEVER_ABORTED = new AbortController().signal
const UNAVAILABLE = [502, 503, 504]

/**
 * The client of the proxy's REST API. Every method throws a ProxyError: the one that the proxy returned, or
 * `proxy_failed`; after an abort it throws `signal.reason`. All requests are idempotent and are retried, so that an
 * interrupted connection or a restart of the proxy does not fail a rollout.
 */
export class ProxyClient {
  readonly #options: ProxyClientOptions

  constructor(options: ProxyClientOptions) {
    this.#options = options
  }

  /**
   * Checks once that a proxy responds, before a run begins: a wrong URL or a proxy that was not started must fail
   * immediately, without the retries that cover a restart. It does not check the admin key.
   * @throws ProxyError `proxy_failed`
   */
  async reach(): Promise<void> {
    const response = await this.#send('GET', '/health', NEVER_ABORTED, undefined, REACH_TIMEOUT_MS)
    if (!(response instanceof ProxyError)) return
    const { message, cause } = response
    const hint = 'is llm-proxy serve running there?'
    throw new ProxyError('proxy_failed', `${message} (${getReason(cause)}): ${hint}`, { cause })
  }

  /** Creates a session. @returns the key for the session's agent; on a proxy without keys the session's id */
  async createSession(session: SessionRequest, signal: AbortSignal): Promise<string> {
    const created = await this.#sendRequest('POST', '/sessions', CreateResponse, signal, session)
    return created.agent_key ?? toSessionSegment(created.session_id)
  }

  /** Completes a session. @returns `not_found` if it has been removed */
  async complete(sessionId: string, signal: AbortSignal): Promise<Static<typeof Status> | 'not_found'> {
    return (await this.#sendRequest('POST', `${getSessionPath(sessionId)}/complete`, EndResponse, signal))
      .status
  }

  /** Aborts a session. The proxy cancels its requests in flight and accepts no more. */
  async abort(sessionId: string, signal: AbortSignal): Promise<void> {
    await this.#sendRequest('POST', `${getSessionPath(sessionId)}/abort`, EndResponse, signal)
  }

  /** Sets the reward of a session. Existing rewards of agent roles and turns are preserved. */
  async setReward(
    sessionId: string,
    reward: { reward: number; components: Record<string, number> },
    signal: AbortSignal,
  ): Promise<void> {
    const path = getSessionPath(sessionId)
    const set = await this.#sendRequest('GET', `${path}/wait?timeout_s=0`, RewardsResponse, signal)
    const { reward_agent_roles: lines = {}, reward_turns: turns = {} } = set
    // Until 0.3.0 the former name is sent: proxies of 0.1.0 reject `agent_roles`.
    const kept = { lines: hasAny(lines) ? lines : undefined, turns: hasAny(turns) ? turns : undefined }
    await this.#sendRequest('POST', `${path}/reward`, Session, signal, { ...reward, ...kept })
  }

  /** Resolves when the session has been completed or aborted. */
  async waitForEnd(sessionId: string, signal: AbortSignal): Promise<'completed' | 'aborted'> {
    for (;;) {
      const path = `${getSessionPath(sessionId)}/wait?timeout_s=${POLL_S}`
      const { status } = await this.#sendRequest('GET', path, Session, signal)
      if (status !== 'active') return status
    }
  }

  getTrajectories(sessionId: string, choice: RowChoice, signal: AbortSignal): Promise<SessionTrajectories> {
    const { select, promptLength, responseLength, maskStaleTokens, images, record = [] } = choice
    const query = new URLSearchParams({ select, finished_only: 'true' })
    if (promptLength !== undefined) query.set('prompt_length', String(promptLength))
    if (responseLength !== undefined) query.set('response_length', String(responseLength))
    if (maskStaleTokens) query.set('mask_stale_tokens', 'true')
    if (images) query.set('images', 'true')
    if (record.length > 0) query.set('details', toDetailNames(record).join(','))
    return this.#sendRequest(
      'GET',
      `${getSessionPath(sessionId)}/trajectories?${query}`,
      Trajectories,
      signal,
    )
  }

  async #sendRequest<T extends TSchema>(
    method: 'GET' | 'POST',
    path: string,
    schema: T,
    signal: AbortSignal,
    body?: object,
  ): Promise<Static<T>> {
    for (let failures = 1; ; failures += 1) {
      const response = await this.#send(method, path, signal, body)
      if (response instanceof ProxyError || UNAVAILABLE.includes(response.status)) {
        if (failures > RETRIES)
          throw response instanceof ProxyError ? response : this.#createRejection(path, response)
        await pause(computeBackoffMs(RETRY_BASE_MS, failures, this.#options.random ?? Math.random), signal)
      } else {
        const value = parseJson(response.text)
        readFormerNames(schema, value)
        if (response.status < 300 && Value.Check(schema, value)) return value
        throw this.#createRejection(path, response)
      }
    }
  }

  /** Sends a request once. @returns the response of any status, or the error if there is none */
  async #send(
    method: 'GET' | 'POST',
    path: string,
    signal: AbortSignal,
    body: object | undefined,
    timeoutMs = RESPONSE_TIMEOUT_MS,
  ): Promise<HttpResponse | ProxyError> {
    const { proxyUrl, adminKey, http } = this.#options
    try {
      return await http.send({
        method,
        url: proxyUrl + path,
        headers: adminKey === undefined ? {} : { authorization: `Bearer ${adminKey}` },
        body: body && JSON.stringify(body),
        signal: AbortSignal.any([signal, AbortSignal.timeout(timeoutMs)]),
      })
    } catch (error) {
      signal.throwIfAborted()
      return new ProxyError('proxy_failed', `no proxy answers at ${toShownUrl(proxyUrl)}`, { cause: error })
    }
  }

  /** Converts an error response to a ProxyError, with the code and the message of the proxy if it has them. */
  #createRejection(path: string, { status, text }: HttpResponse): ProxyError {
    const { proxyUrl } = this.#options
    const value = parseJson(text)
    if (!Value.Check(ErrorBody, value)) {
      const message = `${toShownUrl(proxyUrl)}${path} does not respond as this version of llm-proxy does (${status})`
      return new ProxyError('proxy_failed', message)
    }
    const { code = '', detail } = value
    return new ProxyError(isErrorCode(code) ? code : 'proxy_failed', detail, { status })
  }
}

/**
 * Returns the reason why a connection failed. If a name has several addresses and none of them responds, Node.js
 * reports only a code.
 */
function getReason(cause: unknown): string {
  const { message, code } = cause as { message?: string; code?: string }
  return message || code || String(cause)
}

function getSessionPath(sessionId: string): string {
  return `/sessions/${toSessionSegment(sessionId)}`
}

function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERROR_CATALOGUE, code)
}

function hasAny(numbers: Readonly<Record<string, number>>): boolean {
  return Object.keys(numbers).length > 0
}
