/**
 * The calls of one AgentCore endpoint, spread evenly: starts, stops and polls share one quota of calls a second. Kinds
 * of calls take turns, and within a kind the first to ask goes first, so that neither a thousand polls keep a session
 * from being stopped, nor a thousand starts. No second, wherever it begins, has more calls than the rate.
 */
import { waitInQueue } from '../../wait-in-queue.ts'

export type CallKind = 'start' | 'stop' | 'poll'

export interface LimiterClock {
  nowMs(): number
  /** @returns takes the task back */
  after(delayMs: number, task: () => void): () => void
}

const REAL_CLOCK: LimiterClock = {
  nowMs: () => performance.now(),
  after(delayMs, task) {
    const timer = setTimeout(task, delayMs)
    return () => clearTimeout(timer)
  },
}

/** A timer that fires late is made up for by so much, so that a busy machine still comes near the rate. */
const CATCH_UP_MS = 100
const WINDOW_MS = 1_000
/** Calls that were on their way together are throttled together, which is one event. */
const ONE_EVENT_MS = 1_000
/** From half of the rate to all of it in 10 s. */
const RECOVERY_PER_S = 0.05
/** The least part of the rate that is left. */
const SLOWEST = 1 / 32

/** Grants calls at a rate that halves when the service throttles, and recovers. */
export class RateLimiter {
  readonly #clock: LimiterClock
  readonly #waiting: Record<CallKind, Set<() => void>> = {
    stop: new Set(),
    start: new Set(),
    poll: new Set(),
  }
  /** Whose turn it is, the first one that has something to do. */
  #turns: CallKind[] = ['stop', 'start', 'poll']
  #fullRate: number
  #rate: number
  #rateAtMs: number
  #throttledAtMs = Number.NEGATIVE_INFINITY
  #nextAtMs = Number.NEGATIVE_INFINITY
  /** When the last calls were granted, as many as a second may have. */
  #grantedAtMs: number[] = []
  #timer: (() => void) | undefined

  /** @param perSecond calls a second, when nothing is throttled */
  constructor(perSecond: number, clock: LimiterClock = REAL_CLOCK) {
    this.#clock = clock
    this.#fullRate = perSecond
    this.#rate = perSecond
    this.#rateAtMs = clock.nowMs()
  }

  /** Calls a second that are granted now. */
  get rate(): number {
    const seconds = (this.#clock.nowMs() - this.#rateAtMs) / 1000
    return Math.min(this.#fullRate, this.#rate + seconds * RECOVERY_PER_S * this.#fullRate)
  }

  /** Never more than this from now on. */
  lowerTo(perSecond: number): void {
    this.#fullRate = Math.min(this.#fullRate, perSecond)
  }

  /** Resolves when the call may be made. @throws `signal.reason`; the call is not counted then */
  acquire(kind: CallKind, signal: AbortSignal): Promise<void> {
    const turn = waitInQueue(this.#waiting[kind], signal)
    this.#schedule()
    return turn
  }

  /** To be called when the service has throttled a call. */
  throttled(): void {
    const nowMs = this.#clock.nowMs()
    if (nowMs - this.#throttledAtMs < ONE_EVENT_MS) return
    this.#rate = Math.max(this.#fullRate * SLOWEST, this.rate / 2)
    this.#rateAtMs = nowMs
    this.#throttledAtMs = nowMs
  }

  #schedule(): void {
    if (this.#timer !== undefined || this.#nextKind() === undefined) return
    // Timers count whole milliseconds, and may fire a little early: then once more.
    const delayMs = Math.max(0, Math.ceil(this.#dueAtMs - this.#clock.nowMs()))
    this.#timer = this.#clock.after(delayMs, () => {
      this.#timer = undefined
      if (this.#clock.nowMs() >= this.#dueAtMs) this.#grant()
      this.#schedule()
    })
  }

  /** When the next call may be made: in its turn, and a second after the call that leaves room for it. */
  get #dueAtMs(): number {
    const leaves = this.#grantedAtMs.at(-Math.ceil(this.#fullRate)) ?? Number.NEGATIVE_INFINITY
    return Math.max(this.#nextAtMs, leaves + WINDOW_MS)
  }

  #grant(): void {
    const kind = this.#nextKind()
    if (kind === undefined) return
    const [first] = this.#waiting[kind]
    this.#waiting[kind].delete(first!)
    this.#turns = [...this.#turns.filter((other) => other !== kind), kind]
    const nowMs = this.#clock.nowMs()
    this.#nextAtMs = Math.max(this.#nextAtMs, nowMs - CATCH_UP_MS) + 1000 / this.rate
    this.#grantedAtMs = [...this.#grantedAtMs, nowMs].slice(-Math.ceil(this.#fullRate))
    first!()
  }

  #nextKind(): CallKind | undefined {
    return this.#turns.find((kind) => this.#waiting[kind].size > 0)
  }
}

/** By the endpoint: the quota is the service's, however many runners of this process share it. */
const limiters = new Map<string, RateLimiter>()

/** The limiter of an endpoint, the same for all of this process; the lowest rate that was asked for counts. */
export function getRateLimiter(endpoint: string, perSecond: number, clock?: LimiterClock): RateLimiter {
  const known = limiters.get(endpoint)
  known?.lowerTo(perSecond)
  if (known !== undefined) return known
  const limiter = new RateLimiter(perSecond, clock)
  limiters.set(endpoint, limiter)
  return limiter
}
