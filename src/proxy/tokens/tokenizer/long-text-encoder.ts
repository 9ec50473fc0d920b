/**
 * Encodes very long texts on a thread, because the library creates the array of ids on the thread that calls it, which
 * for millions of ids would block the event loop.
 */
import type { Worker } from 'node:worker_threads'
import { startThread } from '../../../base/assets.ts'
import type { LongTextJob, LongTextReply } from './long-text-thread.ts'
import type { TokenizerSource } from './rust-tokenizer.ts'

const ENTRY_POINT = new URL('./long-text-thread.ts', import.meta.url)

interface PendingJob {
  resolve(ids: Int32Array): void
  reject(error: unknown): void
}

/**
 * An encoder on a thread with a separate tokenizer. Texts of this length are rare, so the thread runs only while it
 * has jobs: a second copy of the tokenizer takes up to hundreds of megabytes.
 */
export class LongTextEncoder {
  readonly #source: TokenizerSource
  readonly #jobs = new Map<number, PendingJob>()
  #thread: Worker | undefined
  #jobCount = 0

  constructor(source: TokenizerSource) {
    this.#source = source
  }

  /**
   * Encodes a text.
   * @throws Error of the library or the thread
   */
  encode(text: string): Promise<Int32Array> {
    return new Promise((resolve, reject) => {
      this.#thread ??= this.#start()
      this.#jobCount += 1
      this.#jobs.set(this.#jobCount, { resolve, reject })
      this.#thread.postMessage({ id: this.#jobCount, text } satisfies LongTextJob)
    })
  }

  /** Ends the thread; its jobs fail. */
  async close(): Promise<void> {
    await this.#thread?.terminate()
  }

  #start(): Worker {
    const thread = startThread(ENTRY_POINT, { workerData: this.#source, name: 'long-texts' })
    thread.on('message', (reply: LongTextReply) => this.#finish(reply))
    thread.on('error', (error) => this.#fail(thread, error))
    thread.on('exit', () => this.#fail(thread, new Error('the thread that encodes long texts has ended')))
    return thread
  }

  #finish(reply: LongTextReply): void {
    const job = this.#jobs.get(reply.id)!
    this.#jobs.delete(reply.id)
    if (this.#jobs.size === 0) {
      void this.#thread?.terminate()
      this.#thread = undefined
    }
    if ('ids' in reply) job.resolve(reply.ids)
    else job.reject(reply.error)
  }

  /** Rejects the jobs of a thread that has failed. The thread of a finished burst has none. */
  #fail(thread: Worker, error: Error): void {
    if (this.#thread !== thread) return
    this.#thread = undefined
    const jobs = [...this.#jobs.values()]
    this.#jobs.clear()
    for (const { reject } of jobs) reject(error)
  }
}
