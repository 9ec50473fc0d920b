/**
 * The asynchronous shell around the scheduler, shared by both backends: a call asks for a lease and gets it when a
 * member has room for it.
 */
import { type Clock, systemClock } from '../../../base/clock.ts'
import { type ErrorCode, ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { LruCache } from '../../../base/lru-cache.ts'
import { isEngineFault, OutlierDetector } from './outlier-detector.ts'
import { PauseWatch } from './pause-watch.ts'
import type { Member, Requirements } from './placement.ts'
import {
  type Assignment,
  type QueuedRequest,
  Scheduler,
  type SchedulerOptions,
  type SchedulerStats,
} from './scheduler.ts'

export interface DispatcherOptions extends SchedulerOptions {
  /** What a call fails with when nobody could serve it for `waitMs`. */
  absent(call: QueuedRequest): { code: ErrorCode; message: string }
  /** How long a pause may last before calls are refused, 0 for without end. */
  pauseLimitMs?: number | undefined
  clock?: Clock | undefined
  logger?: Logger | undefined
  watch?: DispatchWatch | undefined
}

/** Called with what dispatching does, call by call. */
export interface DispatchWatch {
  /** A call has got its slot after so long. */
  waited(ms: number): void
  /** A call goes on to another member, as the one that had it was lost. */
  failedOver(): void
  /** A member is ejected because its requests fail. */
  ejected(): void
  /** A call has got no slot. @param code of the error that it failed with */
  refused(code: string): void
}

export interface DispatcherStats extends SchedulerStats {
  /** When the pause began, in milliseconds since the epoch; undefined while there is none. */
  pausedSinceMs: number | undefined
}

/** The right to use one slot of a member. */
export interface Lease {
  readonly memberId: string
  /** Gives the slot back; more than once does no harm. To be called before the same call asks again. */
  release(): void
  /** Reports that the member has served the request. */
  succeeded(): void
  /** Reports that the member has failed the request: it may be ejected, and the session's next request avoids it. */
  failed(error: ProxyError): void
}

/** Sessions whose last request failed; more than agents that retry at one time. */
const MAX_FAILED_SESSIONS = 10_000

interface Waiter {
  readonly call: QueuedRequest
  grant(memberId: string): void
  fail(error: ProxyError): void
}

/** What both backends do unless told otherwise; the options of `serve` have the same defaults. */
export const DISPATCH_DEFAULTS = {
  /** Calls that may wait. */
  queueLimit: 8_192,
  /** How long a call waits while no member could serve it. */
  waitMs: 30_000,
  /** Calls that a member serves at once if it states no number of its own. */
  maxConcurrency: 1_024,
  /** How long a pause may last before calls are refused. */
  pauseLimitMs: 3_600_000,
} as const

/** How often, at least, the queue is searched for calls that nobody can serve. */
const EXPIRY_CHECK_MS = 1_000

export class Dispatcher {
  readonly #scheduler: Scheduler
  readonly #absent: DispatcherOptions['absent']
  readonly #clock: Clock
  readonly #expiryCheckMs: number
  readonly #waiters = new Map<string, Waiter>()
  /** Members that leave once they serve nothing, each with what to do then. */
  readonly #retiring = new Map<string, () => void>()
  #cancelExpiry: (() => void) | undefined
  #closed = false
  readonly #pauseWatch: PauseWatch
  readonly #watch: DispatchWatch | undefined
  readonly #logger: Logger | undefined
  readonly #outliers = new OutlierDetector()
  /** The member that failed a session's last request. */
  readonly #failedAt = new LruCache<string, string>(MAX_FAILED_SESSIONS, () => 1)
  #pauses = 0

  constructor(options: DispatcherOptions) {
    this.#scheduler = new Scheduler(options)
    this.#absent = options.absent
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
   * Waits for a slot. Whoever gets the lease must release it.
   * @throws ProxyError `queue_full`; the code of `absent` when nobody could serve the call for `waitMs`;
   *   `paused` when a pause lasts longer than it may; `shutting_down`. After an abort: whatever `signal.reason` is.
   */
  async acquire(call: QueuedRequest, signal: AbortSignal): Promise<Lease> {
    signal.throwIfAborted()
    try {
      return await this.#acquire(call, signal)
    } catch (error) {
      if (error instanceof ProxyError && !signal.aborted) this.#watch?.refused(error.code)
      throw error
    }
  }

  async #acquire(requested: QueuedRequest, signal: AbortSignal): Promise<Lease> {
    if (this.#closed) throw createShutdownError()
    if (this.#pauseWatch.isOverLimit) throw createPauseTimeoutError()
    const failedAt = this.#failedAt.get(requested.sessionId)
    const call =
      failedAt === undefined ? requested : { ...requested, avoid: [...(requested.avoid ?? []), failedAt] }
    const askedAtMs = this.#clock.nowMs()
    const submission = this.#scheduler.submit(call, askedAtMs)
    if (submission.outcome === 'queue_full') {
      throw new ProxyError('queue_full', 'too many calls wait for an engine already; try again later', {
        retryAfterS: 1,
      })
    }
    if (submission.outcome === 'assigned') {
      this.#watch?.waited(0)
      return this.#lease(call, submission.memberId)
    }
    this.#watchExpiry()
    const memberId = await this.#waitForSlot(call, signal)
    this.#watch?.waited(this.#clock.nowMs() - askedAtMs)
    return this.#lease(call, memberId)
  }

  /** A call goes on to another member. */
  failedOver(): void {
    this.#watch?.failedOver()
  }

  /** Returns whether a member that is not in `requirements.avoid` could serve such a request, now or later. */
  hasUntried(requirements: Requirements): boolean {
    return this.#scheduler.hasUntried(requirements)
  }

  /** Returns for how long the member gets no requests because its last ones failed; 0: it is in rotation. */
  ejectedForMs(memberId: string): number {
    return this.#outliers.ejectedForMs(memberId, this.#clock.nowMs())
  }

  addMember(member: Member): void {
    this.#grant(this.#scheduler.addMember(member))
  }

  updateMember(memberId: string, change: Partial<Omit<Member, 'id'>>): void {
    const isDown = change.healthy === false
    // It may be restarted before it is healthy again.
    if (isDown) this.#outliers.forget(memberId)
    this.#grant(this.#scheduler.updateMember(memberId, isDown ? { ...change, ejected: false } : change))
  }

  /** @returns the ids of the calls that it was serving; their leases are void. */
  removeMember(memberId: string): string[] {
    this.#outliers.forget(memberId)
    const { lost, assigned } = this.#scheduler.removeMember(memberId)
    this.#grant(assigned)
    return lost
  }

  /** Gives the member nothing new. `onOut` runs when the calls that it serves have ended and it is taken out. */
  retireMember(memberId: string, onOut: () => void): void {
    this.#retiring.set(memberId, onOut)
    this.updateMember(memberId, { draining: true })
    this.#takeOutIdle(memberId)
  }

  /** Takes {@link retireMember} back. */
  keepMember(memberId: string): void {
    this.#retiring.delete(memberId)
    this.updateMember(memberId, { draining: false })
  }

  releaseSession(sessionId: string): void {
    this.#failedAt.delete(sessionId)
    this.#scheduler.releaseSession(sessionId)
  }

  /**
   * New calls wait and running ones finish, until `resume`. Once the limit of pauses is reached, calls are refused
   * instead: the engines may be half-way through a change of weights, so nothing is served that nobody let through.
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

  stats(): DispatcherStats {
    return { ...this.#scheduler.stats(), pausedSinceMs: this.#pauseWatch.sinceEpochMs }
  }

  /** Fails every call that waits, and every later one, with `shutting_down`. Leases stay good. */
  close(): void {
    this.#closed = true
    this.#cancelExpiry?.()
    this.#pauseWatch.close()
    this.#failWaiting(createShutdownError)
  }

  #failWaiting(errorOf: () => ProxyError): void {
    for (const callId of [...this.#waiters.keys()]) {
      this.#scheduler.withdraw(callId)
      this.#waiters.get(callId)?.fail(errorOf())
    }
  }

  #waitForSlot(call: QueuedRequest, signal: AbortSignal): Promise<string> {
    const { callId } = call
    return new Promise((resolve, reject) => {
      const onAbort = () => {
        this.#waiters.delete(callId)
        this.#scheduler.withdraw(callId)
        reject(signal.reason)
      }
      const settle = () => {
        signal.removeEventListener('abort', onAbort)
        this.#waiters.delete(callId)
      }
      signal.addEventListener('abort', onAbort, { once: true })
      this.#waiters.set(callId, {
        call,
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

  #lease({ callId, sessionId }: QueuedRequest, memberId: string): Lease {
    const dispatchedAtMs = this.#clock.nowMs()
    let held = true
    return {
      memberId,
      release: () => {
        if (!held) return
        held = false
        this.#grant(this.#scheduler.release(callId))
        this.#takeOutIdle(memberId)
      },
      succeeded: () => {
        this.#failedAt.delete(sessionId)
        this.#outliers.succeeded(memberId)
      },
      failed: (error) => {
        if (isEngineFault(error)) this.#failedAt.set(sessionId, memberId)
        this.#ejectOutlier(memberId, error, dispatchedAtMs)
      },
    }
  }

  #ejectOutlier(memberId: string, error: ProxyError, dispatchedAtMs: number): void {
    const nowMs = this.#clock.nowMs()
    const memberCount = this.#scheduler.healthyCount
    const ejection = this.#outliers.failed(memberId, error, { dispatchedAtMs, nowMs, memberCount })
    if (ejection === undefined) return
    const { forMs, failures } = ejection
    const fields = { member: memberId, failures, for_s: forMs / 1_000, error: error.logMessage }
    this.#logger?.warn(fields, 'member ejected: its last requests failed')
    this.#watch?.ejected()
    this.updateMember(memberId, { ejected: true })
    this.#clock.after(forMs, () => this.#endEjection(memberId))
  }

  #endEjection(memberId: string): void {
    // The member may have left, or have been ejected again since.
    if (this.ejectedForMs(memberId) > 0 || !this.#scheduler.isEjected(memberId)) return
    this.#logger?.info({ member: memberId }, 'member back in rotation after its ejection')
    this.updateMember(memberId, { ejected: false })
  }

  #takeOutIdle(memberId: string): void {
    const onOut = this.#retiring.get(memberId)
    if (onOut === undefined || this.#scheduler.inFlightAt(memberId) > 0) return
    this.#retiring.delete(memberId)
    this.removeMember(memberId)
    onOut()
  }

  #grant(assignments: Assignment[]): void {
    for (const { callId, memberId } of assignments) this.#waiters.get(callId)?.grant(memberId)
  }

  #watchExpiry(): void {
    this.#cancelExpiry ??= this.#clock.after(this.#expiryCheckMs, () => {
      this.#cancelExpiry = undefined
      for (const callId of this.#scheduler.expire(this.#clock.nowMs())) {
        const waiter = this.#waiters.get(callId)
        if (waiter === undefined) continue
        const { code, message } = this.#absent(waiter.call)
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
    'the proxy was paused (POST /admin/pause) and nobody resumed it within --pause-limit',
  )
}
