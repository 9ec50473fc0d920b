/**
 * The state of a session in this process beyond its stored row: the cache of its requests, the requests in flight, the
 * clients that wait for its end, and the queue that serializes its changes.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { ProxyError } from '../../../base/errors.ts'
import { parseCaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionRecord } from '../../store/port/turn-store.ts'
import { type RequestBudget, SessionUsage } from './limits.ts'
import type { InFlightTurn } from './live-turn.ts'
import { SessionMemory } from './session-memory.ts'
import { readSamplingParams, type SessionConfig, TurnAllocation } from './turn-allocation.ts'

/** The measured size without the cache of requests. */
const LIVE_BYTES = 1_500

/** The cached part of a session's row. */
interface SessionState {
  readonly active: boolean
  readonly rules: SessionConfig
  nextIndex: number
  /** The indices below `nextIndex` whose turns could not be committed, while later requests are in flight. */
  readonly unrecorded: Set<number>
  readonly spending: SessionUsage
  /** The epoch under which this node owns the session; undefined: the database is not shared. */
  readonly epoch: number | undefined
  /** The same as {@link TurnAllocation.resumedAt}. */
  resumedAt: number | undefined
}

export class LiveSession {
  readonly sessionId: string
  /** undefined: not read from the store yet, or deleted from it. */
  #state: SessionState | undefined
  /** undefined: nothing is cached. */
  #memory: SessionMemory | undefined
  readonly #calls = new Set<TurnAllocation>()
  /** The latest request with each idempotency key that is about to begin. */
  readonly #beginning = new Map<string, Promise<void>>()
  readonly #waiters = new Set<PromiseWithResolvers<SessionRecord | undefined>>()
  #lastTask: Promise<unknown> = Promise.resolve()

  constructor(sessionId: string) {
    this.sessionId = sessionId
  }

  /** The cache of the session's requests. */
  get memory(): SessionMemory {
    this.#memory ??= new SessionMemory()
    return this.#memory
  }

  get isRemembered(): boolean {
    return this.#memory !== undefined
  }

  /** Discards the cache. Requests in flight keep the parts that they use. */
  forget(): void {
    this.#memory = undefined
  }

