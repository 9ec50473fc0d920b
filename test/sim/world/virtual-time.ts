/**
 * Time that advances only when no task is due. It replaces the timers, clocks and random numbers of the whole
 * process, because the libraries below the proxy have timers too, and those of `ws` and `undici` are part of the test.
 *
 * Between two tasks, all work that the first one has started runs to completion: promises, `process.nextTick`, and
 * Node's own work in its next event-loop iteration. No real I/O is in progress, so the order is deterministic.
 */
import crypto from 'node:crypto'
import { syncBuiltinESMExports } from 'node:module'
import timers from 'node:timers/promises'
import { createSeededRandom } from '../../../src/embedded/engine/random.ts'
import { Machine } from './machine.ts'

/** An arbitrary but constant time: 2026-01-01. */
const EPOCH_MS = 1_767_225_600_000

const real = {
  setTimeout: globalThis.setTimeout,
  clearTimeout: globalThis.clearTimeout,
  setInterval: globalThis.setInterval,
  clearInterval: globalThis.clearInterval,
  setImmediate: globalThis.setImmediate,
  clearImmediate: globalThis.clearImmediate,
  dateNow: Date.now,
  random: Math.random,
  performanceNow: performance.now,
  signalTimeout: AbortSignal.timeout,
  randomUUID: crypto.randomUUID,
  sleep: timers.setTimeout,
  setImmediatePromise: timers.setImmediate,
}

let installed: VirtualTime | undefined

/** The callback of undici's timer for all of its connections, which must outlive the machine that set it. */
const SHARED_CALLBACK = 'onTick'

interface SleepOptions {
  signal?: AbortSignal
}

/** The handle that `setTimeout` and similar functions return. */
class VirtualTimer {
  readonly owner: Machine | null
  readonly #delayMs: number
  readonly #run: () => void
  readonly #repeats: boolean
  #entry: Entry | undefined
  #hasRef = true

  constructor(delayMs: number, run: () => void, { repeats = false, isShared = false } = {}) {
    this.owner = isShared ? null : (Machine.current ?? null)
    this.#delayMs = delayMs
    this.#run = run
    this.#repeats = repeats
    this.#schedule()
  }

  ref(): this {
    this.#hasRef = true
    return this
  }

  unref(): this {
    this.#hasRef = false
    return this
  }

  hasRef(): boolean {
    return this.#hasRef
  }

  refresh(): this {
    this.close()
    this.#schedule()
    return this
  }

  close(): this {
    if (this.#entry) this.#entry.task = undefined
    this.#entry = undefined
    return this
  }

  [Symbol.dispose](): void {
    this.close()
  }

  #schedule(): void {
    this.#entry = installed?.after(
      this.#delayMs,
      () => {
        this.#entry = undefined
        if (this.#repeats) this.#schedule()
        this.#run()
      },
      this.owner,
      this,
    )
  }
}

interface Entry {
  atMs: number
  seq: number
  task: (() => void) | undefined
  owner: Machine | undefined
  timer: VirtualTimer | undefined
}

export class VirtualTime {
  /** A binary heap, ordered by time, then by creation. */
  readonly #heap: Entry[] = []
  #nowMs = 0
  #lastSeq = 0
  #tasks = 0

  get nowMs(): number {
    return this.#nowMs
  }

  /** The number of tasks that have run. */
  get tasks(): number {
    return this.#tasks
  }

