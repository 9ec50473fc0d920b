/** Removes sessions whose time to live is over: periodically, and on request. */
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import type { SessionCount, TurnStore } from '../../store/port/turn-store.ts'
import type { SessionsOptions } from './session-records.ts'

/** The share of all sessions above which removal is deferred: normally fewer expire while no proxy runs. */
const MOST_SHARE = 0.25
/** The number of sessions that are deleted whatever their share. */
const HANDFUL = 20
const DEFER_MS = 3_600_000
/**
 * Sessions that expired so shortly before the start had no sweep yet, and a wrong clock is wrong by more. Otherwise a
 * proxy that is often killed would defer sessions that live for minutes, each time for an hour.
 */
const UNSWEPT_MS = 300_000

/** Expired sessions whose removal is deferred: `expired`. */
export interface SweepBacklog extends Pick<SessionCount, 'sessions' | 'expired'> {
  /** The remaining time of the deferral. */
  readonly restMs: number
}

export interface SweeperHooks {
  /** Called when the session has been deleted from the store. */
  onSwept(sessionId: string): void
  /** Called when a sweep failed; the next one tries again. */
  onSweepFailed(error: ProxyError): void
  /** Called once when so many sessions had expired before the start that their removal is deferred. */
  onSweepDeferred(backlog: SweepBacklog): void
}

type SweeperOptions = Pick<Required<SessionsOptions>, 'clock' | 'steadyClock' | 'sweepIntervalMs'>

/**
 * Prevents that a wrong clock deletes everything. While a proxy runs its monotonic clock measures time, whatever
 * happens to the wall clock, but it cannot know whether the wall clock was right at its start. A proxy that starts with
 * a clock that is weeks ahead finds that most sessions have expired. Their removal is deferred for an hour, so that an
 * operator can notice.
 */
export class Sweeper {
  readonly #store: Pick<TurnStore, 'countSessions' | 'sweep'>
  readonly #hooks: SweeperHooks
  readonly #options: SweeperOptions
  /** The offset between the two clocks at the start. */
  readonly #steadyOffsetMs: number
  /**
   * The time before which sessions expired while this process did not run; later ones may have expired during its life.
   */
  readonly #unseenUntilMs: number
  readonly #timer: NodeJS.Timeout
  /** The time on the monotonic clock at which sessions that had expired before the start were found to be too many. */
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

  /** The expired sessions whose removal is deferred because they are so many, as of the last sweep. */
  get backlog(): SweepBacklog | undefined {
    return this.#backlog
  }

  /**
   * Removes expired sessions. If those that had expired before the start are a large share of all, they are deferred
   * for an hour; others are removed meanwhile.
   * @param allowed the number of sessions that the operator permits to remove at once, whatever their share
   * @returns the ids of the removed sessions
   */
  async sweep(allowed: number): Promise<string[]> {
    const nowMs = this.#nowMs()
    const { expired } = await this.#store.countSessions(nowMs)
    const backlog = expired > allowed ? await this.#defer(nowMs) : undefined
    // A sweep waits for all writes, and discards the cached rows of every session.
    const isNeeded = expired > (backlog?.expired ?? 0)
    const sessionIds = isNeeded ? await this.#store.sweep(nowMs, backlog && this.#unseenUntilMs) : []
    if (!backlog) this.#release()
    for (const sessionId of sessionIds) this.#hooks.onSwept(sessionId)
    return sessionIds
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  /**
   * Returns the time for expiry. Setting the clock forward does not make time pass: a session is removed only after the
   * process has run until its end. Setting it back defers the end. Databases store whole milliseconds, and the monotonic
   * clock has fractions.
   */
  #nowMs(): number {
    const { clock, steadyClock } = this.#options
    return Math.floor(Math.min(clock(), steadyClock() + this.#steadyOffsetMs))
  }

  /** @returns undefined: the sessions may be deleted */
  async #defer(nowMs: number): Promise<SweepBacklog | undefined> {
    const { sessions, expired } = await this.#store.countSessions(Math.min(nowMs, this.#unseenUntilMs))
    const before = this.#backlog
    // New sessions reduce the share of the deferred ones, and are no reason to delete them.
    const most = this.#sinceMs === undefined ? Math.max(HANDFUL, sessions * MOST_SHARE) : HANDFUL
    if (expired <= most) this.#release()
    else {
      const steadyMs = this.#options.steadyClock()
      this.#sinceMs ??= steadyMs
      const restMs = this.#sinceMs + DEFER_MS - steadyMs
      this.#backlog = restMs > 0 ? { sessions, expired, restMs } : undefined
    }
    if (this.#backlog && !before) this.#hooks.onSweepDeferred(this.#backlog)
    return this.#backlog
  }

  /** Ends the deferral; a later one lasts its full time. */
  #release(): void {
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
