/**
 * The asynchronous interface of the scheduler, shared by both backends. A request acquires a lease, which is granted
 * when a member has a free slot.
 */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { type ErrorCode, ProxyError } from '../../../base/errors.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'
import { LruCache } from '../../../base/lru-cache.ts'
import { isEngineFault, OutlierDetector } from './outlier-detector.ts'
import { PauseWatch } from './pause-watch.ts'
import type { Member, PlacementRequirements } from './placement.ts'
import {
  type Assignment,
  type QueuedRequest,
  Scheduler,
  type SchedulerOptions,
  type SchedulerStats,
} from './scheduler.ts'

export interface DispatcherOptions extends SchedulerOptions {
  /** Returns the error for a request that no member could serve for `waitMs`. */
  createAbsentError(request: QueuedRequest): { code: ErrorCode; message: string }
  /** The longest pause before requests are rejected; 0: unlimited. */
  pauseLimitMs?: number | undefined
  clock?: Clock | undefined
  logger?: Logger | undefined
  watch?: DispatchObserver | undefined
}

/** Observer of dispatching, for metrics. */
export interface DispatchObserver {
  /** Records how long a request waited for its slot. */
  recordWait(ms: number): void
  /** Counts a request that fails over to another member because its member was lost or failed. */
  countFailover(): void
  /** Counts a member that is ejected because its requests failed. */
  countEjection(): void
  /** Counts a request that was rejected before it received a slot. @param code the code of its error */
  countRejection(code: string): void
}

export interface DispatcherStats extends SchedulerStats {
  /** The start of the pause, in milliseconds since the epoch; undefined while there is none. */
  pausedSinceMs: number | undefined
}

/** The right to use one slot of a member. */
export interface Lease {
  readonly memberId: string
  /** Releases the slot; idempotent. Must be called before the same request acquires another lease. */
  release(): void
  /** Reports that the member has served the request. */
  reportSuccess(): void
  /**
   * Reports that the member has failed the request. The member may be ejected, and the session's next request avoids
   * it.
   */
  reportFailure(error: ProxyError): void
}

/**
 * The number of sessions for which the member that failed their last request is stored: more sessions than are expected
 * to retry at the same time.
 */
const MAX_FAILED_SESSIONS = 10_000

/** A waiting request, with the callbacks that settle its promise. */
interface Waiter {
  readonly request: QueuedRequest
  grant(memberId: string): void
  fail(error: ProxyError): void
}

/** The defaults of both backends, and of the corresponding options of `serve`. */
export const DISPATCH_DEFAULTS = {
  /** The number of requests that may wait. */
  queueLimit: 8_192,
  /** The longest wait of a request that no member could serve, even if it were idle. */
  waitMs: 30_000,
  /** The number of concurrent requests of a member that declares no limit. */
  maxConcurrency: 1_024,
  /** The longest pause before requests are rejected. */
  pauseLimitMs: 3_600_000,
} as const

/** The longest interval between searches of the queue for requests that no member can serve. */
const EXPIRY_CHECK_MS = 1_000

export class Dispatcher {
  readonly #scheduler: Scheduler
  readonly #absent: DispatcherOptions['createAbsentError']
  readonly #clock: Clock
  readonly #expiryCheckMs: number
  readonly #waiters = new Map<string, Waiter>()
  /** Members that are removed once they are idle, each with the callback to run then. */
  readonly #retiring = new Map<string, () => void>()
  #cancelExpiry: (() => void) | undefined
  #closed = false
  readonly #pauseWatch: PauseWatch
  readonly #watch: DispatchObserver | undefined
  readonly #logger: Logger | undefined
  readonly #outliers = new OutlierDetector()
  /** The member that failed a session's last request. */
  readonly #failedAt = new LruCache<string, string>(MAX_FAILED_SESSIONS, () => 1)
  #pauses = 0

