/** What a rollout asks of the proxy: its REST API, docs/http-api.md. */
import Type, { type Static, type TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { ERROR_CATALOGUE, type ErrorCode, ProxyError } from '../base/errors.ts'
import { parseJson } from '../base/json.ts'
import { backoffMs, pause } from './backoff.ts'
import type { HttpAnswer, HttpClient } from './http-client.ts'
import { nullable, rowDetailFields, shownDetails } from './row-details.ts'
import { sessionSegment } from './session-urls.ts'

const Status = Type.Enum(['active', 'completed', 'aborted'])

const Created = Type.Object({ session_id: Type.String(), agent_key: Type.Optional(Type.String()) })
const Session = Type.Object({ status: Status })
const Numbers = Type.Record(Type.String(), Type.Number())
/** Older proxies know no rewards of turns. */
const Rewarded = Type.Object({ reward_lines: Type.Optional(Numbers), reward_turns: Type.Optional(Numbers) })
const Ended = Type.Object({ status: Type.Union([Status, Type.Literal('not_found')]) })
const Row = Type.Object({
  prompt_ids: Type.Array(Type.Integer()),
  response_ids: Type.Array(Type.Integer()),
  response_mask: Type.Array(Type.Integer()),
  response_logprobs: Type.Array(Type.Number()),
  reward: Type.Optional(nullable(Type.Number())),
  num_turns: Type.Integer(),
  line: Type.String(),
  finish_reason: nullable(Type.String()),
  weight_version_min: nullable(Type.String()),
  weight_version_max: nullable(Type.String()),
  exact: Type.Boolean(),
  inexact_reason: nullable(Type.String()),
  finished: Type.Boolean(),
  truncated: Type.Boolean(),
  prompt_truncated: Type.Boolean(),
  turns: Type.Array(
    Type.Object({
      turn_id: Type.String(),
      start: Type.Integer(),
      end: Type.Integer(),
      reward: nullable(Type.Number()),
    }),
  ),
  /** The images whose tokens are in the row, in order, where they were asked for. */
  images: Type.Optional(Type.Array(Type.Object({ sha256: Type.String() }))),
  ...rowDetailFields,
})
const Trajectories = Type.Object({
  reward: nullable(Type.Number()),
  reward_components: Type.Record(Type.String(), Type.Number()),
  excluded_turns: Type.Record(Type.String(), Type.Integer()),
  trajectories: Type.Array(Row),
  images: Type.Optional(Type.Record(Type.String(), Type.String())),
})
const Refusal = Type.Object({ detail: Type.String(), code: Type.Optional(Type.String()) })

export type TrajectoryRow = Static<typeof Row>
export type SessionTrajectories = Static<typeof Trajectories>

export interface SessionRequest {
  session_id: string
  metadata: Record<string, unknown>
  sampling_params: Record<string, unknown>
  trust_agent?: boolean | undefined
  record?: readonly string[] | undefined
}

/** Which rows of a session, and how much of them. */
export interface RowChoice {
  select: 'all' | 'main' | 'longest' | 'last'
  promptLength?: number | undefined
  responseLength?: number | undefined
  /** Whether rows name their images, which are then given once each. */
  images?: boolean | undefined
  /** What the session was recorded with beyond ids and logprobs, which its rows then show. */
  record?: readonly string[] | undefined
}

export interface ProxyClientOptions {
  /** `http://proxy:8080` */
  proxyUrl: string
  adminKey?: string | undefined
  http: HttpClient
  /** As Math.random. */
  random?: () => number
}

/** How long one answer may take: a long session is a long answer. */
const ANSWER_TIMEOUT_MS = 120_000
/** How long the first answer of all may take. */
const REACH_TIMEOUT_MS = 10_000
/** Of one long poll; short enough for any idle limit on the way. */
const POLL_S = 30
/** A proxy that restarts is back within these: 16 s at most. */
const RETRIES = 6
const RETRY_BASE_MS = 250
const NEVER = new AbortController().signal
const NOT_THERE = [502, 503, 504]

/**
 * Every method throws ProxyError: the proxy's own refusal, or `proxy_failed`; after an abort `signal.reason`. Nothing
 * that it asks for does harm when it is asked for twice, so a connection that blinks, or a proxy that restarts, fails
 * no rollout.
 */
export class ProxyClient {
  readonly #options: ProxyClientOptions

  constructor(options: ProxyClientOptions) {
    this.#options = options
  }

  /**
   * Asks once whether anything answers, for a run that has not begun: a proxy that restarts is waited for, one that was
   * never started or is elsewhere is not. Whether it is of use, the first call for a session tells.
   * @throws ProxyError `proxy_failed`
   */
  async reach(): Promise<void> {
    const answer = await this.#send('GET', '/health', NEVER, undefined, REACH_TIMEOUT_MS)
    if (!(answer instanceof ProxyError)) return
    const { message, cause } = answer
    const hint = 'is llm-proxy serve running there?'
    throw new ProxyError('proxy_failed', `${message} (${getReason(cause)}): ${hint}`, { cause })
  }

  /** @returns the key under which the session's agent calls: its own, or on a proxy without keys the session's id */
  async createSession(session: SessionRequest, signal: AbortSignal): Promise<string> {
    const created = await this.#ask('POST', '/sessions', Created, signal, session)
    return created.agent_key ?? sessionSegment(created.session_id)
  }

  /** `not_found`: somebody has removed it. */
  async complete(sessionId: string, signal: AbortSignal): Promise<Static<typeof Status> | 'not_found'> {
    return (await this.#ask('POST', `${getSessionPath(sessionId)}/complete`, Ended, signal)).status
  }

  /** Its calls in flight are cancelled; from now on it takes none. */
  async abort(sessionId: string, signal: AbortSignal): Promise<void> {
    await this.#ask('POST', `${getSessionPath(sessionId)}/abort`, Ended, signal)
  }

  /** Rewards of lines and turns that somebody has set stay. */
  async setReward(
    sessionId: string,
    reward: { reward: number; components: Record<string, number> },
    signal: AbortSignal,
  ): Promise<void> {
    const path = getSessionPath(sessionId)
    const set = await this.#ask('GET', `${path}/wait?timeout_s=0`, Rewarded, signal)
    const { reward_lines: lines = {}, reward_turns: turns = {} } = set
    const kept = { lines: hasAny(lines) ? lines : undefined, turns: hasAny(turns) ? turns : undefined }
    await this.#ask('POST', `${path}/reward`, Session, signal, { ...reward, ...kept })
  }

  /** Resolves when somebody has completed or aborted the session. */
  async untilEnded(sessionId: string, signal: AbortSignal): Promise<'completed' | 'aborted'> {
    for (;;) {
      const path = `${getSessionPath(sessionId)}/wait?timeout_s=${POLL_S}`
      const { status } = await this.#ask('GET', path, Session, signal)
      if (status !== 'active') return status
    }
  }

  trajectories(sessionId: string, choice: RowChoice, signal: AbortSignal): Promise<SessionTrajectories> {
    const { select, promptLength, responseLength, images, record = [] } = choice
    const query = new URLSearchParams({ select, finished_only: 'true' })
    if (promptLength !== undefined) query.set('prompt_length', String(promptLength))
    if (responseLength !== undefined) query.set('response_length', String(responseLength))
    if (images) query.set('images', 'true')
    if (record.length > 0) query.set('details', shownDetails(record).join(','))
    return this.#ask('GET', `${getSessionPath(sessionId)}/trajectories?${query}`, Trajectories, signal)
  }

  async #ask<T extends TSchema>(
    method: 'GET' | 'POST',
    path: string,
    schema: T,
    signal: AbortSignal,
    body?: object,
  ): Promise<Static<T>> {
    for (let failures = 1; ; failures += 1) {
      const answer = await this.#send(method, path, signal, body)
      if (answer instanceof ProxyError || NOT_THERE.includes(answer.status)) {
        if (failures > RETRIES) throw answer instanceof ProxyError ? answer : this.#refusal(path, answer)
        await pause(backoffMs(RETRY_BASE_MS, failures, this.#options.random ?? Math.random), signal)
      } else {
        const value = parseJson(answer.text)
        if (answer.status < 300 && Value.Check(schema, value)) return value
        throw this.#refusal(path, answer)
      }
    }
  }

  /** @returns the answer of whatever status, or why there is none */
  async #send(
    method: 'GET' | 'POST',
    path: string,
    signal: AbortSignal,
    body: object | undefined,
    timeoutMs = ANSWER_TIMEOUT_MS,
  ): Promise<HttpAnswer | ProxyError> {
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
      return new ProxyError('proxy_failed', `no proxy answers at ${proxyUrl}`, { cause: error })
    }
  }

  /** The proxy's own error as it was, so that what to do about it is said once. */
  #refusal(path: string, { status, text }: HttpAnswer): ProxyError {
    const { proxyUrl } = this.#options
    const value = parseJson(text)
    if (!Value.Check(Refusal, value)) {
      const message = `${proxyUrl}${path} does not answer as this version of llm-proxy does (${status})`
      return new ProxyError('proxy_failed', message)
    }
    const { code = '', detail } = value
    return new ProxyError(isErrorCode(code) ? code : 'proxy_failed', detail, { status })
  }
}

/** A name with several addresses, none of which answers, fails with an error that has a code and no words. */
function getReason(cause: unknown): string {
  const { message, code } = cause as { message?: string; code?: string }
  return message || code || String(cause)
}

function getSessionPath(sessionId: string): string {
  return `/sessions/${sessionSegment(sessionId)}`
}

function isErrorCode(code: string): code is ErrorCode {
  return Object.hasOwn(ERROR_CATALOGUE, code)
}

function hasAny(numbers: Readonly<Record<string, number>>): boolean {
  return Object.keys(numbers).length > 0
}
