/**
 * Spreads the API calls of one AgentCore endpoint evenly: starts, stops and polls share one quota of calls per second.
 * Kinds of calls alternate, and within a kind they are granted in order of arrival, so that neither a thousand polls
 * nor a thousand starts delay the stop of a session. No interval of one second contains more calls than the rate.
 */
import { waitInQueue } from '../../wait-in-queue.ts'

export type ApiRequestKind = 'start' | 'stop' | 'poll'

export interface LimiterClock {
  nowMs(): number
  /** Schedules a task. @returns a function that cancels it */
  after(delayMs: number, task: () => void): () => void
}

const REAL_CLOCK: LimiterClock = {
  nowMs: () => performance.now(),
  after(delayMs, task) {
    const timer = setTimeout(task, delayMs)
    return () => clearTimeout(timer)
  },
}

/**
 * The maximum delay of a timer for which later calls compensate, so that a busy machine still nearly reaches the rate.
 */
const CATCH_UP_MS = 100
const WINDOW_MS = 1_000
/** Reports within this time count as one event, because concurrent calls are throttled together. */
const THROTTLE_EVENT_MS = 1_000
/** The fraction of the full rate by which the rate recovers per second: from half to full in 10 s. */
const RECOVERY_PER_S = 0.05
/** The lowest fraction of the full rate after throttling. */
const MIN_RATE_FRACTION = 1 / 32

/** A limiter whose rate halves when the service throttles a call, and then recovers. */
export class RateLimiter {
  readonly #clock: LimiterClock
  readonly #waiting: Record<ApiRequestKind, Set<() => void>> = {
    stop: new Set(),
    start: new Set(),
    poll: new Set(),
  }
  /** The order of the kinds; the first one that has waiting calls is next. */
  #kindOrder: ApiRequestKind[] = ['stop', 'start', 'poll']
  #fullRate: number
  #rate: number
  #rateAtMs: number
  #throttledAtMs = Number.NEGATIVE_INFINITY
  #nextAtMs = Number.NEGATIVE_INFINITY
  /** The times of the latest grants, as many as one second may contain. */
  #grantedAtMs: number[] = []
  #timer: (() => void) | undefined

  /** @param perSecond calls per second without throttling */
  constructor(perSecond: number, clock: LimiterClock = REAL_CLOCK) {
    this.#clock = clock
    this.#fullRate = perSecond
    this.#rate = perSecond
    this.#rateAtMs = clock.nowMs()
  }

  /** The current rate in calls per second. */
  get rate(): number {
    const seconds = (this.#clock.nowMs() - this.#rateAtMs) / 1000
    return Math.min(this.#fullRate, this.#rate + seconds * RECOVERY_PER_S * this.#fullRate)
  }

  /** Lowers the maximum rate permanently. */
  lowerTo(perSecond: number): void {
    this.#fullRate = Math.min(this.#fullRate, perSecond)
  }

  /** Waits until the call may be made. @throws `signal.reason`; the call is then not counted */
  acquire(kind: ApiRequestKind, signal: AbortSignal): Promise<void> {
    const turn = waitInQueue(this.#waiting[kind], signal)
    this.#schedule()
    return turn
  }

  /** Reports that the service has throttled a call. */
  reportThrottled(): void {
    const nowMs = this.#clock.nowMs()
    if (nowMs - this.#throttledAtMs < THROTTLE_EVENT_MS) return
    this.#rate = Math.max(this.#fullRate * MIN_RATE_FRACTION, this.rate / 2)
    this.#rateAtMs = nowMs
    this.#throttledAtMs = nowMs
  }

  #schedule(): void {
    if (this.#timer !== undefined || this.#nextKind() === undefined) return
    // Timers count whole milliseconds and may fire slightly early; then the task schedules itself again.
    const delayMs = Math.max(0, Math.ceil(this.#dueAtMs - this.#clock.nowMs()))
    this.#timer = this.#clock.after(delayMs, () => {
      this.#timer = undefined
      if (this.#clock.nowMs() >= this.#dueAtMs) this.#grant()
      this.#schedule()
    })
  }

  /**
   * The earliest time of the next call: after the pacing interval, and at least one second after the call that is
   * `fullRate` calls before it.
   */
  get #dueAtMs(): number {
    const leaves = this.#grantedAtMs.at(-Math.ceil(this.#fullRate)) ?? Number.NEGATIVE_INFINITY
    return Math.max(this.#nextAtMs, leaves + WINDOW_MS)
  }

  #grant(): void {
    const kind = this.#nextKind()
    if (kind === undefined) return
    const [first] = this.#waiting[kind]
    this.#waiting[kind].delete(first!)
    this.#kindOrder = [...this.#kindOrder.filter((other) => other !== kind), kind]
    const nowMs = this.#clock.nowMs()
    this.#nextAtMs = Math.max(this.#nextAtMs, nowMs - CATCH_UP_MS) + 1000 / this.rate
    this.#grantedAtMs = [...this.#grantedAtMs, nowMs].slice(-Math.ceil(this.#fullRate))
    first!()
  }

  #nextKind(): ApiRequestKind | undefined {
    return this.#kindOrder.find((kind) => this.#waiting[kind].size > 0)
  }
}

/** The limiters by endpoint. All runners of this process share the quota of an endpoint. */
const limiters = new Map<string, RateLimiter>()

/** Returns the limiter of an endpoint, one for the process; the lowest requested rate applies. */
export function getRateLimiter(endpoint: string, perSecond: number, clock?: LimiterClock): RateLimiter {
  const existing = limiters.get(endpoint)
  existing?.lowerTo(perSecond)
  if (existing !== undefined) return existing
  const limiter = new RateLimiter(perSecond, clock)
  limiters.set(endpoint, limiter)
  return limiter
}
