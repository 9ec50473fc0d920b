/**
 * The life cycle of sessions. A session is created by a trainer or by an agent's first request, accepts requests until
 * it is completed or aborted, may be reset before a retry of its rollout, and is finally deleted or swept.
 *
 * All operations on one session run in the order of their calls. A change (complete, abort, reset, delete) defers later
 * requests, cancels those in flight and waits until their turns are closed before it is written. When a trainer
 * receives the response to a change, the session is therefore idle, and no turn from before a reset appears after it.
 */
import { randomUUID } from 'node:crypto'
import { ProxyError } from '../../../base/errors.ts'
import type { MarksChange } from '../../store/port/marks.ts'
import {
  createSessionMovedError,
  isSessionMovedError,
  type NodeStatus,
} from '../../store/port/node-coordination.ts'
import type { Reward, SessionRecord, TurnStore } from '../../store/port/turn-store.ts'
import { Activity } from './activity.ts'
import { readUsage } from './limits.ts'
import type { LiveSession } from './live-session.ts'
import { LiveSessions, type SessionReference } from './live-sessions.ts'
import type { InFlightTurn } from './live-turn.ts'
import { checkNewSession, type NewSessionRequest } from './new-session.ts'
import { parseSessionId } from './session-id.ts'
import {
  createEndedKeyError,
  createNotFoundError,
  requireSession,
  type SessionClaim,
  SessionRecords,
  type SessionsOptions,
} from './session-records.ts'
import { type SweepBacklog, Sweeper, type SweeperHooks } from './sweeper.ts'
import type { TurnAllocation } from './turn-allocation.ts'
import { withTurnsByIndex } from './turns-by-index.ts'

export { isSessionId, parseSessionId, RESERVED_SEGMENTS } from './session-id.ts'
export type { SessionsOptions } from './session-records.ts'
export type { TurnAllocation } from './turn-allocation.ts'

/** Callbacks for the end of sessions and for sweeps. */
interface SessionHooks extends Omit<SweeperHooks, 'onSwept'> {
  /** Called when a session is completed, aborted, reset, deleted or swept, and its cache is discarded. */
  onEnded(sessionId: string): void
}

/** The polling interval of a client that waits for the end of a session in a shared database. */
const POLL_MS = 1_000

/** The outcome of {@link Sessions.wait}. */
interface WaitResult {
  session: SessionRecord
  /** Whether the session was still active after the timeout. */
  timedOut: boolean
}

/** All sessions of the proxy. */
export class Sessions {
  readonly #store: TurnStore
  readonly #hooks: SessionHooks
  readonly #options: Required<SessionsOptions>
  readonly #records: SessionRecords
  readonly #lives: LiveSessions
  readonly #sweeper: Sweeper
  readonly #beganAtMs: number
  #isDrained = false
  #closed = false

  constructor(store: TurnStore, hooks: SessionHooks, options: SessionsOptions) {
    this.#store = store
    this.#hooks = hooks
    this.#options = {
      activity: new Activity(),
      clock: Date.now,
      steadyClock: options.clock ?? (() => performance.now()),
      generateId: randomUUID,
      metadata: () => ({}),
      settleMs: 10_000,
      sweepIntervalMs: 60_000,
      // Enough for about 280 sessions of 100,000 tokens.
      memoryBytes: 512 * 1024 * 1024,
      limits: null,
      ...options,
    }
    this.#records = new SessionRecords(store, this.#options)
    this.#lives = new LiveSessions(this.#options.memoryBytes)
    this.#beganAtMs = this.#options.clock()
    const sweeperHooks = { ...hooks, onSwept: (sessionId: string) => this.#swept(sessionId) }
    this.#sweeper = new Sweeper(store, sweeperHooks, this.#options)
    store.shared?.onLost(() => {
      for (const live of this.#lives.list()) void this.#loseOwnership(live)
    })
  }

  /** Whether a request for a session that does not exist is rejected. */
  get strict(): boolean {
    return this.#options.strict
  }

  /** Creates a session, or finds the existing one unchanged. @throws ProxyError `invalid_request`, `unsupported` */
  async create(request: NewSessionRequest = {}): Promise<{ created: boolean; session: SessionRecord }> {
    checkNewSession(request)
    const sessionId = parseSessionId(request.sessionId ?? this.#options.generateId())
    return this.#inOrder(sessionId, () => this.#records.create(sessionId, request))
  }

  /**
   * Returns the other node that owns the session, if several nodes share the database; undefined: this node or none
   * owns it.
   */
  async findOtherOwner(sessionId: string): Promise<NodeStatus | undefined> {
    const { shared } = this.#store
    if (shared === undefined) return undefined
    await shared.waitUntilValid()
    return this.#lives.get(sessionId)?.isLoaded ? undefined : shared.readOwner(sessionId)
  }

  /** Returns whether this node owns the session, according to its own state. */
  isOwned(sessionId: string): boolean {
    return this.#store.shared === undefined || this.#lives.get(sessionId)?.isLoaded === true
  }

  /**
   * Makes this node the owner of an existing session, before a request for it is read.
   * @returns false: another node became the owner meanwhile, and must serve the request
   */
  async acquireOwnership(sessionId: string): Promise<boolean> {
    if (this.isOwned(sessionId)) return true
    try {
      await this.#inOrder(sessionId, async (live) => {
        if (live.isLoaded) return
        const existing = await this.#records.claim(sessionId)
        if (existing !== undefined) await this.#loadState(live, existing)
      })
      return true
    } catch (error) {
      if (isSessionMovedError(error)) return false
      throw error
    }
  }

