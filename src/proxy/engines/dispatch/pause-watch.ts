/** Watches over a pause, so that a forgotten one does not look like a healthy proxy whose calls hang. */
import type { Clock } from '../../../base/clock.ts'
import type { Logger } from '../../../base/logger.ts'

export interface PauseWatchOptions {
  clock: Clock
  /** How long a pause may last before calls are refused; 0 for without end. */
  limitMs: number
  logger?: Logger | undefined
  /** The limit is reached. */
  onLimit(): void
}

/** When the log says for the first time that a pause is still on; each later line comes after twice the time. */
const FIRST_REMINDER_MS = 60_000

export class PauseWatch {
  readonly #options: PauseWatchOptions
  #current: { beganMs: number; sinceEpochMs: number } | undefined
  /** Whether the pause has lasted longer than it may. */
  isOverLimit = false
  #cancelLimit: (() => void) | undefined
  #cancelReminder: (() => void) | undefined

  constructor(options: PauseWatchOptions) {
    this.#options = options
  }

  /** When the pause began, in milliseconds since the epoch; undefined while there is none. */
  get sinceEpochMs(): number | undefined {
    return this.#current?.sinceEpochMs
  }

  /** Begins a pause. During one it starts the limit anew: whoever asks again has not forgotten it. */
  begin(): void {
    const { clock, limitMs, logger } = this.#options
    this.isOverLimit = false
    this.#cancelLimit?.()
    if (limitMs > 0) this.#cancelLimit = clock.after(limitMs, () => this.#reachLimit())
    if (this.#current !== undefined) return
    this.#current = { beganMs: clock.nowMs(), sinceEpochMs: Date.now() }
    logger?.info({ limit_ms: limitMs }, 'paused: new calls wait until POST /admin/resume')
    this.#remindAfter(FIRST_REMINDER_MS)
  }

  end(): void {
    if (this.#current === undefined) return
    this.#options.logger?.info({ paused_ms: this.#pausedMs() }, 'resumed')
    this.close()
  }

  /** Leaves no timer behind. */
  close(): void {
    this.#current = undefined
    this.isOverLimit = false
    this.#cancelLimit?.()
    this.#cancelReminder?.()
  }

  #reachLimit(): void {
    this.isOverLimit = true
    this.#options.logger?.warn(
      { paused_ms: this.#pausedMs() },
      'paused for longer than --pause-limit: calls are refused until POST /admin/resume',
    )
    this.#options.onLimit()
  }

  #remindAfter(delayMs: number): void {
    this.#cancelReminder = this.#options.clock.after(delayMs, () => {
      this.#options.logger?.warn({ paused_ms: this.#pausedMs() }, 'still paused')
      this.#remindAfter(2 * delayMs)
    })
  }

  #pausedMs(): number {
    return Math.round(this.#options.clock.nowMs() - this.#current!.beganMs)
  }
}
