/** Removes sessions whose time to live is over: now and then by itself, and when somebody asks for it. */
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import type { SessionCount, TurnStore } from '../../store/port/turn-store.ts'
import type { SessionsOptions } from './session-records.ts'

/** Of all sessions: more than this share does not run out while no proxy runs, as a rule. */
const MOST_SHARE = 0.25
/** Fewer than these are deleted whatever their share. */
const HANDFUL = 20
const HOLD_MS = 3_600_000
/**
 * What ran out so shortly before the start had no sweep yet, and a clock that is wrong is wrong by more. A proxy that is
 * killed often would hold what lives for minutes otherwise, each time for an hour.
 */
const UNSWEPT_MS = 300_000

/** Sessions that wait: `expired`. */
export interface HeldSweep extends Pick<SessionCount, 'sessions' | 'expired'> {
  /** How long they still wait. */
  readonly restMs: number
}

export interface SweeperHooks {
  /** The session is gone from the store. */
  onSwept(sessionId: string): void
  /** A sweep failed; the next one tries again. */
  onSweepFailed(error: ProxyError): void
  /** So many sessions had run out before the start that they wait. Once, until they have gone. */
  onSweepHeld(held: HeldSweep): void
}

type SweeperOptions = Pick<Required<SessionsOptions>, 'clock' | 'steadyClock' | 'sweepIntervalMs'>

/**
 * Keeps a wrong clock from deleting everything. While a proxy runs it knows how much time passes, whatever happens to
 * the clock; whether the clock was right at its start it does not know. One that starts with a clock that is weeks ahead
 * finds that most sessions had run out before. These wait for an hour, which is time for somebody to see it.
 */
export class Sweeper {
  readonly #store: Pick<TurnStore, 'countSessions' | 'sweep'>
  readonly #hooks: SweeperHooks
  readonly #options: SweeperOptions
  /** Between the two clocks at the beginning. */
  readonly #steadyOffsetMs: number
  /** What ran out later has run out under this process's eyes, or may have. */
  readonly #unseenUntilMs: number
  readonly #timer: NodeJS.Timeout
  /** When sessions that had run out before the start were found to be so many, by the steady clock. */
  #sinceMs: number | undefined
  #held: HeldSweep | undefined

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
    this.#timer = setInterval(() => void this.#sweepOrTell(), options.sweepIntervalMs).unref()
  }

  /** Sessions that are to be removed, and wait because they are so many; as the last sweep found it. */
  get held(): HeldSweep | undefined {
    return this.#held
  }

  /**
   * Where those that had run out before the start are a large share of all, they wait for an hour; others go meanwhile.
   * @param allowed the operator's word: up to so many may go at once, whatever their share
   * @returns the ids of those that were removed
   */
  async sweep(allowed: number): Promise<string[]> {
    const nowMs = this.#nowMs()
    const { expired } = await this.#store.countSessions(nowMs)
    const held = expired > allowed ? await this.#hold(nowMs) : undefined
    // A sweep waits for all that is being written, and forgets what is on record of every session.
    const isNeeded = expired > (held?.expired ?? 0)
    const sessionIds = isNeeded ? await this.#store.sweep(nowMs, held && this.#unseenUntilMs) : []
    if (!held) this.#release()
    for (const sessionId of sessionIds) this.#hooks.onSwept(sessionId)
    return sessionIds
  }

  stop(): void {
    clearInterval(this.#timer)
  }

  /**
   * A clock that is set forward has not let the time pass: sessions go no earlier than the process has lived to see
   * their end. One that is set back puts the end off.
   */
  #nowMs(): number {
    const { clock, steadyClock } = this.#options
    return Math.min(clock(), steadyClock() + this.#steadyOffsetMs)
  }

  /** @returns undefined: they may be deleted */
  async #hold(nowMs: number): Promise<HeldSweep | undefined> {
    const { sessions, expired } = await this.#store.countSessions(Math.min(nowMs, this.#unseenUntilMs))
    const before = this.#held
    // New sessions make those that wait a smaller share, and are no reason to delete them.
    const most = this.#sinceMs === undefined ? Math.max(HANDFUL, sessions * MOST_SHARE) : HANDFUL
    if (expired <= most) this.#release()
    else {
      const steadyMs = this.#options.steadyClock()
      this.#sinceMs ??= steadyMs
      const restMs = this.#sinceMs + HOLD_MS - steadyMs
      this.#held = restMs > 0 ? { sessions, expired, restMs } : undefined
    }
    if (this.#held && !before) this.#hooks.onSweepHeld(this.#held)
    return this.#held
  }

  /** Nothing waits any more: the next that has to, waits anew. */
  #release(): void {
    this.#sinceMs = undefined
    this.#held = undefined
  }

  async #sweepOrTell(): Promise<void> {
    try {
      await this.sweep(0)
    } catch (error) {
      this.#hooks.onSweepFailed(toProxyError(error))
    }
  }
}

/** For `/health` and the log. */
export function describeHeld({ expired, sessions, restMs }: HeldSweep): string {
  const minutes = Math.ceil(restMs / 60_000)
  return (
    `The time to live of ${expired} of ${sessions} sessions was over before the proxy started, so many as if the ` +
    `clock were wrong: they are deleted in ${minutes} min, or now with POST /admin/sweep {"at_most": ${expired}}. If the ` +
    'clock is wrong, stop the proxy, and set the clock before it starts again.'
  )
}