  /** Records that the delivery of a forwarded response is unknown. */
  markDeliveryUnknown(sessionId: string): void {
    this.#lives.get(sessionId)?.markDeliveryUnknown()
  }

  /** Handles the loss of ownership to another node: discards the session's cache and cancels its requests here. */
  async handleOwnershipLoss(sessionId: string): Promise<void> {
    const live = this.#lives.get(sessionId)
    if (live !== undefined) await this.#loseOwnership(live)
  }

  /** Returns the session. @throws ProxyError `session_not_found` */
  async get(sessionId: string): Promise<SessionRecord> {
    return requireSession(await this.find(sessionId))
  }

  /** Returns the session; undefined: there is no such session. */
  find(sessionId: string): Promise<SessionRecord | undefined> {
    return this.#store.getSession(sessionId)
  }

  /**
   * Ends the session as completed. Requests in flight are cancelled, and their turns are `aborted`. A session that has
   * ended is not changed.
   * @throws ProxyError `session_not_found`
   */
  complete(sessionId: string): Promise<SessionRecord> {
    return this.#end(sessionId, 'completed')
  }

  /** Ends the session as aborted; otherwise as {@link complete} does. */
  abort(sessionId: string): Promise<SessionRecord> {
    return this.#end(sessionId, 'aborted')
  }

