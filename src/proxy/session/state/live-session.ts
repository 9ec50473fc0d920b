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
  readonly config: SessionConfig
  nextIndex: number
  /** The indices below `nextIndex` whose turns could not be committed, while later requests are in flight. */
  readonly unrecorded: Set<number>
  readonly usage: SessionUsage
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
  readonly #allocations = new Set<TurnAllocation>()
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

  get hasMemory(): boolean {
    return this.#memory !== undefined
  }

  /** Discards the cache. Requests in flight keep the parts that they use. */
  discardMemory(): void {
    this.#memory = undefined
  }

  get bytes(): number {
    return LIVE_BYTES + (this.#memory?.bytes ?? 0)
  }

  /** Releases memory that only requests in flight need. */
  releaseRequestMemory(): void {
    this.#memory?.messages.releaseJson()
  }

  /** The turns in flight, in the order of their indices. */
  get turns(): InFlightTurn[] {
    return [...this.#allocations].flatMap(({ turn }) => turn ?? [])
  }

  /** The requests in flight. */
  get allocations(): Iterable<TurnAllocation> {
    return this.#allocations
  }

  get isBusy(): boolean {
    return this.#allocations.size > 0
  }

  /** Runs tasks one after another, in the order of the calls. */
  runInOrder<T>(task: () => Promise<T>): Promise<T> {
    const result = this.#lastTask.then(task)
    this.#lastTask = result.then(ignore, ignore)
    return result
  }

  get isLoaded(): boolean {
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

  /** The session config. Only for a session that {@link isLoaded}. */
  get config(): SessionConfig {
    return this.#state!.config
  }

  /**
   * Replaces the cached state by the stored one; undefined: the session does not exist, or must be read again.
   * @param more `usage` of the stored turns, if there are limits; `epoch` if several nodes share the database;
   *   `resumedAt` if the node that owned it before has crashed
   */
  replaceState(
    record: SessionRecord | undefined,
    more: { usage?: SessionUsage; epoch?: number | undefined; resumedAt?: number | undefined } = {},
  ): void {
    const { usage = new SessionUsage(), epoch, resumedAt } = more
    this.#state = record && {
      active: record.status === 'active',
      config: toConfig(record),
      nextIndex: record.nextIndex,
      unrecorded: new Set(),
      usage,
      epoch,
      resumedAt,
    }
  }

  /** Marks the delivery of the latest responses as unknown, as after the crash of a node. */
  markDeliveryUnknown(): void {
    if (this.#state) this.#state.resumedAt = this.#state.nextIndex
  }

  /**
   * Returns the budget of a request that begins now. Only for a session that {@link isLoaded}.
   * @throws ProxyError `limit_reached`
   */
  computeBudget(nowMs: number): RequestBudget {
    const { config, usage } = this.#state!
    const running = [...this.#allocations].filter(({ isUsageCounted }) => !isUsageCounted)
    const sampled = running.map(({ turn }) => turn?.completion.tokenIds.length ?? 0)
    return usage.begin(config.limits, sampled, nowMs)
  }

  /** Begins a request. Only for a session that {@link isLoaded}. */
  allocateTurn(budget: RequestBudget, onDone: () => void): TurnAllocation {
    const { sessionId, memory } = this
    const state = this.#state!
    const { config, usage, epoch, resumedAt } = state
    const index = state.nextIndex++
    const fields = { sessionId, index, config, memory, budget, epoch, resumedAt }
    const allocation = new TurnAllocation(fields, usage, {
      onDone: () => {
        this.#allocations.delete(allocation)
        onDone()
      },
      onUnrecorded: () => freeIndex(state, index),
    })
    this.#allocations.add(allocation)
    return allocation
  }

  /**
   * Serializes attempts of one request: a later attempt waits until the earlier one is in flight.
   * @param name the idempotency key of the request
   * @returns a handle to dispose when this attempt is in flight
   */
  async serializeAttempts(name: string): Promise<Disposable> {
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
   * @param getReason is only called if there are any: an error with its stack is expensive
   */
  async cancelRequests(getReason: () => ProxyError, settleMs: number): Promise<void> {
    if (this.#allocations.size === 0) return
    const reason = getReason()
    const allocations = [...this.#allocations]
    for (const allocation of allocations) allocation.cancel(reason)
    const patience = new AbortController()
    const patienceOver = sleep(settleMs, undefined, { signal: patience.signal }).catch(() => undefined)
    await Promise.race([Promise.all(allocations.map(({ over }) => over)), patienceOver])
    patience.abort()
  }

  /**
   * Waits for the end of the session.
   * @returns the ended session, undefined after `timeoutMs`
   * @throws the error that {@link rejectWaiters} receives, `signal.reason`
   */
  async waitForEnd(timeoutMs: number, signal: AbortSignal): Promise<SessionRecord | undefined> {
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

  resolveWaiters(session: SessionRecord): void {
    for (const waiter of this.#waiters) waiter.resolve(session)
  }

  rejectWaiters(error: ProxyError): void {
    for (const waiter of this.#waiters) waiter.reject(error)
  }
}

function toConfig(session: SessionRecord): SessionConfig {
  const { trustAgent, policies, editedCalls, continueResponses, limits, keyTag } = session
  const samplingParams = readSamplingParams(session)
  const record = session.record && parseCaptureOptions(session.record)
  return { samplingParams, trustAgent, record, policies, editedCalls, continueResponses, limits, keyTag }
}

/** Frees an index. One below that of a later request is only reused if that request fails as well. */
function freeIndex(state: SessionState, index: number): void {
  state.unrecorded.add(index)
  while (state.unrecorded.delete(state.nextIndex - 1)) state.nextIndex -= 1
}

/** Ignores the outcome of a task and its error for the next one. */
function ignore(): void {}
