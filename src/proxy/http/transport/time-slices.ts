/**
 * Cooperative scheduling of new requests. Each agent sends its whole conversation, which takes milliseconds to parse;
 * hundreds that begin at once take seconds, and in one iteration of the event loop no connection would be accepted and
 * no probe answered meanwhile. So each iteration starts steps of requests only for a limited time. Accounts are served
 * in turn, the requests of one account in order of arrival.
 */
import { FairQueue } from '../../../base/fair-queue.ts'

/** The time of one iteration of the event loop; a step that has begun is completed. */
const SLICE_MS = 20

interface TimeSlicesOptions {
  sliceMs?: number
  nowMs?: () => number
}

export class TimeSlices {
  readonly #sliceMs: number
  readonly #nowMs: () => number
  /**
   * The first steps of requests, and the further steps of those that have begun: these use memory, and have precedence.
   */
  readonly #first = new FairQueue<() => void>()
  readonly #further = new FairQueue<() => void>()
  /** The time at which this iteration began its first step; undefined: it has begun none. */
  #begunAtMs: number | undefined

  constructor({ sliceMs = SLICE_MS, nowMs = () => performance.now() }: TimeSlicesOptions = {}) {
    this.#sliceMs = sliceMs
    this.#nowMs = nowMs
  }

  /** Schedules the first step of a request. @returns undefined: it may run now; else a promise of when it may */
  waitForFirst(account: string): Promise<void> | undefined {
    return this.#next(this.#first, account)
  }

  /** Schedules a further step. */
  waitForNext(account: string): Promise<void> | undefined {
    return this.#next(this.#further, account)
  }

  #next(steps: FairQueue<() => void>, account: string): Promise<void> | undefined {
    if (!this.#hasWaiting && this.#hasTime()) return undefined
    return new Promise((resolve) => steps.push(account, resolve))
  }

  get #hasWaiting(): boolean {
    return this.#first.size + this.#further.size > 0
  }

  #hasTime(): boolean {
    if (this.#begunAtMs === undefined) {
      this.#begunAtMs = this.#nowMs()
      setImmediate(() => this.#startNextSlice())
    }
    return this.#nowMs() - this.#begunAtMs < this.#sliceMs
  }

  #startNextSlice(): void {
    this.#begunAtMs = undefined
    if (this.#hasWaiting) this.#begin()
  }

  #begin(): void {
    if (!this.#hasWaiting || !this.#hasTime()) return
    const step = this.#further.shift() ?? this.#first.shift()
    step?.()
    // The step runs in microtasks, all of which precede the next tick.
    queueMicrotask(() => process.nextTick(() => this.#begin()))
  }
}
