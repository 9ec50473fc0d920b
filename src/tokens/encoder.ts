/**
 * Text to ids, off the event loop: by Hugging Face's own tokenizer in Rust where npm has a binary for this machine, else
 * by the one in JavaScript, which is slower and differs for some text (Unicode's digits, for one).
 */
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { ProxyError } from '../errors.ts'
import { TokenizerPool } from './pool.ts'
import type { Tokenizer } from './tokenizer.ts'

export interface TextEncoder {
  readonly kind: 'rust' | 'javascript'
  /** @throws ProxyError `queue_full`, `shutting_down`, `internal` */
  encode(text: string): Promise<ArrayLike<number>>
  close(): Promise<void>
}

/** @param directory holds the files that `tokenizer` was read from */
export async function openEncoder(directory: string, tokenizer: Tokenizer): Promise<TextEncoder> {
  return (await openRustEncoder(directory)) ?? new JavaScriptEncoder(new TokenizerPool(tokenizer, directory))
}

/**
 * @returns undefined if there is no binary for this machine
 * @throws ProxyError `config_invalid` if it cannot use this tokenizer.json
 */
export async function openRustEncoder(directory: string): Promise<TextEncoder | undefined> {
  const library = await import('tokenizers').catch(() => undefined)
  if (library === undefined) return undefined
  try {
    const tokenizer = library.Tokenizer.fromFile(join(directory, 'tokenizer.json'))
    // A file may ask for them; transformers switches them off for prompts.
    tokenizer.disableTruncation()
    tokenizer.disablePadding()
    return new RustEncoder(tokenizer)
  } catch (cause) {
    throw new ProxyError('config_invalid', `cannot use this tokenizer.json: ${(cause as Error).message}`, {
      cause,
    })
  }
}

class JavaScriptEncoder implements TextEncoder {
  readonly kind = 'javascript'
  readonly #pool: TokenizerPool

  constructor(pool: TokenizerPool) {
    this.#pool = pool
  }

  encode(text: string): Promise<number[]> {
    return this.#pool.encode(text)
  }

  close(): Promise<void> {
    return this.#pool.close()
  }
}

/** What is used of the library's tokenizer. Each text is encoded on one of libuv's threads. */
interface RustTokenizer {
  encode(text: string, pair: null, options: { addSpecialTokens: boolean }): Promise<{ getIds(): number[] }>
}

interface Job {
  text: string
  /** How many shorter ones went before it. */
  overtaken: number
  resolve(ids: number[]): void
  reject(error: ProxyError): void
}

/** libuv has four threads, which files and names need, too; one core is the event loop's. */
const THREADS = Math.max(1, Math.min(3, availableParallelism() - 1))
const MAX_QUEUED = 4096
const MAX_OVERTAKEN = 64

class RustEncoder implements TextEncoder {
  readonly kind = 'rust'
  readonly #tokenizer: RustTokenizer
  readonly #queue: Job[] = []
  #running = 0
  #closed = false

  constructor(tokenizer: RustTokenizer) {
    this.#tokenizer = tokenizer
  }

  encode(text: string): Promise<number[]> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(closedError())
      if (this.#queue.length >= MAX_QUEUED) {
        return reject(new ProxyError('queue_full', 'too many texts wait to be tokenized', { retryAfterS: 1 }))
      }
      this.#queue.push({ text, overtaken: 0, resolve, reject })
      this.#dispatch()
    })
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const job of this.#queue.splice(0)) job.reject(closedError())
  }

  #dispatch(): void {
    while (this.#running < THREADS && this.#queue.length > 0) {
      this.#running += 1
      void this.#run(this.#take())
    }
  }

  /** Long texts wait for short ones, but not for ever. */
  #take(): Job {
    let next = this.#queue.findIndex(({ overtaken }) => overtaken >= MAX_OVERTAKEN)
    if (next === -1) {
      next = 0
      for (const [index, { text }] of this.#queue.entries())
        if (text.length < this.#queue[next]!.text.length) next = index
    }
    for (const job of this.#queue.slice(0, next)) job.overtaken += 1
    return this.#queue.splice(next, 1)[0]!
  }

  async #run({ text, resolve, reject }: Job): Promise<void> {
    try {
      resolve((await this.#tokenizer.encode(text, null, { addSpecialTokens: false })).getIds())
    } catch (cause) {
      reject(new ProxyError('internal', 'the text cannot be tokenized', { cause }))
    } finally {
      this.#running -= 1
      this.#dispatch()
    }
  }
}

function closedError(): ProxyError {
  return new ProxyError('shutting_down', 'the tokenizer is shutting down')
}