  /**
   * Deletes the session's turns, reward and marks, and reopens the session if it has ended.
   * @throws ProxyError `session_not_found`
   */
  reset(sessionId: string): Promise<SessionRecord> {
    return this.#change(sessionId, 'reset', async (live, epoch) => {
      const session = await this.#store.resetSession(sessionId, this.#options.clock(), epoch)
      live.replaceState(session, { epoch })
      this.#onEnded(sessionId)
      const reset = requireSession(session)
      this.#options.activity.emit({ type: 'session_reset', session_id: sessionId })
      return reset
    })
  }

  /** Deletes the session. @returns whether it existed */
  delete(sessionId: string): Promise<boolean> {
    return this.#change(sessionId, 'deleted', async (live, epoch) => {
      const deleted = await this.#store.deleteSession(sessionId, epoch)
      this.#forget(live)
      return deleted
    })
  }

  /**
   * Sets the reward of the session.
   * @param reward `turns` may be named by index or by id
   * @throws ProxyError `session_not_found`, `turn_not_found`, `invalid_request` for a turn that is named twice
   */
  setReward(sessionId: string, reward: Reward): Promise<SessionRecord> {
    return this.#inOrder(sessionId, async () => {
      const byIndex = await withTurnsByIndex(this.#store, () => this.get(sessionId), reward)
      const session = requireSession(await this.#store.setReward(sessionId, byIndex, this.#options.clock()))
      this.#options.activity.emit({ type: 'reward', session_id: sessionId, reward: reward.reward })
      return session
    })
  }

  /** Changes labels and notes; otherwise as {@link setReward} does. */
  updateMarks(sessionId: string, change: MarksChange): Promise<SessionRecord> {
    return this.#inOrder(sessionId, async () => {
      const byIndex = await withTurnsByIndex(this.#store, () => this.get(sessionId), change)
      const session = requireSession(await this.#store.changeMarks(sessionId, byIndex, this.#options.clock()))
      this.#options.activity.emit({ type: 'session_marked', session_id: sessionId })
      return session
    })
  }

  /**
   * Waits until the session is completed or aborted, or until `timeoutMs` has passed. It polls only a shared database.
   * @throws ProxyError `session_not_found`, also when it is deleted meanwhile; `shutting_down`; `signal.reason` after
   *   an abort
   */
  async wait(sessionId: string, timeoutMs: number, signal: AbortSignal): Promise<WaitResult> {
    using reference = this.acquire(sessionId)
    const { live } = reference
    // The promise is wrapped in an object. Returned directly, it would block the queue until it resolves.
    const { session, ended } = await live.runInOrder(async () => {
      const session = await this.get(sessionId)
      if (session.status !== 'active') return { session, ended: undefined }
      this.#rejectIfClosed()
      return { session, ended: live.waitForEnd(timeoutMs, signal) }
    })
    if (ended === undefined) return { session, timedOut: false }
    const polling = this.#store.shared && setInterval(() => void this.#pollForEnd(live), POLL_MS)
    const endedSession = await ended.finally(() => clearInterval(polling))
    return endedSession
      ? { session: endedSession, timedOut: false }
      : { session: await this.get(sessionId), timedOut: true }
  }

  /**
   * Begins an agent's request: loads or creates the session and allocates the next index. Indices follow the order of
   * arrival.
   * @param keyTag the tag of the agent's key; null: the key has none; undefined: the request has no session key
   * @throws ProxyError `session_not_found` (strict), `session_ended`, `invalid_request` (an invalid id),
   *   `shutting_down`, `session_moved`, `limit_reached`, `unauthorized` (as {@link rejectEndedKey})
   */
  allocateTurn(session: SessionReference, keyTag?: string | null): Promise<TurnAllocation> {
    const { live } = session
    const { sessionId } = live
    return live.runInOrder(async () => {
      this.#rejectIfClosed()
      const { shared } = this.#store
      if (shared) await shared.waitUntilValid()
      if (!live.isLoaded) await this.#loadState(live, await this.#records.findOrCreate(sessionId, keyTag))
      if (keyTag !== undefined && keyTag !== live.config.keyTag) throw createEndedKeyError()
      if (!live.isActive) throw new ProxyError('session_ended', `Session ${sessionId} has ended`)
      const budget = live.computeBudget(this.#options.clock())
      const retained = session.retain()
      return live.allocateTurn(budget, () => retained[Symbol.dispose]())
    })
  }

  /**
   * Validates an agent's key. A key with a tag is valid only while its session exists, and a session with a tag accepts
   * only keys with this tag.
   * @throws ProxyError `unauthorized`
   */
  async rejectEndedKey(sessionId: string, keyTag: string | null): Promise<void> {
    const live = this.#lives.get(sessionId)
    const config = live?.isLoaded ? live.config : await this.find(sessionId)
    if (keyTag !== (config?.keyTag ?? null)) throw createEndedKeyError()
  }

  /** The expired sessions whose removal is deferred because there are many, as of the last sweep. */
  get deferredSweep(): SweepBacklog | undefined {
    return this.#sweeper.backlog
  }

  /**
   * Removes sessions whose time to live has ended. If they are a large share of all sessions, their removal is deferred
   * for an hour. It also runs periodically.
   * @param allowed the number of sessions that the operator permits to remove immediately, regardless of their share
   * @returns the ids of the removed sessions
   */
  sweep(allowed = 0): Promise<string[]> {
    return this.#sweeper.sweep(allowed)
  }

  /** Waits for the requests in flight, as {@link LiveSessions.drain} does. */
  async drain(graceMs: number): Promise<boolean> {
    const { settleMs } = this.#options
    const drained = await this.#lives.drain(graceMs, settleMs)
    this.#isDrained = true
    return drained
  }

  /** Rejects new requests, cancels those in flight, and rejects waiting clients. The owner of the store closes it. */
  async close(): Promise<void> {
    this.#closed = true
    this.#sweeper.stop()
    const reason = new ProxyError('shutting_down', 'llm-proxy is shutting down')
    const lives = [...this.#lives.list()]
    for (const live of lives) live.rejectWaiters(reason)
    // The drain has waited for requests that it cancelled.
    const settleMs = this.#isDrained ? 0 : this.#options.settleMs
    await Promise.all(lives.map((live) => live.cancelRequests(() => reason, settleMs)))
  }

  /** The size of all sessions in memory, in bytes, and the number of sessions with a cache. */
  get memory(): { bytes: number; sessions: number } {
    const remembered = [...this.#lives.list()].filter(({ hasMemory }) => hasMemory)
    return { bytes: this.#lives.bytes, sessions: remembered.length }
  }

  /**
   * Acquires a reference to a session, which need not exist in the store. The session stays in memory until the
   * reference is disposed.
   */
  acquire(sessionId: string): SessionReference {
    return this.#lives.acquire(sessionId)
  }

  /** Returns all turns in flight, the oldest first. */
  listInFlightTurns(): InFlightTurn[] {
    return this.#lives.listTurns()
  }

  /** Returns the session's turns in flight. */
  listTurns(sessionId: string): InFlightTurn[] {
    return this.#lives.get(sessionId)?.turns ?? []
  }

  #onEnded(sessionId: string): void {
    this.#lives.get(sessionId)?.discardMemory()
    this.#hooks.onEnded(sessionId)
  }

  #end(sessionId: string, status: 'completed' | 'aborted'): Promise<SessionRecord> {
    return this.#change(sessionId, status, async (live, epoch) => {
      const atMs = this.#options.clock()
      const hadEnded = live.isLoaded && !live.isActive
      const record = await this.#store.endSession(sessionId, status, atMs, epoch)
      live.replaceState(record, { epoch })
      const session = requireSession(record)
      this.#onEnded(sessionId)
      live.resolveWaiters(session)
      // A session that had ended before, even in this millisecond, emits no event.
      if (!hadEnded && session.endedAtMs === atMs)
        this.#options.activity.emit({ type: 'session_ended', session_id: sessionId, status })
      return session
    })
  }

  /**
   * Applies a change. If an unreachable node owns the session, this node becomes the owner, which fences further writes
   * of the other.
   * @param how the change as a participle, for the error of cancelled requests
   */
  #change<T>(
    sessionId: string,
    how: string,
    write: (live: LiveSession, epoch: number | undefined) => Promise<T>,
  ): Promise<T> {
    return this.#inOrder(sessionId, async (live) => {
      const { shared } = this.#store
      await live.cancelRequests(() => createCancelledError(sessionId, how), this.#options.settleMs)
      await shared?.waitUntilValid()
      // If a cancelled request has not settled, a new epoch is claimed below, which fences the request's writes.
      if (live.epoch !== undefined && !live.isBusy) {
        try {
          return await write(live, live.epoch)
        } catch (error) {
          if (!isSessionMovedError(error)) throw error
        }
      }
      return write(live, (await shared?.claim(sessionId, true))?.epoch)
    })
  }

  async #loadState(live: LiveSession, { record, claimed }: SessionClaim): Promise<void> {
    // Cancel requests from an earlier ownership by this node: another node has owned the session since.
    await live.cancelRequests(() => createSessionMovedError(live.sessionId), this.#options.settleMs)
    const wasLost = claimed?.wasLost ?? (!this.#store.endedWell && record.updatedAtMs < this.#beganAtMs)
    const resumedAt = wasLost && record.nextIndex > 0 ? record.nextIndex : undefined
    live.replaceState(record, { ...claimed, resumedAt, usage: await readUsage(this.#store, record) })
  }

  async #loseOwnership(live: LiveSession): Promise<void> {
    live.replaceState(undefined)
    live.discardMemory()
    await live.cancelRequests(() => createSessionMovedError(live.sessionId), this.#options.settleMs)
  }

  /** Checks whether the session has ended through another node. */
  async #pollForEnd(live: LiveSession): Promise<void> {
    const session = await this.find(live.sessionId).catch(() => 'unknown' as const)
    if (session === undefined) live.rejectWaiters(createNotFoundError())
    else if (session !== 'unknown' && session.status !== 'active') live.resolveWaiters(session)
  }

  /** Discards the state of a session that has been deleted from the store. */
  #forget(live: LiveSession): void {
    live.replaceState(undefined)
    live.rejectWaiters(createNotFoundError())
    this.#onEnded(live.sessionId)
    this.#options.activity.emit({ type: 'session_deleted', session_id: live.sessionId })
  }

  #swept(sessionId: string): void {
    using reference = this.acquire(sessionId)
    // A request that has not opened its turn does not prevent the sweep, so it must be cancelled.
    void reference.live.cancelRequests(
      () => createCancelledError(sessionId, 'deleted'),
      this.#options.settleMs,
    )
    this.#forget(reference.live)
  }

  async #inOrder<T>(sessionId: string, task: (live: LiveSession) => Promise<T>): Promise<T> {
    using reference = this.acquire(sessionId)
    const { live } = reference
    return await live.runInOrder(() => task(live))
  }

  #rejectIfClosed(): void {
    if (this.#closed) throw new ProxyError('shutting_down', 'llm-proxy is shutting down')
  }
}

function createCancelledError(sessionId: string, how: string): ProxyError {
  return new ProxyError('turn_cancelled', `Session ${sessionId} was ${how} while this request was in flight`)
}
