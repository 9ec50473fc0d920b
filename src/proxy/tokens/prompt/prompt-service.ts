/**
 * The thread that prompts are rendered on, seen from the event loop. Templates are other people's programs: one that
 * takes too long or too much memory fails the call that it was rendered for, and its thread is replaced.
 */
import type { Worker } from 'node:worker_threads'
import { ProxyError } from '../../../base/errors.ts'
import { startThread } from '../../../base/own-files.ts'
import type { MessageOrJson, RenderOptions } from '../templates/chat-template.ts'
import type { TemplateWords } from '../templates/template-words.ts'
import type { Beginnings, NewPartAnswer, NewPartRequest, PromptOptions } from './prompt-engine.ts'
import type {
  PromptAnswer,
  PromptJob,
  PromptProgress,
  PromptReply,
  PromptThreadData,
} from './prompt-thread.ts'

/** What renders prompts, wherever it does it. */
export interface PromptService {
  /** What the template looks for in what messages say. */
  words(): Promise<TemplateWords>
  beginnings(options: PromptOptions): Promise<Beginnings>
  /** @throws ProxyError `invalid_request` if the template refuses these messages, `unsupported` for what is no text */
  render(messages: readonly MessageOrJson[], options: RenderOptions): Promise<string>
  newPart(request: NewPartRequest, options: PromptOptions): Promise<NewPartAnswer>
}

export interface PromptThreadLimits {
  /** How long one prompt may take. Default: 10 s; the longest of real ones take a tenth of a second. */
  timeLimitMs?: number
  /** Default: 1 GiB. */
  maxMemoryBytes?: number
  /** Jobs that may wait. Default: 1024. */
  maxQueued?: number
}

interface Waiting {
  job: PromptJob
  resolve(answer: PromptAnswer): void
  reject(error: ProxyError): void
}

/** Python and the template may need seconds where no snapshot was made and others want the processor, too. */
const START_LIMIT_MS = 120_000

const ENTRY_POINT = new URL('./prompt-thread.ts', import.meta.url)

export class PromptThread implements PromptService {
  readonly #data: PromptThreadData
  readonly #timeLimitMs: number
  readonly #maxQueued: number
  readonly #queue: Waiting[] = []
  #current: Waiting | undefined
  #worker: Worker | undefined
  #timer: NodeJS.Timeout | undefined
  #closed = false

  constructor(data: Omit<PromptThreadData, 'maxMemoryBytes'>, limits: PromptThreadLimits = {}) {
    this.#data = { ...data, maxMemoryBytes: limits.maxMemoryBytes ?? 2 ** 30 }
    this.#timeLimitMs = limits.timeLimitMs ?? 10_000
    this.#maxQueued = limits.maxQueued ?? 1024
  }

  /**
   * Starts the thread at once, and not with its first job.
   * @throws ProxyError `config_invalid` if the template is not valid, `start_failed` if Python does not start
   */
  async begin(): Promise<void> {
    try {
      // A job is answered when the thread is ready for it.
      await this.beginnings({})
    } catch (error) {
      // Nobody has called yet: what is wrong is the template.
      if (!(error instanceof ProxyError) || error.code !== 'invalid_request') throw error
      throw new ProxyError('config_invalid', error.message, { cause: error })
    }
  }

