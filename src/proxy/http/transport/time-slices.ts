/**
 * Cooperative scheduling of new requests. Each request contains a whole conversation, which takes milliseconds to
 * parse. If hundreds begin at the same time, parsing all of them in one iteration of the event loop would take seconds,
 * in which no connection is accepted and no health check served. Therefore each iteration starts steps of requests only
 * for a limited time. Accounts take turns; the requests of one account are served in order of arrival.
 */
import { FairQueue } from '../../../base/fair-queue.ts'

/** The time per iteration of the event loop in which steps are started; a step that has begun is completed. */
const SLICE_MS = 20

interface TimeSliceSchedulerOptions {
  sliceMs?: number
  nowMs?: () => number
}

/** A scheduler of the steps of requests. */
export class TimeSliceScheduler {
  readonly #sliceMs: number
  readonly #nowMs: () => number
  /** The first steps of requests that wait. */
  readonly #first = new FairQueue<() => void>()
  /** The further steps of requests that have begun. They precede first steps, because these requests occupy memory. */
  readonly #further = new FairQueue<() => void>()
  /** The time at which this iteration started its first step; undefined: it has not started one. */
  #begunAtMs: number | undefined

  constructor({ sliceMs = SLICE_MS, nowMs = () => performance.now() }: TimeSliceSchedulerOptions = {}) {
    this.#sliceMs = sliceMs
    this.#nowMs = nowMs
  }

  /**
   * Schedules the first step of a request.
   * @returns undefined if it may run now, else a promise that resolves when it may
   */
  waitForFirst(account: string): Promise<void> | undefined {
    return this.#next(this.#first, account)
  }

  /**
   * Schedules a further step of a request.
   * @returns undefined if it may run now, else a promise that resolves when it may
   */
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
    // The step runs in microtasks, which all complete before the next tick.
    queueMicrotask(() => process.nextTick(() => this.#begin()))
  }
}