  get bytes(): number {
    return LIVE_BYTES + (this.#memory?.bytes ?? 0)
  }

  /** Releases memory that only requests in flight need. */
  rest(): void {
    this.#memory?.messages.letGoOfJson()
  }

  /** The turns in flight, in the order of their indices. */
  get turns(): InFlightTurn[] {
    return [...this.#calls].flatMap(({ turn }) => turn ?? [])
  }

  /** The requests in flight. */
  get calls(): Iterable<TurnAllocation> {
    return this.#calls
  }

  get isBusy(): boolean {
    return this.#calls.size > 0
  }

  /** Runs tasks one after another, in the order of the calls. */
  runInOrder<T>(task: () => Promise<T>): Promise<T> {
    const result = this.#lastTask.then(task)
    this.#lastTask = result.then(forget, forget)
    return result
  }

  get isKnown(): boolean {
    return this.#state !== undefined
  }

  /**
   * The epoch under which this node owns the session; undefined: ownership is unknown, or the database is not shared.
   */
  get epoch(): number | undefined {
    return this.#state?.epoch
  }

  get isActive(): boolean {
    return this.#state?.active ?? false
  }

  /** The session config. Only for a session that {@link isKnown}. */
  get rules(): SessionConfig {
    return this.#state!.rules
  }

  /**
   * Replaces the cached state by the stored one; undefined: the session does not exist, or must be read again.
   * @param more `spending` of the stored turns, if there are limits; `epoch` if several nodes share the database;
   *   `resumedAt` if the node that owned it before has crashed
   */
  learn(
    record: SessionRecord | undefined,
    more: { spending?: SessionUsage; epoch?: number | undefined; resumedAt?: number | undefined } = {},
  ): void {
    const { spending = new SessionUsage(), epoch, resumedAt } = more
    this.#state = record && {
      active: record.status === 'active',
      rules: toConfig(record),
      nextIndex: record.nextIndex,
      unrecorded: new Set(),
      spending,
      epoch,
      resumedAt,
    }
  }

  /** Marks the delivery of the latest responses as unknown, as after the crash of a node. */
  markDeliveryUnknown(): void {
    if (this.#state) this.#state.resumedAt = this.#state.nextIndex
  }

  /**
   * Returns the budget of a request that begins now. Only for a session that {@link isKnown}.
   * @throws ProxyError `limit_reached`
   */
  budgetAt(nowMs: number): RequestBudget {
    const { rules, spending } = this.#state!
    const running = [...this.#calls].filter(({ isSpent }) => !isSpent)
    const sampled = running.map(({ turn }) => turn?.completion.tokenIds.length ?? 0)
    return spending.begin(rules.limits, sampled, nowMs)
  }

  /** Begins a request. Only for a session that {@link isKnown}. */
  beginCall(budget: RequestBudget, onDone: () => void): TurnAllocation {
    const { sessionId, memory } = this
    const state = this.#state!
    const { rules, spending, epoch, resumedAt } = state
    const index = state.nextIndex++
    const place = { sessionId, index, rules, memory, budget, epoch, resumedAt }
    const call = new TurnAllocation(place, spending, {
      onDone: () => {
        this.#calls.delete(call)
        onDone()
      },
      onUnrecorded: () => giveBack(state, index),
    })
    this.#calls.add(call)
    return call
  }

  /**
   * Serializes attempts of one request: a later attempt waits until the earlier one is in flight.
   * @param name the idempotency key of the request
   * @returns a handle to dispose when this attempt is in flight
   */
  async inTurn(name: string): Promise<Disposable> {
    const before = this.#beginning.get(name)
    const { promise, resolve } = Promise.withResolvers<void>()
    this.#beginning.set(name, promise)
    await before
    return {
      [Symbol.dispose]: () => {
        if (this.#beginning.get(name) === promise) this.#beginning.delete(name)
        resolve()
      },
    }
  }

  /**
   * Cancels the requests in flight. Resolves when all of them are done, or after `settleMs`.
   * @param reasonOf is only called if there are any: an error with its stack is expensive
   */
  async cancelCalls(reasonOf: () => ProxyError, settleMs: number): Promise<void> {
    if (this.#calls.size === 0) return
    const reason = reasonOf()
    const calls = [...this.#calls]
    for (const call of calls) call.cancel(reason)
    const patience = new AbortController()
    const patienceOver = sleep(settleMs, undefined, { signal: patience.signal }).catch(() => undefined)
    await Promise.race([Promise.all(calls.map(({ over }) => over)), patienceOver])
    patience.abort()
  }

  /**
   * Waits for the end of the session.
   * @returns the ended session, undefined after `timeoutMs`
   * @throws the error that {@link failWaiters} receives, `signal.reason`
   */
  async untilEnded(timeoutMs: number, signal: AbortSignal): Promise<SessionRecord | undefined> {
    signal.throwIfAborted()
    const waiter = Promise.withResolvers<SessionRecord | undefined>()
    const onAbort = () => waiter.reject(signal.reason)
    const timer = setTimeout(waiter.resolve, timeoutMs, undefined)
    signal.addEventListener('abort', onAbort, { once: true })
    this.#waiters.add(waiter)
    try {
      return await waiter.promise
    } finally {
      clearTimeout(timer)
      signal.removeEventListener('abort', onAbort)
      this.#waiters.delete(waiter)
    }
  }

  tellWaiters(session: SessionRecord): void {
    for (const waiter of this.#waiters) waiter.resolve(session)
  }

  failWaiters(error: ProxyError): void {
    for (const waiter of this.#waiters) waiter.reject(error)
  }
}

function toConfig(session: SessionRecord): SessionConfig {
  const { trustAgent, policies, editedCalls, limits, keyTag } = session
  const samplingParams = readSamplingParams(session)
  const record = session.record && parseCaptureOptions(session.record)
  return { samplingParams, trustAgent, record, policies, editedCalls, limits, keyTag }
}

/** Frees an index. One below that of a later request is only reused if that request fails as well. */
function giveBack(state: SessionState, index: number): void {
  state.unrecorded.add(index)
  while (state.unrecorded.delete(state.nextIndex - 1)) state.nextIndex -= 1
}

/** Ignores the outcome of a task and its error for the next one. */
function forget(): void {}