  async words(): Promise<TemplateWords> {
    return (await this.#ask({ kind: 'words' })) as TemplateWords
  }

  async beginnings(options: PromptOptions): Promise<Beginnings> {
    return (await this.#ask({ kind: 'beginnings', options: asText(options) })) as Beginnings
  }

  async render(messages: readonly MessageOrJson[], options: RenderOptions): Promise<string> {
    return (await this.#ask({ kind: 'render', messages, options: asText(options) })) as string
  }

  async newPart(request: NewPartRequest, options: PromptOptions): Promise<NewPartAnswer> {
    return (await this.#ask({ kind: 'newPart', request, options: asText(options) })) as NewPartAnswer
  }

  async close(): Promise<void> {
    this.#closed = true
    const waiting = [this.#current, ...this.#queue.splice(0)]
    const worker = this.#dismiss()
    for (const one of waiting) one?.reject(closedError())
    await worker?.terminate()
  }

  #ask(job: PromptJob): Promise<PromptAnswer> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(closedError())
      if (this.#queue.length >= this.#maxQueued) {
        return reject(
          new ProxyError('queue_full', 'too many prompts wait to be rendered', { retryAfterS: 1 }),
        )
      }
      this.#queue.push({ job, resolve, reject })
      this.#next()
    })
  }

  #next(): void {
    if (this.#current !== undefined) return
    this.#current = this.#queue.shift()
    if (this.#current === undefined) {
      // It holds the process only while it works.
      this.#worker?.unref()
      return
    }
    if (this.#worker === undefined) this.#spawn()
    else this.#send(this.#worker, this.#current)
  }

  /** Its first messages say that Python works, and then that the template does. */
  #spawn(): void {
    const worker = startThread(ENTRY_POINT, { workerData: this.#data, name: 'prompts' })
    this.#worker = worker
    let works: 'nothing' | 'python' | 'template' = 'nothing'
    worker.on('message', (reply: PromptProgress | PromptReply) => {
      if (this.#worker !== worker) return
      clearTimeout(this.#timer)
      if ('works' in reply) {
        works = reply.works
        if (works === 'template') this.#send(worker, this.#current!)
        else this.#limitTemplate()
      } else if (works === 'template') this.#settle(reply)
      else this.#lose('error' in reply ? errorOf(reply.error) : startError(undefined))
    })
    worker.on('error', (cause) => {
      if (this.#worker !== worker) return
      this.#lose(
        works === 'template'
          ? new ProxyError('internal', 'the prompt thread died', { cause })
          : startError(cause),
      )
    })
    this.#limit(START_LIMIT_MS, () => startError(undefined))
  }

  #send(worker: Worker, { job }: Waiting): void {
    worker.ref()
    worker.postMessage(job)
    this.#limitTemplate()
  }

  #limitTemplate(): void {
    this.#limit(this.#timeLimitMs, () => refusal(`it takes more than ${this.#timeLimitMs / 1000} s`))
  }

  #settle(reply: PromptReply): void {
    if ('exhausted' in reply) {
      this.#lose(refusal('it takes too much memory'))
      return
    }
    const { resolve, reject } = this.#current!
    this.#current = undefined
    if ('answer' in reply) resolve(reply.answer)
    else reject(errorOf(reply.error))
    this.#next()
  }

  #limit(timeMs: number, error: () => ProxyError): void {
    this.#timer = setTimeout(() => this.#lose(error()), timeMs)
    this.#timer.unref()
  }

  /** Fails what the thread works on; what waits gets another thread. */
  #lose(error: ProxyError): void {
    const lost = this.#current
    void this.#dismiss()?.terminate()
    lost?.reject(error)
    this.#next()
  }

  #dismiss(): Worker | undefined {
    clearTimeout(this.#timer)
    const worker = this.#worker
    this.#worker = undefined
    this.#current = undefined
    return worker
  }
}

/** Variables as JSON: a number as it was written is lost on the way to another thread. */
function asText<Options extends PromptOptions>(options: Options): Options {
  const { kwargs, documents } = options
  return {
    ...options,
    ...(typeof kwargs === 'object' && { kwargs: JSON.stringify(kwargs) }),
    ...(typeof documents === 'object' && documents !== null && { documents: JSON.stringify(documents) }),
  }
}

function refusal(why: string): ProxyError {
  return new ProxyError('invalid_request', `the chat template cannot be rendered: ${why}`, {
    param: 'messages',
  })
}

function startError(cause: unknown): ProxyError {
  return new ProxyError('start_failed', 'Python, which renders chat templates, does not start', { cause })
}

function errorOf({
  code,
  message,
  param,
}: {
  code: ProxyError['code']
  message: string
  param: string | undefined
}): ProxyError {
  return new ProxyError(code, message, param === undefined ? {} : { param })
}

function closedError(): ProxyError {
  return new ProxyError('shutting_down', 'prompts are not rendered any more')
}
