/**
 * Keeps a wrong clock from deleting everything. While a proxy runs it knows how much time passes, whatever happens to
 * the clock; whether the clock was right at its start it does not know. One that starts with a clock that is weeks ahead
 * finds that most sessions had run out before. These wait for an hour, which is time for somebody to see it.
 */
import type { SessionCount } from '../../store/port/turn-store.ts'

/** Of all sessions: more than this share does not run out while no proxy runs, as a rule. */
const MOST_SHARE = 0.25
/** Fewer than these are deleted whatever their share. */
const HANDFUL = 20
const HOLD_MS = 3_600_000
/**
 * What ran out so shortly before the start had no sweep yet, and a clock that is wrong is wrong by more. A proxy that is
 * killed often would hold what lives for minutes otherwise, each time for an hour.
 */
export const UNSWEPT_MS = 300_000

type Counted = Pick<SessionCount, 'sessions' | 'expired'>

/** Sessions that wait: `expired`. */
export interface HeldSweep extends Counted {
  /** How long they still wait. */
  readonly restMs: number
}

export class SweepGuard {
  #sinceMs: number | undefined
  #held: HeldSweep | undefined

  /** What waits, as {@link check} found it last. */
  get held(): HeldSweep | undefined {
    return this.#held
  }

  /**
   * @param count of those that ran out before the start
   * @param nowMs of a clock that nobody sets
   * @returns undefined: they may be deleted
   */
  check({ sessions, expired }: Counted, nowMs: number): HeldSweep | undefined {
    // New sessions make those that wait a smaller share, and are no reason to delete them.
    const most = this.#sinceMs === undefined ? Math.max(HANDFUL, sessions * MOST_SHARE) : HANDFUL
    if (expired <= most) {
      this.release()
      return undefined
    }
    this.#sinceMs ??= nowMs
    const restMs = this.#sinceMs + HOLD_MS - nowMs
    this.#held = restMs > 0 ? { sessions, expired, restMs } : undefined
    return this.#held
  }

  /** Nothing waits any more: the next that has to, waits anew. */
  release(): void {
    this.#sinceMs = undefined
    this.#held = undefined
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
