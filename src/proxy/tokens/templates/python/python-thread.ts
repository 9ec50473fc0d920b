/**
 * The event loop's side of a thread that runs Python jobs one by one. Jobs run third-party templates: if a job exceeds
 * its time or memory limit, only this job fails, and the thread is replaced.
 */
import { ProxyError } from '../../../../base/errors.ts'
import type { ThreadError, ThreadProgress, ThreadReply } from './thread-jobs.ts'

/** The limits of a {@link PythonThread}. */
export interface PythonThreadLimits {
  /** The time limit of a job. */
  timeLimitMs: number
  /** The limit of Python's memory, of which the interpreter itself needs 40 MB. Default: 1 GiB. */
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
  /** Starts a module that calls `serveJobs`. @param workerData `data` with `maxMemoryBytes` */
  start(workerData: object): PythonHost
  name: string
  /** The data of the module, a plain object. */
  data: object
  limits: PythonThreadLimits
  /** The task of this Python in error messages: `renders chat templates`. */
  task: string
  /** Creates the error of a job that exceeds its time or memory limit. */
  createLimitError(reason: string): ProxyError
}

/** A queued or running job. */
interface WaitingJob<Job, Reply> {
  job: Job
  resolve(answer: Reply): void
  reject(error: ProxyError): void
}

/** The number of short jobs that may precede a waiting long one. */
const MAX_SHORT_IN_A_ROW = 64

/** The time limit for starting Python, which takes seconds without a snapshot on a busy machine. */
const START_LIMIT_MS = 120_000

/**
 * The time limit for compiling and probing the template, in time limits of a job. It takes many times as long as a job,
 * at the start of the process, when the machine is busiest.
 */
const OPEN_LIMIT_JOBS = 6

/**
 * A queue of jobs, and the thread or process that runs them. The thread is started for the first job and replaced after
 * a failure.
 */
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
   * @param isLong the job takes many times as long as other jobs, which therefore precede it
   * @throws ProxyError of the job, `start_failed` if Python does not start, `queue_full`, `shutting_down`
   */
  execute(job: Job, isLong = false): Promise<Reply> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(this.#createClosedError())
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
    const worker = this.#releaseHost()
    for (const one of waiting) one?.reject(this.#createClosedError())
    await worker?.terminate()
  }

  #next(): void {
    if (this.#current !== undefined) return
    this.#current = this.#dequeue()
    if (this.#current === undefined) {
      // An idle thread must not prevent the process from exiting.
      this.#worker?.unref()
      return
    }
    if (this.#worker === undefined) this.#spawn()
    else this.#send(this.#worker, this.#current)
  }

  #dequeue(): WaitingJob<Job, Reply> | undefined {
    const prefersLong = this.#short.length === 0 || this.#shortInARow >= MAX_SHORT_IN_A_ROW
    const long = prefersLong ? this.#long.shift() : undefined
    this.#shortInARow = long === undefined ? this.#shortInARow + 1 : 0
    return long ?? this.#short.shift()
  }

  /**
   * Starts a thread. Its first messages report that Python has started, then that the template has been compiled; the
   * current job is sent after that.
   */
  #spawn(): void {
    const worker = this.#start()
    if (worker === undefined) return
    const { name, limits } = this.#options
    this.#worker = worker
    let works: 'nothing' | 'python' | 'template' = 'nothing'
    worker.on('message', (message) => {
      if (this.#worker !== worker) return
      const reply = message as ThreadProgress | ThreadReply<Reply>
      this.#stopTimer()
      if ('works' in reply) {
        works = reply.works
        if (works === 'template') this.#send(worker, this.#current!)
        else this.#limitTime(OPEN_LIMIT_JOBS * limits.timeLimitMs)
      } else if (works === 'template') this.#settle(reply)
      else
        this.#failCurrent('error' in reply ? fromThreadError(reply.error) : this.#createStartError(undefined))
    })
    worker.on('error', (cause) => {
      if (this.#worker !== worker) return
      this.#failCurrent(
        works === 'template'
          ? cause instanceof ProxyError
            ? cause
            : new ProxyError('internal', `the ${name} thread died`, { cause })
          : this.#createStartError(cause),
      )
    })
    this.#limit(START_LIMIT_MS, () => this.#createStartError(undefined))
  }

  /** Starts a thread or process. If the system permits no more of them, only the current job fails. */
  #start(): PythonHost | undefined {
    const { start, data, limits } = this.#options
    try {
      return start({ ...data, maxMemoryBytes: limits.maxMemoryBytes ?? 2 ** 30 })
    } catch (cause) {
      this.#current!.reject(this.#createStartError(cause))
      this.#current = undefined
      // Each queued job attempts one start. Between the attempts, the event loop can release what the start lacked.
      setImmediate(() => this.#next())
      return undefined
    }
  }

  #send(worker: PythonHost, { job }: WaitingJob<Job, Reply>): void {
    worker.ref()
    worker.postMessage(job)
    this.#limitTime(this.#options.limits.timeLimitMs)
  }

  #limitTime(timeMs: number): void {
    this.#limit(timeMs, () => this.#options.createLimitError(`it takes more than ${timeMs / 1000} s`))
  }

  #settle(reply: ThreadReply<Reply>): void {
    if ('damaged' in reply) {
      this.#failCurrent(this.#options.createLimitError(reply.damaged))
      return
    }
    const { resolve, reject } = this.#current!
    this.#current = undefined
    // JSON between processes omits an `answer` that is undefined, so the reply may have neither field.
    if ('error' in reply) reject(fromThreadError(reply.error))
    else resolve(reply.answer)
    this.#next()
  }

  /** Fails the current job after this time, unless a message has arrived. */
  #limit(timeMs: number, createError: () => ProxyError): void {
    const timer = setTimeout(() => {
      // If the event loop was blocked, timers run before it reads the messages that arrived meanwhile.
      setImmediate(() => {
        if (this.#timer === timer) this.#failCurrent(createError())
      })
    }, timeMs)
    timer.unref()
    this.#timer = timer
  }

  #stopTimer(): void {
    clearTimeout(this.#timer)
    this.#timer = undefined
  }

  /** Fails the current job and terminates the thread. Queued jobs run on a new thread. */
  #failCurrent(error: ProxyError): void {
    const lost = this.#current
    void this.#releaseHost()?.terminate()
    lost?.reject(error)
    this.#next()
  }

  #releaseHost(): PythonHost | undefined {
    this.#stopTimer()
    const worker = this.#worker
    this.#worker = undefined
    this.#current = undefined
    return worker
  }

  #createStartError(cause: unknown): ProxyError {
    return new ProxyError('start_failed', `Python, which ${this.#options.task}, does not start`, { cause })
  }

  #createClosedError(): ProxyError {
    return new ProxyError('shutting_down', `the ${this.#options.name} thread is closed`)
  }
}

function fromThreadError({ code, message, param }: ThreadError): ProxyError {
  return new ProxyError(code, message, param === undefined ? {} : { param })
}
