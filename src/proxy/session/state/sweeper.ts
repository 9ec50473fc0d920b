/** Removes sessions whose time to live is over: now and then by itself, and when somebody asks for it. */
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import type { TurnStore } from '../../store/port/turn-store.ts'
import type { SessionsOptions } from './session-records.ts'
import { type HeldSweep, SweepGuard, UNSWEPT_MS } from './sweep-guard.ts'

export interface SweeperHooks {
  /** The session is gone from the store. */
  onSwept(sessionId: string): void
  /** A sweep failed; the next one tries again. */
  onSweepFailed(error: ProxyError): void
  /** So many sessions had run out before the start that they wait. Once, until they have gone. */
  onSweepHeld(held: HeldSweep): void
}

type SweeperOptions = Pick<Required<SessionsOptions>, 'clock' | 'steadyClock' | 'sweepIntervalMs'>

export class Sweeper {
  readonly #store: Pick<TurnStore, 'countSessions' | 'sweep'>
  readonly #hooks: SweeperHooks
  readonly #options: SweeperOptions
  /** Between the two clocks at the beginning. */
  readonly #steadyOffsetMs: number
  /** What ran out later has run out under this process's eyes, or may have. */
  readonly #unseenUntilMs: number
  readonly #guard = new SweepGuard()
  readonly #timer: NodeJS.Timeout

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
    return this.#guard.held
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
    if (!held) this.#guard.release()
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

  async #hold(nowMs: number): Promise<HeldSweep | undefined> {
    const unseen = await this.#store.countSessions(Math.min(nowMs, this.#unseenUntilMs))
    const before = this.#guard.held
    const held = this.#guard.check(unseen, this.#options.steadyClock())
    if (held && !before) this.#hooks.onSweepHeld(held)
    return held
  }

  async #sweepOrTell(): Promise<void> {
    try {
      await this.sweep(0)
    } catch (error) {
      this.#hooks.onSweepFailed(toProxyError(error))
    }
  }
}
