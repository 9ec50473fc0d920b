/** Monitors a pause, so that a forgotten one does not look like a healthy proxy whose requests hang. */
import type { Clock } from '../../../base/clock.ts'
import { logEvent } from '../../../base/log-events.ts'
import type { Logger } from '../../../base/logger.ts'

export interface PauseWatchOptions {
  clock: Clock
  /** The longest pause before requests are rejected; 0: unlimited. */
  limitMs: number
  logger?: Logger | undefined
  /** Called when the pause exceeds the limit. */
  onLimit(): void
}

/** The delay of the first reminder in the log; the delay doubles with each reminder. */
const FIRST_REMINDER_MS = 60_000

export class PauseWatch {
  readonly #options: PauseWatchOptions
  #current: { beganMs: number; sinceEpochMs: number } | undefined
  /** Whether the pause exceeds its limit. */
  isOverLimit = false
  #cancelLimit: (() => void) | undefined
  #cancelReminder: (() => void) | undefined

  constructor(options: PauseWatchOptions) {
    this.#options = options
  }

  /** The start of the pause, in milliseconds since the epoch; undefined while there is none. */
  get sinceEpochMs(): number | undefined {
    return this.#current?.sinceEpochMs
  }

  /** Begins a pause. During a pause it restarts the limit, since the caller has not forgotten the pause. */
  begin(): void {
    const { clock, limitMs, logger } = this.#options
    this.isOverLimit = false
    this.#cancelLimit?.()
    if (limitMs > 0) this.#cancelLimit = clock.after(limitMs, () => this.#reachLimit())
    if (this.#current !== undefined) return
    this.#current = { beganMs: clock.nowMs(), sinceEpochMs: Date.now() }
    logEvent(logger, 'paused', { limit_ms: limitMs })
    this.#remindAfter(FIRST_REMINDER_MS)
  }

  end(): void {
    if (this.#current === undefined) return
    logEvent(this.#options.logger, 'resumed', { paused_ms: this.#getPausedMs() })
    this.close()
  }

  /** Ends the pause silently and cancels all timers. */
  close(): void {
    this.#current = undefined
    this.isOverLimit = false
    this.#cancelLimit?.()
    this.#cancelReminder?.()
  }

  #reachLimit(): void {
    this.isOverLimit = true
    logEvent(this.#options.logger, 'pause_limit_reached', { paused_ms: this.#getPausedMs() })
    this.#options.onLimit()
  }

  #remindAfter(delayMs: number): void {
    this.#cancelReminder = this.#options.clock.after(delayMs, () => {
      logEvent(this.#options.logger, 'still_paused', { paused_ms: this.#getPausedMs() })
      this.#remindAfter(2 * delayMs)
    })
  }

  #getPausedMs(): number {
    return Math.round(this.#options.clock.nowMs() - this.#current!.beganMs)
  }
}
