/**
 * The work of new calls, in slices. Each agent sends its whole conversation, which takes milliseconds to read; of hundreds
 * that begin at once it takes seconds, and were it done in one turn of the event loop, nobody would be accepted and no
 * probe be answered meanwhile. So a turn begins steps of calls for a while only. Callers take turns, and of one caller
 * the first to come is served first.
 */
import { FairQueue } from '../../../base/fair-queue.ts'

/** Of one turn of the event loop; a step that has begun is done. */
const SLICE_MS = 20

interface TimeSlicesOptions {
  sliceMs?: number
  nowMs?: () => number
}

export class TimeSlices {
  readonly #sliceMs: number
  readonly #nowMs: () => number
  /** First steps of calls, and those of calls that have begun: these hold memory, and go first. */
  readonly #first = new FairQueue<() => void>()
  readonly #further = new FairQueue<() => void>()
  /** When this turn of the loop began its first step; undefined: it has begun none. */
  #begunAtMs: number | undefined

  constructor({ sliceMs = SLICE_MS, nowMs = () => performance.now() }: TimeSlicesOptions = {}) {
    this.#sliceMs = sliceMs
    this.#nowMs = nowMs
  }

  /** Before the first step of a call that takes time. @returns undefined: it may be done now; else when it may be */
  first(account: string): Promise<void> | undefined {
    return this.#next(this.#first, account)
  }

  /** Before each further one. */
  further(account: string): Promise<void> | undefined {
    return this.#next(this.#further, account)
  }

  #next(steps: FairQueue<() => void>, account: string): Promise<void> | undefined {
    if (!this.#isWaitedFor && this.#hasTime()) return undefined
    return new Promise((resolve) => steps.push(account, resolve))
  }

  get #isWaitedFor(): boolean {
    return this.#first.size + this.#further.size > 0
  }

  #hasTime(): boolean {
    if (this.#begunAtMs === undefined) {
      this.#begunAtMs = this.#nowMs()
      setImmediate(() => this.#nextTurn())
    }
    return this.#nowMs() - this.#begunAtMs < this.#sliceMs
  }

  #nextTurn(): void {
    this.#begunAtMs = undefined
    if (this.#isWaitedFor) this.#begin()
  }

  #begin(): void {
    if (!this.#isWaitedFor || !this.#hasTime()) return
    const step = this.#further.shift() ?? this.#first.shift()
    step?.()
    // The step is done in microtasks, and all of those come before the next tick.
    queueMicrotask(() => process.nextTick(() => this.#begin()))
  }
}