  constructor(options: DispatcherOptions) {
    this.#scheduler = new Scheduler(options)
    this.#absent = options.createAbsentError
    this.#clock = options.clock ?? systemClock
    this.#watch = options.watch
    this.#logger = options.logger
    this.#expiryCheckMs = Math.min(EXPIRY_CHECK_MS, options.waitMs)
    this.#pauseWatch = new PauseWatch({
      clock: this.#clock,
      limitMs: options.pauseLimitMs ?? DISPATCH_DEFAULTS.pauseLimitMs,
      logger: options.logger,
      onLimit: () => this.#failWaiting(createPauseTimeoutError),
    })
  }

  /**
   * Acquires a slot. Returns the lease itself if a slot is free, so that no promise delays the request, and otherwise a
   * promise of the lease. The caller must release it.
   * @throws ProxyError `queue_full`; the error of `createAbsentError` if no member could serve the request for
   *   `waitMs`; `paused` if a pause exceeds its limit; `shutting_down`. After an abort: `signal.reason`.
   */
  acquire(request: QueuedRequest, signal: AbortSignal): Lease | Promise<Lease> {
    signal.throwIfAborted()
    const countRejection = (error: unknown) => {
      if (error instanceof ProxyError && !signal.aborted) this.#watch?.countRejection(error.code)
      return error
    }
    try {
      const lease = this.#acquire(request, signal)
      return lease instanceof Promise ? lease.catch((error) => Promise.reject(countRejection(error))) : lease
    } catch (error) {
      throw countRejection(error)
    }
  }

  #acquire(requested: QueuedRequest, signal: AbortSignal): Lease | Promise<Lease> {
    if (this.#closed) throw createShutdownError()
    if (this.#pauseWatch.isOverLimit) throw createPauseTimeoutError()
    const failedAt = this.#failedAt.get(requested.sessionId)
    const request =
      failedAt === undefined ? requested : { ...requested, avoid: [...(requested.avoid ?? []), failedAt] }
    const submittedAtMs = this.#clock.nowMs()
    const submission = this.#scheduler.submit(request, submittedAtMs)
    if (submission.outcome === 'queue_full') {
      throw new ProxyError('queue_full', 'too many requests are waiting for an engine; try again later', {
        retryAfterS: 1,
      })
    }
    if (submission.outcome === 'assigned') {
      this.#watch?.recordWait(0)
      return this.#lease(request, submission.memberId)
    }
    this.#watchExpiry()
    return this.#waitForSlot(request, signal).then((memberId) => {
      this.#watch?.recordWait(this.#clock.nowMs() - submittedAtMs)
      return this.#lease(request, memberId)
    })
  }

  /** Reports that a request fails over to another member. */
  reportFailover(): void {
    this.#watch?.countFailover()
  }

  /** Returns whether a member that is not in `requirements.avoid` could serve such a request, now or later. */
  hasAlternative(requirements: PlacementRequirements): boolean {
    return this.#scheduler.hasAlternative(requirements)
  }

  /**
   * Returns the remaining time in milliseconds for which the member receives no requests because its last ones failed;
   * 0 if it is in rotation.
   */
  getEjectionMs(memberId: string): number {
    return this.#outliers.getEjectionMs(memberId, this.#clock.nowMs())
  }

  addMember(member: Member): void {
    this.#grant(this.#scheduler.addMember(member))
  }

  updateMember(memberId: string, change: Partial<Omit<Member, 'id'>>): void {
    const isDown = change.healthy === false
    // The member may be restarted before it is healthy again, so its failures no longer count.
    if (isDown) this.#outliers.forget(memberId)
    this.#grant(this.#scheduler.updateMember(memberId, isDown ? { ...change, ejected: false } : change))
  }

  /** Removes a member. @returns the ids of the requests that it was serving; their leases are void. */
  removeMember(memberId: string): string[] {
    this.#outliers.forget(memberId)
    const { lost, assigned } = this.#scheduler.removeMember(memberId)
    this.#grant(assigned)
    return lost
  }

  /** Drains the member. `onOut` runs when its running requests have ended and it is removed. */
  retireMember(memberId: string, onOut: () => void): void {
    this.#retiring.set(memberId, onOut)
    this.updateMember(memberId, { draining: true })
    this.#removeIfIdle(memberId)
  }

  /** Cancels the drain that {@link retireMember} began. */
  cancelRetirement(memberId: string): void {
    this.#retiring.delete(memberId)
    this.updateMember(memberId, { draining: false })
  }

  releaseSession(sessionId: string): void {
    this.#failedAt.delete(sessionId)
    this.#scheduler.releaseSession(sessionId)
  }

  /**
   * Queues new requests while running ones finish, until `resume`. Once the pause exceeds its limit, requests are
   * rejected rather than dispatched: the engines may be half-way through a weight update.
   */
  pause(): void {
    this.#pauses += 1
    this.#scheduler.pause()
    this.#pauseWatch.begin()
  }

  resume(): void {
    this.#pauseWatch.end()
    this.#grant(this.#scheduler.resume())
  }

  /** Resumes when `ready` has resolved, unless another pause has begun meanwhile. */
  async resumeAfter(ready: Promise<unknown>): Promise<void> {
    const pauses = this.#pauses
    await ready
    if (pauses === this.#pauses) this.resume()
  }

  getStats(): DispatcherStats {
    return { ...this.#scheduler.getStats(), pausedSinceMs: this.#pauseWatch.sinceEpochMs }
  }

  /** Fails all waiting and future requests with `shutting_down`. Leases remain valid. */
  close(): void {
    this.#closed = true
    this.#cancelExpiry?.()
    this.#pauseWatch.close()
    this.#failWaiting(createShutdownError)
  }

  #failWaiting(createError: () => ProxyError): void {
    for (const requestId of [...this.#waiters.keys()]) {
      this.#scheduler.withdraw(requestId)
      this.#waiters.get(requestId)?.fail(createError())
    }
  }

  #waitForSlot(request: QueuedRequest, signal: AbortSignal): Promise<string> {
    const { requestId } = request
    return new Promise((resolve, reject) => {
      const onAbort = () => {
        this.#waiters.delete(requestId)
        this.#scheduler.withdraw(requestId)
        reject(signal.reason)
      }
      const settle = () => {
        signal.removeEventListener('abort', onAbort)
        this.#waiters.delete(requestId)
      }
      signal.addEventListener('abort', onAbort, { once: true })
      this.#waiters.set(requestId, {
        request,
        grant(memberId) {
          settle()
          resolve(memberId)
        },
        fail(error) {
          settle()
          reject(error)
        },
      })
    })
  }

  #lease({ requestId, sessionId }: QueuedRequest, memberId: string): Lease {
    const dispatchedAtMs = this.#clock.nowMs()
    let isHeld = true
    return {
      memberId,
      release: () => {
        if (!isHeld) return
        isHeld = false
        this.#grant(this.#scheduler.release(requestId))
        this.#removeIfIdle(memberId)
      },
      reportSuccess: () => {
        this.#failedAt.delete(sessionId)
        this.#outliers.reportSuccess(memberId)
      },
      reportFailure: (error) => {
        if (isEngineFault(error)) this.#failedAt.set(sessionId, memberId)
        this.#ejectOutlier(memberId, error, dispatchedAtMs)
      },
    }
  }

  #ejectOutlier(memberId: string, error: ProxyError, dispatchedAtMs: number): void {
    const nowMs = this.#clock.nowMs()
    const memberCount = this.#scheduler.healthyCount
    const ejection = this.#outliers.reportFailure(memberId, error, { dispatchedAtMs, nowMs, memberCount })
    if (ejection === undefined) return
    const { forMs, failures } = ejection
    const fields = { member: memberId, failures, for_ms: forMs, reason: error.logMessage }
    logEvent(this.#logger, 'member_ejected', fields)
    this.#watch?.countEjection()
    this.updateMember(memberId, { ejected: true })
    this.#endEjectionAfter(forMs, memberId)
  }

  #endEjectionAfter(delayMs: number, memberId: string): void {
    this.#clock.after(delayMs, () => {
      // The member may have left.
      if (!this.#scheduler.isEjected(memberId)) return
      // Timers may fire up to a millisecond early, and the member may have been ejected again.
      const leftMs = this.getEjectionMs(memberId)
      if (leftMs > 0) return this.#endEjectionAfter(Math.ceil(leftMs), memberId)
      logEvent(this.#logger, 'member_readmitted', { member: memberId })
      this.updateMember(memberId, { ejected: false })
    })
  }

  #removeIfIdle(memberId: string): void {
    const onOut = this.#retiring.get(memberId)
    if (onOut === undefined || this.#scheduler.countInFlight(memberId) > 0) return
    this.#retiring.delete(memberId)
    this.removeMember(memberId)
    onOut()
  }

  #grant(assignments: Assignment[]): void {
    for (const { requestId, memberId } of assignments) this.#waiters.get(requestId)?.grant(memberId)
  }

  #watchExpiry(): void {
    this.#cancelExpiry ??= this.#clock.after(this.#expiryCheckMs, () => {
      this.#cancelExpiry = undefined
      for (const requestId of this.#scheduler.expire(this.#clock.nowMs())) {
        const waiter = this.#waiters.get(requestId)
        if (waiter === undefined) continue
        const { code, message } = this.#absent(waiter.request)
        waiter.fail(new ProxyError(code, message))
      }
      if (this.#waiters.size > 0) this.#watchExpiry()
    })
  }
}

function createShutdownError(): ProxyError {
  return new ProxyError('shutting_down', 'the proxy is shutting down')
}

function createPauseTimeoutError(): ProxyError {
  return new ProxyError(
    'paused',
    'the proxy is paused (POST /admin/pause) and was not resumed within --pause-limit',
  )
}
