/**
 * Keeps the event loop free while long texts are tokenized: they go to threads, short ones are encoded on the spot.
 * Encoding takes 0.5 to 5 µs a character, so that what is done on the spot blocks for less than 10 ms.
 */
import type { Worker } from 'node:worker_threads'
import { ProxyError } from '../../../base/errors.ts'
import { startThread } from '../../../base/own-files.ts'
import type { EncodeReply, EncodeRequest, PoolThreadData } from './pool-thread.ts'
import type { EncodeOptions, Tokenizer } from './tokenizer.ts'

export const INLINE_LIMIT_CHARS = 2000

const ENTRY_POINT = new URL('./pool-thread.ts', import.meta.url)

export interface TokenizerPoolOptions {
  /** Each holds a tokenizer of its own: some 100 MB. They start when there is work for them. Default: 1. */
  threads?: number
  /** Texts that may wait for a thread. Default: 256. */
  maxQueued?: number
  /** Longer texts go to a thread. Default: {@link INLINE_LIMIT_CHARS}. */
  inlineLimitChars?: number
}

interface Job {
  request: EncodeRequest
  resolve(ids: number[]): void
  reject(error: ProxyError): void
}

export class TokenizerPool {
  readonly #tokenizer: Tokenizer
  readonly #threadData: PoolThreadData
  readonly #maxThreads: number
  readonly #maxQueued: number
  readonly #inlineLimitChars: number
  readonly #queue: Job[] = []
  readonly #busy = new Map<Worker, Job>()
  readonly #idle: Worker[] = []
  #closed = false

  /** @param directory holds the files that `tokenizer` was read from */
  constructor(tokenizer: Tokenizer, directory: string, options: TokenizerPoolOptions = {}) {
    this.#tokenizer = tokenizer
    this.#threadData = { directory }
    this.#maxThreads = options.threads ?? 1
    this.#maxQueued = options.maxQueued ?? 256
    this.#inlineLimitChars = options.inlineLimitChars ?? INLINE_LIMIT_CHARS
  }

  /**
   * The same ids as {@link Tokenizer.encode}.
   * @throws ProxyError `queue_full` if too many texts wait, `shutting_down` after close, `internal` if a thread dies
   */
  async encode(text: string, options: EncodeOptions = {}): Promise<number[]> {
    if (text.length <= this.#inlineLimitChars) return this.#tokenizer.encode(text, options)
    if (this.#closed) throw closedError()
    if (this.#queue.length >= this.#maxQueued) {
      throw new ProxyError('queue_full', 'too many long texts wait to be tokenized', { retryAfterS: 1 })
    }
    return await new Promise((resolve, reject) => {
      this.#queue.push({ request: { text, options }, resolve, reject })
      this.#dispatch()
    })
  }

  /** Ends the threads; texts that are not done yet fail. */
  async close(): Promise<void> {
    this.#closed = true
    const workers = [...this.#idle, ...this.#busy.keys()]
    for (const job of [...this.#busy.values(), ...this.#queue]) job.reject(closedError())
    this.#busy.clear()
    this.#queue.length = 0
    this.#idle.length = 0
    await Promise.all(workers.map((worker) => worker.terminate()))
  }

  #dispatch(): void {
    while (this.#queue.length > 0) {
      const worker = this.#idle.pop() ?? this.#spawn()
      if (worker === undefined) return
      const job = this.#queue.shift()!
      this.#busy.set(worker, job)
      // A thread holds the process only while it works.
      worker.ref()
      worker.postMessage(job.request)
    }
  }

  /** undefined if there are as many as there may be. */
  #spawn(): Worker | undefined {
    if (this.#busy.size >= this.#maxThreads) return undefined
    const worker = startThread(ENTRY_POINT, { workerData: this.#threadData, name: 'tokenizer' })
    worker.on('message', (reply: EncodeReply) => this.#settle(worker, reply))
    worker.on('error', (cause) => this.#lose(worker, cause))
    return worker
  }

  #settle(worker: Worker, reply: EncodeReply): void {
    const job = this.#take(worker)
    if (job === undefined) return
    worker.unref()
    this.#idle.push(worker)
    if ('ids' in reply) job.resolve(listOf(reply.ids))
    else job.reject(new ProxyError('internal', 'the text cannot be tokenized', { cause: reply.failure }))
    this.#dispatch()
  }

  #lose(worker: Worker, cause: unknown): void {
    this.#take(worker)?.reject(new ProxyError('internal', 'a tokenizer thread died', { cause }))
    const index = this.#idle.indexOf(worker)
    if (index !== -1) this.#idle.splice(index, 1)
    this.#dispatch()
  }

  /** undefined if the pool has been closed meanwhile. */
  #take(worker: Worker): Job | undefined {
    const job = this.#busy.get(worker)
    this.#busy.delete(worker)
    return job
  }
}

function closedError(): ProxyError {
  return new ProxyError('shutting_down', 'the tokenizer is shutting down')
}

/** By index: `Array.from` iterates, and holds everything up for 4 ms at 128,000 ids. */
function listOf(ids: Int32Array): number[] {
  const list = new Array<number>(ids.length)
  for (let at = 0; at < ids.length; at += 1) list[at] = ids[at]!
  return list
}
