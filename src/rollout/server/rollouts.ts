/**
 * The rollouts of a server: queued and running ones, and the results of the latest ones. A rollout that is requested
 * several times runs once.
 */
import { randomUUID } from 'node:crypto'
import { isDeepStrictEqual } from 'node:util'
import { ProxyError, toProxyError } from '../../base/errors.ts'
import type { RolloutResult } from '../agent-loop-output.ts'
import { SessionGate } from '../runners/agentcore/session-gate.ts'
import { getInstanceId } from '../trial-id.ts'
import type { RolloutRequest } from './request.ts'

export type RolloutState = 'waiting' | 'running' | 'done' | 'failed' | 'cancelled'

/** A rollout in the list of rollouts. */
export interface RolloutSummary {
  rollout_id: string
  status: RolloutState
  /** Epoch seconds. */
  created_at: number
  ended_at: number | null
  /** The id of its sample, if it has one. */
  instance_id: string | null
  /** The session of the last attempt; null until the rollout has ended. */
  session_id: string | null
  reward: number | null
  tries: number | null
  /** The reason why there is nothing to train on, or why the agent did not complete. */
  error: string | null
}

export interface RolloutsOptions {
  run(request: RolloutRequest, signal: AbortSignal): Promise<RolloutResult>
  /** The number of concurrent rollouts; others wait in order of arrival. */
  concurrency: number
  /** How long a rollout continues without callers before its agent is stopped. */
  graceMs: number
  /** Called with the id of a rollout when it is removed from memory. */
  onRemoved?: ((rolloutId: string) => void) | undefined
}

/**
 * The limits of stored results, which are kept because a client requests a result again if its connection failed before
 * the client had read it completely.
 */
const MAX_STORED_CHARS = 256 * 1024 * 1024
const MAX_ROLLOUTS = 10_000

interface RolloutEntry {
  readonly request: RolloutRequest & { rollout_id: string }
  readonly createdAt: number
  readonly cancellation: AbortController
  /** The response as JSON. The promise never rejects. */
  readonly response: Promise<string>
  status: RolloutState
  endedAt: number | null
  callers: number
  graceTimer: NodeJS.Timeout | undefined
  /** The size of the stored response and request, in characters of JSON. */
  chars: number
  outcome: Pick<RolloutSummary, 'session_id' | 'reward' | 'tries' | 'error'>
}

/** The response to a rollout request, without the rollout's id and status. */
type RolloutResponse =
  | (RolloutResult & { error: null })
  | { rows: []; error: { code: string; detail: string } }

const NO_OUTCOME = { session_id: null, reward: null, tries: null, error: null }

export class Rollouts {
  readonly #options: RolloutsOptions
  readonly #gate: SessionGate
  /** The rollouts by id, in the order of their first requests. */
  readonly #entries = new Map<string, RolloutEntry>()
  /** The rollouts that have not ended, including cancelled ones that a new rollout of the same id has replaced. */
  readonly #unfinished = new Set<RolloutEntry>()
  #storedChars = 0
  #isClosing = false
  /** The number of ended rollouts by outcome. */
  readonly ended = { done: 0, failed: 0, cancelled: 0 }
  /** The total duration of ended rollouts, without their time in the queue. */
  seconds = 0
  /** The number of attempts of the rollouts that returned a result. */
  tries = 0

  constructor(options: RolloutsOptions) {
    this.#options = options
    this.#gate = new SessionGate(options.concurrency)
  }

  get running(): number {
    return this.#gate.inside
  }

  get waiting(): number {
    return this.#gate.waiting
  }

  /**
   * Starts a rollout, or joins the one with this id. A rollout that is being cancelled is replaced by a new one.
   * @param signal aborts when the caller has disconnected
   * @returns its id, and its response as JSON
   * @throws ProxyError `invalid_request` when the rollout with this id has other parameters, `shutting_down`
   */
  requestRollout(
    request: RolloutRequest,
    signal: AbortSignal,
  ): { rolloutId: string; response: Promise<string> } {
    const { rollout_id = randomUUID() } = request
    const fullRequest = { ...request, rollout_id }
    const entry = this.#findLive(rollout_id) ?? this.#begin(fullRequest)
    if (!isDeepStrictEqual(entry.request, fullRequest)) {
      const message = `rollout ${rollout_id} belongs to another sample, or has other parameters`
      throw new ProxyError('invalid_request', message, { param: 'rollout_id', status: 409 })
    }
    this.#addCaller(entry, signal)
    return { rolloutId: rollout_id, response: entry.response }
  }

