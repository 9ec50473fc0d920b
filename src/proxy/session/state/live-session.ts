/**
 * The state of a session in this process beyond its stored row: its cache, its requests in flight, the clients that
 * wait for its end, and the queue of its changes.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { ProxyError } from '../../../base/errors.ts'
import type { Message } from '../../../protocol/canonical/conversation.ts'
import { parseCaptureOptions } from '../../../protocol/token-data/kinds.ts'
import type { SessionRecord } from '../../store/port/turn-store.ts'
import { type RequestBudget, SessionUsage } from './limits.ts'
import type { InFlightTurn } from './live-turn.ts'
import { SessionMemory } from './session-memory.ts'
import { readSamplingParams, type SessionConfig, TurnAllocation } from './turn-allocation.ts'

/** The measured size of a session without its cache. */
const LIVE_BYTES = 1_500

/** The cached part of a session's row. */
interface SessionState {
  readonly active: boolean
  readonly config: SessionConfig
  nextIndex: number
  /** The indices below `nextIndex` whose turns could not be stored, while requests with later indices are in flight. */
  readonly unrecorded: Set<number>
  readonly usage: SessionUsage
  /** The epoch under which this node owns the session; undefined: the database is not shared. */
  readonly epoch: number | undefined
  /** The same as {@link TurnAllocation.resumedAt}. */
  resumedAt: number | undefined
}

/** A session in memory. */
export class LiveSession {
  readonly sessionId: string
  /** undefined: the session has not been read from the store, or was deleted from it. */
  #state: SessionState | undefined
  /** undefined: the cache is empty. */
  #memory: SessionMemory | undefined
  readonly #allocations = new Set<TurnAllocation>()
  /** For each request that is about to begin, a promise that resolves when its latest attempt has begun. */
  readonly #beginning = new Map<string | Message | undefined, Promise<void>>()
  readonly #waiters = new Set<PromiseWithResolvers<SessionRecord | undefined>>()
  #lastTask: Promise<unknown> = Promise.resolve()

  constructor(sessionId: string) {
    this.sessionId = sessionId
  }

  /** The cache, which is created if it does not exist. */
  get memory(): SessionMemory {
    this.#memory ??= new SessionMemory()
    return this.#memory
  }

  get hasMemory(): boolean {
    return this.#memory !== undefined
  }

  /** Discards the cache. Requests in flight retain the parts that they reference. */
  discardMemory(): void {
    this.#memory = undefined
  }

  /** The size of the session and its cache. */
  get bytes(): number {
    return LIVE_BYTES + (this.#memory?.bytes ?? 0)
  }

  /** Releases the cached data that only requests in flight need. */
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

  /** Runs a task when all earlier tasks have ended. */
  runInOrder<T>(task: () => Promise<T>): Promise<T> {
    const result = this.#lastTask.then(task)
    this.#lastTask = result.then(ignore, ignore)
    return result
  }

  /** Whether the session's row has been read from the store. */
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

  /** The session config. Requires {@link isLoaded}. */
  get config(): SessionConfig {
    return this.#state!.config
  }

  /**
   * Replaces the cached state of the session's row.
   * @param record the stored row; undefined: the session does not exist, or its row must be read again
   * @param more `usage` of the stored turns, if there are limits; `epoch` if several nodes share the database;
   *   `resumedAt` as in {@link TurnAllocation.resumedAt}
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

  /** Records that the delivery of the latest responses is unknown, as after the crash of a node. */
  markDeliveryUnknown(): void {
    if (this.#state) this.#state.resumedAt = this.#state.nextIndex
  }

  /**
   * Returns the budget of a new request. Requires {@link isLoaded}.
   * @throws ProxyError `limit_reached`
   */
  computeBudget(nowMs: number): RequestBudget {
    const { config, usage } = this.#state!
    const running = [...this.#allocations].filter(({ isUsageCounted }) => !isUsageCounted)
    const sampled = running.map(({ turn }) => turn?.completion.tokenIds.length ?? 0)
    return usage.begin(config.limits, sampled, nowMs)
  }

  /** Allocates an index for a request, which is then in flight. Requires {@link isLoaded}. */
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
   * Serializes attempts of one request: a later attempt waits until the previous one has begun.
   * @param name the idempotency key of the request, or the last of its messages; undefined: it has neither
   * @returns a handle that the caller disposes when the attempt has begun
   */
  async serializeAttempts(name: string | Message | undefined): Promise<Disposable> {
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
   * Cancels the requests in flight. Resolves when all of them are done, but after `settleMs` at the latest.
   * @param getReason creates the error; called only if there are requests, because capturing a stack is expensive
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
   * @returns the ended session; undefined after `timeoutMs`
   * @throws the error passed to {@link rejectWaiters}; `signal.reason` after an abort
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

  /** Resolves all calls of {@link waitForEnd} with the ended session. */
  resolveWaiters(session: SessionRecord): void {
    for (const waiter of this.#waiters) waiter.resolve(session)
  }

  /** Rejects all calls of {@link waitForEnd}. */
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

/** Frees an index whose turn could not be stored. It is reused only if no later request has a valid index. */
function freeIndex(state: SessionState, index: number): void {
  state.unrecorded.add(index)
  while (state.unrecorded.delete(state.nextIndex - 1)) state.nextIndex -= 1
}

/** Ignores the outcome of a task, so that its failure does not affect the next one. */
function ignore(): void {}
