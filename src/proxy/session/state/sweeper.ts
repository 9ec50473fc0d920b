/** Removes sessions whose time to live has ended: periodically, and on request. */
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import type { SessionCount, TurnStore } from '../../store/port/turn-store.ts'
import type { SessionsOptions } from './session-records.ts'

/**
 * The share of all sessions above which the removal of expired ones is deferred: normally, fewer expire while no proxy
 * runs.
 */
const MAX_SHARE = 0.25
/** The number of expired sessions that are removed regardless of their share. */
const MAX_NEGLIGIBLE = 20
/** How long the removal is deferred. */
const DEFER_MS = 3_600_000
/**
 * Sessions that expired less than this time before the start are not deferred: no sweep has run since, and a wrong
 * clock is usually wrong by more. Otherwise, a proxy that is often killed would defer sessions with a time to live of
 * minutes by an hour each time.
 */
const UNSWEPT_MS = 300_000

/** The expired sessions whose removal is deferred: `expired` of all `sessions`. */
export interface SweepBacklog extends Pick<SessionCount, 'sessions' | 'expired'> {
  /** The remaining time of the deferral. */
  readonly restMs: number
}

/** Callbacks for the results of sweeps. */
export interface SweeperHooks {
  /** Called when a session has been deleted from the store. */
  onSwept(sessionId: string): void
  /** Called when a sweep failed; it is repeated after the interval. */
  onSweepFailed(error: ProxyError): void
  /** Called once when the removal of sessions that expired before the start begins to be deferred. */
  onSweepDeferred(backlog: SweepBacklog): void
}

type SweeperOptions = Pick<Required<SessionsOptions>, 'clock' | 'steadyClock' | 'sweepIntervalMs'>

/**
 * A periodic task that removes expired sessions, but protects them from a wrong clock. While a proxy runs, its
 * monotonic clock measures time regardless of the wall clock, but it cannot determine whether the wall clock was right
 * at the start. If the clock was weeks ahead then, most sessions seem to have expired. Their removal is deferred for an
 * hour, so that an operator can notice.
 */
export class Sweeper {
  readonly #store: Pick<TurnStore, 'countSessions' | 'sweep'>
  readonly #hooks: SweeperHooks
  readonly #options: SweeperOptions
  /** The difference between the wall clock and the monotonic clock at the start. */
  readonly #steadyOffsetMs: number
  /** Sessions that expired before this time count as expired before the start. */
  readonly #unseenUntilMs: number
  readonly #timer: NodeJS.Timeout
  /** The time on the monotonic clock at which the deferral began; undefined: nothing is deferred. */
  #sinceMs: number | undefined
  #backlog: SweepBacklog | undefined

  constructor(
    store: Pick<TurnStore, 'countSessions' | 'sweep'>,
    hooks: SweeperHooks,
    options: SweeperOptions,
  ) {
    this.#store = store
    this.#hooks = hooks
    this.#options = options
    const startMs = options.clock()
    this.#steadyOffsetMs = startMs - options.steadyClock()
    this.#unseenUntilMs = startMs - UNSWEPT_MS
    this.#timer = setInterval(() => void this.#sweepOrReport(), options.sweepIntervalMs).unref()
  }

  /** The expired sessions whose removal is deferred, as of the last sweep. */
  get backlog(): SweepBacklog | undefined {
    return this.#backlog
  }

  /**
   * Removes expired sessions. If those that had expired before the start are a large share of all, their removal is
   * deferred for an hour, while others are removed.
   * @param allowed the number of sessions that the operator permits to remove immediately, regardless of their share
   * @returns the ids of the removed sessions
   */
  async sweep(allowed: number): Promise<string[]> {
    const nowMs = this.#nowMs()
    const { expired } = await this.#store.countSessions(nowMs)
    const backlog = expired > allowed ? await this.#defer(nowMs) : undefined
    // Avoid needless sweeps: each waits for all writes, and discards the cached rows of every session.
    const isNeeded = expired > (backlog?.expired ?? 0)
    const sessionIds = isNeeded ? await this.#store.sweep(nowMs, backlog && this.#unseenUntilMs) : []
    if (!backlog) this.#endDeferral()
    for (const sessionId of sessionIds) this.#hooks.onSwept(sessionId)
    return sessionIds
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  /**
   * Returns the time by which sessions expire. If the wall clock is set forward, the monotonic clock counts; if it is
   * set back, sessions expire later. The time is rounded because databases store whole milliseconds.
   */
  #nowMs(): number {
    const { clock, steadyClock } = this.#options
    return Math.floor(Math.min(clock(), steadyClock() + this.#steadyOffsetMs))
  }

  /** Updates the deferral. @returns the deferred sessions; undefined: all expired sessions may be removed */
  async #defer(nowMs: number): Promise<SweepBacklog | undefined> {
    const { sessions, expired } = await this.#store.countSessions(Math.min(nowMs, this.#unseenUntilMs))
    const before = this.#backlog
    // During a deferral, the share does not count: new sessions reduce it, and they must not end the deferral.
    const most = this.#sinceMs === undefined ? Math.max(MAX_NEGLIGIBLE, sessions * MAX_SHARE) : MAX_NEGLIGIBLE
    if (expired <= most) this.#endDeferral()
    else {
      const steadyMs = this.#options.steadyClock()
      this.#sinceMs ??= steadyMs
      const restMs = this.#sinceMs + DEFER_MS - steadyMs
      this.#backlog = restMs > 0 ? { sessions, expired, restMs } : undefined
    }
    if (this.#backlog && !before) this.#hooks.onSweepDeferred(this.#backlog)
    return this.#backlog
  }

  /** Ends the deferral. A later one lasts an hour again. */
  #endDeferral(): void {
    this.#sinceMs = undefined
    this.#backlog = undefined
  }

  async #sweepOrReport(): Promise<void> {
    try {
      await this.sweep(0)
    } catch (error) {
      this.#hooks.onSweepFailed(toProxyError(error))
    }
  }
}

/** Describes a deferral for `/health` and the log. */
export function describeBacklog({ expired, sessions, restMs }: SweepBacklog): string {
  const minutes = Math.ceil(restMs / 60_000)
  return (
    `${expired} of ${sessions} sessions expired before the proxy started, so many that the ` +
    `clock may be wrong: they are deleted in ${minutes} min, or now with POST /admin/sweep {"at_most": ${expired}}. If the ` +
    'clock is wrong, stop the proxy, and set the clock before it starts again.'
  )
}
