/**
 * A thread with Python that runs one job after the other, seen from the event loop. The jobs run third-party templates:
 * a job that exceeds its time or memory limit fails alone, and the thread is replaced.
 */
import { ProxyError } from '../../../../base/errors.ts'
import type { ThreadError, ThreadProgress, ThreadReply } from './thread-jobs.ts'

export interface PythonThreadLimits {
  /** The time limit of a job. */
  timeLimitMs: number
  /** Python's memory limit, which includes its own 40 MB. Default: 1 GiB. */
  maxMemoryBytes?: number | undefined
  /** The maximum number of queued jobs. Default: 1024. */
  maxQueued?: number | undefined
}

/** A thread (Node's `Worker`) or a process that runs Python. */
export interface PythonHost {
  on(event: 'message', listener: (reply: unknown) => void): unknown
  on(event: 'error', listener: (cause: unknown) => void): unknown
  postMessage(job: unknown): void
  ref(): void
  unref(): void
  terminate(): unknown
}

interface PythonThreadOptions {
  /** Starts a module that calls `serveJobs`. @param workerData `data` and `maxMemoryBytes` */
  start(workerData: object): PythonHost
  name: string
  /** A plain object. */
  data: object
  limits: PythonThreadLimits
  /** The task of this Python, for error messages: `renders chat templates`. */
  task: string
  /** Creates the error of a job that exceeds its time or memory limit. */
  createLimitError(reason: string): ProxyError
}

interface WaitingJob<Job, Reply> {
  job: Job
  resolve(answer: Reply): void
  reject(error: ProxyError): void
}

/** The number of short jobs that may precede a waiting long one. */
const MAX_SHORT_IN_A_ROW = 64

/**
 * The time limit for starting Python and compiling the template, which take seconds without a snapshot on a busy
 * machine.
 */
const START_LIMIT_MS = 120_000

export class PythonThread<Job, Reply> {
  readonly #options: PythonThreadOptions
  readonly #short: WaitingJob<Job, Reply>[] = []
  readonly #long: WaitingJob<Job, Reply>[] = []
  #shortInARow = 0
  #current: WaitingJob<Job, Reply> | undefined
  #worker: PythonHost | undefined
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(options: PythonThreadOptions) {
    this.#options = options
  }

  /**
   * Runs a job on the thread.
   * @param isLong the job takes many times as long as others, which precede it
   * @throws ProxyError of the job, `start_failed` without Python, `queue_full`, `shutting_down`
   */
  execute(job: Job, isLong = false): Promise<Reply> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(this.#closedError())
      if (this.#short.length + this.#long.length >= (this.#options.limits.maxQueued ?? 1024)) {
        const message = `too many jobs wait for the Python that ${this.#options.task}`
        return reject(new ProxyError('queue_full', message, { retryAfterS: 1 }))
      }
      ;(isLong ? this.#long : this.#short).push({ job, resolve, reject })
      this.#next()
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    const waiting = [this.#current, ...this.#short.splice(0), ...this.#long.splice(0)]
    const worker = this.#dismiss()
    for (const one of waiting) one?.reject(this.#closedError())
    await worker?.terminate()
  }

  #next(): void {
    if (this.#current !== undefined) return
    this.#current = this.#take()
    if (this.#current === undefined) {
      // The thread keeps the process alive only while it works.
      this.#worker?.unref()
      return
    }
    if (this.#worker === undefined) this.#spawn()
    else this.#send(this.#worker, this.#current)
  }

  #take(): WaitingJob<Job, Reply> | undefined {
    const isLongOnesTurn = this.#short.length === 0 || this.#shortInARow >= MAX_SHORT_IN_A_ROW
    const long = isLongOnesTurn ? this.#long.shift() : undefined
    this.#shortInARow = long === undefined ? this.#shortInARow + 1 : 0
    return long ?? this.#short.shift()
  }

  /** Starts a thread. Its first messages report that Python has started, then that the template has been compiled. */
  #spawn(): void {
    const { start, name, data, limits } = this.#options
    const worker = start({ ...data, maxMemoryBytes: limits.maxMemoryBytes ?? 2 ** 30 })
    this.#worker = worker
    let works: 'nothing' | 'python' | 'template' = 'nothing'
    worker.on('message', (message) => {
      if (this.#worker !== worker) return
      const reply = message as ThreadProgress | ThreadReply<Reply>
      clearTimeout(this.#timer)
      if ('works' in reply) {
        works = reply.works
        if (works === 'template') this.#send(worker, this.#current!)
        else this.#limitJob()
      } else if (works === 'template') this.#settle(reply)
      else this.#lose('error' in reply ? fromThreadError(reply.error) : this.#startError(undefined))
    })
    worker.on('error', (cause) => {
      if (this.#worker !== worker) return
      this.#lose(
        works === 'template'
          ? cause instanceof ProxyError
            ? cause
            : new ProxyError('internal', `the ${name} thread died`, { cause })
          : this.#startError(cause),
      )
    })
    this.#limit(START_LIMIT_MS, () => this.#startError(undefined))
  }

  #send(worker: PythonHost, { job }: WaitingJob<Job, Reply>): void {
    worker.ref()
    worker.postMessage(job)
    this.#limitJob()
  }

  #limitJob(): void {
    const { limits, createLimitError: refusal } = this.#options
    this.#limit(limits.timeLimitMs, () => refusal(`it takes more than ${limits.timeLimitMs / 1000} s`))
  }

  #settle(reply: ThreadReply<Reply>): void {
    if ('damaged' in reply) {
      this.#lose(this.#options.createLimitError(reply.damaged))
      return
    }
    const { resolve, reject } = this.#current!
    this.#current = undefined
    // JSON between processes omits an answer of undefined.
    if ('error' in reply) reject(fromThreadError(reply.error))
    else resolve(reply.answer)
    this.#next()
  }

  #limit(timeMs: number, error: () => ProxyError): void {
    this.#timer = setTimeout(() => this.#lose(error()), timeMs)
    this.#timer.unref()
  }

  /** Fails the current job; queued jobs run on a new thread. */
  #lose(error: ProxyError): void {
    const lost = this.#current
    void this.#dismiss()?.terminate()
    lost?.reject(error)
    this.#next()
  }

  #dismiss(): PythonHost | undefined {
    clearTimeout(this.#timer)
    const worker = this.#worker
    this.#worker = undefined
    this.#current = undefined
    return worker
  }

  #startError(cause: unknown): ProxyError {
    return new ProxyError('start_failed', `Python, which ${this.#options.task}, does not start`, { cause })
  }

  #closedError(): ProxyError {
    return new ProxyError('shutting_down', `the ${this.#options.name} thread is closed`)
  }
}

function fromThreadError({ code, message, param }: ThreadError): ProxyError {
  return new ProxyError(code, message, param === undefined ? {} : { param })
}
