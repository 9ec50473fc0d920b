/**
 * Keeps a wrong clock from deleting everything. A proxy that starts with a clock that is weeks ahead finds that the
 * times to live of most sessions are over. What looks like that waits for an hour, which is time for somebody to see
 * it.
 */
import type { SessionCount } from '../../store/port/turn-store.ts'

/** Of all sessions: more than this share does not run out at once, as a rule. */
const MOST_SHARE = 0.25
/** Fewer than these are deleted whatever their share. */
const HANDFUL = 20
export const HOLD_MS = 3_600_000

/** A sweep that waits. */
export interface HeldSweep extends Pick<SessionCount, 'sessions' | 'expired'> {
  /** How long it still waits. */
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
   * @param nowMs of a clock that nobody sets
   * @returns undefined: the sweep may be made
   */
  check(count: Pick<SessionCount, 'sessions' | 'expired'>, nowMs: number): HeldSweep | undefined {
    if (count.expired <= Math.max(HANDFUL, count.sessions * MOST_SHARE)) {
      this.release()
      return undefined
    }
    this.#sinceMs ??= nowMs
    const restMs = this.#sinceMs + HOLD_MS - nowMs
    this.#held = restMs > 0 ? { sessions: count.sessions, expired: count.expired, restMs } : undefined
    return this.#held
  }

  /** The sweep was made, or is not needed: the next large one waits anew. */
  release(): void {
    this.#sinceMs = undefined
    this.#held = undefined
  }
}

/** For `/health` and the log. */
export function describeHeld({ expired, sessions, restMs }: HeldSweep): string {
  const minutes = Math.ceil(restMs / 60_000)
  return (
    `The time to live of ${expired} of ${sessions} sessions is over, so many at once as if the clock were wrong: ` +
    `they are deleted in ${minutes} min, or now with POST /admin/sweep {"at_most": ${expired}}. If the clock is wrong, ` +
    'stop the proxy, and set the clock before it starts again.'
  )
}