  /** Returns the rollouts, the newest first. */
  list(): RolloutSummary[] {
    return [...this.#entries.values()].toReversed().map(toSummary)
  }

  /** Returns a rollout. @throws ProxyError `rollout_not_found` */
  get(rolloutId: string): RolloutSummary {
    return toSummary(this.#entry(rolloutId))
  }

  /**
   * Stops a rollout's agent and removes the rollout.
   * @returns the removed rollout, once the agent has stopped
   * @throws ProxyError `rollout_not_found`
   */
  async remove(rolloutId: string): Promise<RolloutSummary> {
    const entry = this.#entry(rolloutId)
    entry.cancellation.abort(createCancelledError('it was removed'))
    await entry.response
    this.#removeEntry(entry)
    return toSummary(entry)
  }

  /**
   * Rejects new rollouts, and cancels those that have not ended after `graceMs`.
   * @returns whether none was cancelled
   */
  async stop(graceMs: number): Promise<boolean> {
    this.#isClosing = true
    const entries = [...this.#unfinished]
    const reason = new ProxyError('shutting_down', 'the rollout server is being stopped')
    const limit = setTimeout(() => {
      for (const { cancellation } of entries) cancellation.abort(reason)
    }, graceMs)
    await Promise.all(entries.map(({ response }) => response))
    clearTimeout(limit)
    return entries.every(({ cancellation }) => !cancellation.signal.aborted)
  }

  #entry(rolloutId: string): RolloutEntry {
    const entry = this.#entries.get(rolloutId)
    if (entry === undefined) throw new ProxyError('rollout_not_found', `There is no rollout ${rolloutId}`)
    return entry
  }

  /** Returns the rollout with this id, unless it was cancelled: its agent may take a minute to stop. */
  #findLive(rolloutId: string): RolloutEntry | undefined {
    const entry = this.#entries.get(rolloutId)
    return entry?.cancellation.signal.aborted ? undefined : entry
  }

  #begin(request: RolloutEntry['request']): RolloutEntry {
    if (this.#isClosing) throw new ProxyError('shutting_down', 'the rollout server is being stopped')
    const cancellation = new AbortController()
    const { promise, resolve } = Promise.withResolvers<string>()
    const entry: RolloutEntry = {
      ...{ request, cancellation, response: promise, createdAt: Date.now() / 1000 },
      ...{
        status: 'waiting',
        endedAt: null,
        callers: 0,
        graceTimer: undefined,
        chars: 0,
        outcome: NO_OUTCOME,
      },
    }
    // The new rollout is listed as the newest one, in place of a cancelled one.
    this.#entries.delete(request.rollout_id)
    this.#entries.set(request.rollout_id, entry)
    this.#unfinished.add(entry)
    void this.#run(entry).then(resolve)
    return entry
  }

  /** Runs a rollout. Never rejects: an error is the response. */
  async #run(entry: RolloutEntry): Promise<string> {
    const response = this.#serialize(entry, await this.#toResponse(entry))
    clearTimeout(entry.graceTimer)
    entry.endedAt = Date.now() / 1000
    this.#unfinished.delete(entry)
    this.ended[entry.status as keyof typeof this.ended] += 1
    // A failed or cancelled rollout is started again when it is requested again.
    if (entry.status === 'done') this.#storeResult(entry, response.chars)
    else this.#removeEntry(entry)
    return response.text
  }

  /**
   * Sets the final status, and serializes the response.
   * @returns the response, and the size of response and request in characters of JSON
   */
  #serialize(entry: RolloutEntry, response: RolloutResponse): { text: string; chars: number } {
    const { request, cancellation } = entry
    const toText = (final: RolloutResponse) => {
      entry.status = cancellation.signal.aborted ? 'cancelled' : final.error === null ? 'done' : 'failed'
      return JSON.stringify({ rollout_id: request.rollout_id, status: entry.status, ...final })
    }
    try {
      const text = toText(response)
      return { text, chars: text.length + JSON.stringify(request).length }
    } catch (cause) {
      // The result may exceed the maximum length of a string, or be nested too deeply for the stack.
      const message = `The result of the rollout cannot be serialized: ${(cause as Error).message}`
      return { text: toText(toFailure(new ProxyError('internal', message, { cause }))), chars: 0 }
    }
  }

  async #toResponse(entry: RolloutEntry): Promise<RolloutResponse> {
    const { request, cancellation } = entry
    try {
      const leave = await this.#gate.enter(cancellation.signal)
      const beganAtMs = Date.now()
      try {
        entry.status = 'running'
        const result = await this.#options.run(request, cancellation.signal)
        const [{ metrics, extra_fields: facts }] = result.rows
        const { tries } = metrics
        this.tries += tries
        entry.outcome = { session_id: facts.session_id, reward: result.reward, tries, error: facts.error }
        return { ...result, error: null }
      } finally {
        this.seconds += (Date.now() - beganAtMs) / 1000
        leave()
      }
    } catch (thrown) {
      return toFailure(thrown)
    }
  }

  #addCaller(entry: RolloutEntry, signal: AbortSignal): void {
    clearTimeout(entry.graceTimer)
    entry.callers += 1
    const leave = () => {
      entry.callers -= 1
      if (entry.callers > 0 || entry.endedAt !== null) return
      const end = () => entry.cancellation.abort(createCancelledError('its client disconnected'))
      entry.graceTimer = setTimeout(end, this.#options.graceMs)
    }
    if (signal.aborted) leave()
    else signal.addEventListener('abort', leave, { once: true })
  }

  #storeResult(entry: RolloutEntry, chars: number): void {
    entry.chars = chars
    this.#storedChars += chars
    for (const stored of this.#entries.values()) {
      if (this.#storedChars <= MAX_STORED_CHARS && this.#entries.size <= MAX_ROLLOUTS) return
      if (stored.endedAt !== null) this.#removeEntry(stored)
    }
  }

  /** Removes a rollout. Its id stays if a new rollout has it. */
  #removeEntry(entry: RolloutEntry): void {
    this.#storedChars -= entry.chars
    entry.chars = 0
    const { rollout_id } = entry.request
    if (this.#entries.get(rollout_id) !== entry) return
    this.#entries.delete(rollout_id)
    this.#options.onRemoved?.(rollout_id)
  }
}

function createCancelledError(reason: string): ProxyError {
  return new ProxyError('rollout_cancelled', `The rollout was cancelled: ${reason}`)
}

function toFailure(thrown: unknown): RolloutResponse {
  const { code, message } = toProxyError(thrown)
  return { rows: [], error: { code, detail: message } }
}

function toSummary({ request, status, createdAt, endedAt, outcome }: RolloutEntry): RolloutSummary {
  const { rollout_id, sample } = request
  const times = { created_at: createdAt, ended_at: endedAt }
  return { rollout_id, status, ...times, instance_id: getInstanceId(sample) ?? null, ...outcome }
}