  /** Returns the wall clock of a machine. */
  wallMs(machine = Machine.current): number {
    return EPOCH_MS + Math.floor(this.#nowMs) + (machine?.skewMs ?? 0)
  }

  /**
   * Schedules a task.
   * @param owner its death removes the task; null if the task has no owner
   */
  after(
    delayMs: number,
    task: () => void,
    owner: Machine | null | undefined = Machine.current,
    timer?: VirtualTimer,
  ): Entry {
    this.#lastSeq += 1
    const entry = { atMs: this.#nowMs + delayMs, seq: this.#lastSeq, task, owner: owner ?? undefined, timer }
    push(this.#heap, entry)
    return entry
  }

  /**
   * Counts the timers that the machine has not cleared and that would keep its process alive.
   */
  countTimers(machine: Machine): number {
    return this.#heap.filter(
      ({ atMs, task, owner, timer }) =>
        task !== undefined && owner === machine && timer?.hasRef() && atMs > this.#nowMs,
    ).length
  }

  /** Advances time until `isOver`, which is checked after each task, or `untilMs`. */
  async run(untilMs: number, isOver: () => boolean = () => false): Promise<void> {
    await settle()
    while (!isOver()) {
      const next = this.#heap[0]
      if (next === undefined || next.atMs > untilMs) break
      pop(this.#heap)
      if (next.task === undefined || next.owner?.isDead) continue
      this.#nowMs = Math.max(this.#nowMs, next.atMs)
      this.#tasks += 1
      if (next.owner) next.owner.run(next.task)
      else next.task()
      await settle()
    }
    if (!isOver() && Number.isFinite(untilMs)) this.#nowMs = Math.max(this.#nowMs, untilMs)
  }

  /**
   * Replaces the process's clocks, timers and random numbers.
   * @returns a function that restores them
   */
  install(seed: number): () => void {
    const random = createSeededRandom(seed)
    const timer = (delayMs: number, run: () => void, options?: object) =>
      new VirtualTimer(delayMs, run, options)
    installed = this
    const set =
      (repeats: boolean) =>
      (task: (...args: unknown[]) => void, delayMs = 0, ...args: unknown[]) =>
        timer(clampDelayMs(delayMs), () => task(...args), {
          repeats,
          isShared: task.name === SHARED_CALLBACK,
        })
    const clear = (original: (handle: never) => void) => (handle: unknown) =>
      handle instanceof VirtualTimer ? void handle.close() : original(handle as never)
    const signalAfter = (delayMs: number) => {
      const controller = new AbortController()
      timer(delayMs, () => controller.abort(new DOMException('time is up', 'TimeoutError'))).unref()
      return controller.signal
    }
    const sleep = (delayMs: number, value?: unknown, options: SleepOptions = {}) =>
      new Promise((resolve, reject) => {
        const { signal } = options
        if (signal?.aborted) return reject(createAbortError(signal))
        const sleeper = timer(delayMs, () => {
          signal?.removeEventListener('abort', onAbort)
          resolve(value)
        })
        const onAbort = () => {
          sleeper.close()
          reject(createAbortError(signal!))
        }
        signal?.addEventListener('abort', onAbort, { once: true })
      })
    Object.assign(globalThis, {
      setTimeout: set(false),
      setInterval: set(true),
      setImmediate: (task: (...args: unknown[]) => void, ...args: unknown[]) => timer(0, () => task(...args)),
      clearTimeout: clear(real.clearTimeout as never),
      clearInterval: clear(real.clearInterval as never),
      clearImmediate: clear(real.clearImmediate as never),
    })
    Date.now = () => this.wallMs()
    Math.random = random
    performance.now = () => this.#nowMs
    AbortSignal.timeout = signalAfter
    crypto.randomUUID = () => createUuid(random)
    Object.assign(timers, {
      setTimeout: (delayMs?: number, value?: unknown, options?: SleepOptions) =>
        sleep(clampDelayMs(delayMs), value, options),
      setImmediate: (value?: unknown, options?: SleepOptions) => sleep(0, value, options),
    })
    syncBuiltinESMExports()
    return restore
  }
}

/** Resolves when all work in progress has completed. */
export function settle(): Promise<void> {
  return new Promise((resolve) => real.setImmediate(resolve))
}

/** Returns milliseconds of the real clock. */
export function realNowMs(): number {
  return real.performanceNow.call(performance)
}

function restore(): void {
  const { setTimeout, setInterval, setImmediate, clearTimeout, clearInterval, clearImmediate } = real
  Object.assign(globalThis, {
    setTimeout,
    setInterval,
    setImmediate,
    clearTimeout,
    clearInterval,
    clearImmediate,
  })
  Date.now = real.dateNow
  Math.random = real.random
  performance.now = real.performanceNow
  AbortSignal.timeout = real.signalTimeout
  crypto.randomUUID = real.randomUUID
  Object.assign(timers, { setTimeout: real.sleep, setImmediate: real.setImmediatePromise })
  syncBuiltinESMExports()
}

function createAbortError({ reason }: AbortSignal): Error {
  return new DOMException('The operation was aborted', { name: 'AbortError', cause: reason })
}

function createUuid(random: () => number): ReturnType<typeof crypto.randomUUID> {
  const hex = Array.from({ length: 32 }, () => Math.floor(random() * 16).toString(16)).join('')
  return `${hex.slice(0, 8)}-${hex.slice(8, 12)}-4${hex.slice(13, 16)}-8${hex.slice(17, 20)}-${hex.slice(20)}`
}

function isBefore(a: Entry, b: Entry): boolean {
  return a.atMs < b.atMs || (a.atMs === b.atMs && a.seq < b.seq)
}

function push(heap: Entry[], entry: Entry): void {
  let index = heap.length
  heap.push(entry)
  while (index > 0) {
    const parent = (index - 1) >> 1
    if (!isBefore(entry, heap[parent]!)) break
    heap[index] = heap[parent]!
    index = parent
  }
  heap[index] = entry
}

function pop(heap: Entry[]): void {
  const last = heap.pop()!
  if (heap.length === 0) return
  let index = 0
  for (;;) {
    let child = 2 * index + 1
    if (child >= heap.length) break
    if (child + 1 < heap.length && isBefore(heap[child + 1]!, heap[child]!)) child += 1
    if (!isBefore(heap[child]!, last)) break
    heap[index] = heap[child]!
    index = child
  }
  heap[index] = last
}

/** Clamps a delay as Node does: a delay below 1 ms or above 24 days becomes 1 ms. */
function clampDelayMs(delayMs: unknown): number {
  const ms = Number(delayMs)
  return ms >= 1 && ms < 2 ** 31 ? ms : 1
}
