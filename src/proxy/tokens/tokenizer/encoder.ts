/**
 * Encodes text to ids: off the event loop, with Hugging Face's tokenizer in Rust, if npm has a binary for this machine;
 * else synchronously, with the one in JavaScript, which is slower and returns different ids for some texts (with
 * Unicode digits, for example). `fast-encoder.ts` is a faster encoder that is verified against the Rust one.
 */
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'
import { readTokenizerFiles } from './tokenizer-files.ts'
import type { TokenNames } from './vocabulary.ts'

export interface TextEncoder {
  readonly kind: 'fastokens' | 'rust' | 'javascript'
  /**
   * @param promptChars length of the prompt that contains the text; default: the text is the complete prompt
   * @throws ProxyError `queue_full`, `shutting_down`, `internal`
   */
  encode(text: string, promptChars?: number): Promise<ArrayLike<number>>
  /**
   * Registers a listener for a fault, past or future, after which another encoder is used. Present if the encoder may
   * return wrong ids.
   */
  onFault?(listener: TokenizerFaultListener): void
  close(): Promise<void>
}

/** The reason why an encoder is no longer used. It contains nothing that reveals a text. */
export interface TokenizerFault {
  why: string
  textSha256?: string
  chars?: number
  error?: unknown
}

export type TokenizerFaultListener = (fault: TokenizerFault) => void

/**
 * Opens the Rust encoder, which also provides the names of tokens.
 * @returns undefined if there is no binary for this machine
 * @throws ProxyError `config_invalid` if it cannot use this tokenizer.json
 */
export async function openRustEncoder(directory: string): Promise<RustEncoder | undefined> {
  const library = await import('tokenizers').catch(() => undefined)
  if (library === undefined) return undefined
  try {
    const tokenizer = library.Tokenizer.fromFile(join(directory, 'tokenizer.json'))
    // A file may enable truncation and padding; transformers disables them for prompts.
    tokenizer.disableTruncation()
    tokenizer.disablePadding()
    return new RustEncoder(tokenizer)
  } catch (cause) {
    throw new ProxyError('config_invalid', `cannot use this tokenizer.json: ${(cause as Error).message}`, {
      cause,
    })
  }
}

/**
 * Opens an encoder that recognizes no added tokens: it reads their text as any other. Blocks for up to a second.
 * @throws ProxyError `config_invalid` if the files cannot be used
 */
export async function openPlainEncoder(directory: string): Promise<TextEncoder> {
  const { tokenizerJson, tokenizerConfig } = readTokenizerFiles(directory)
  const plainJson = {
    ...tokenizerJson,
    added_tokens: [],
    post_processor: null,
    truncation: null,
    padding: null,
  }
  const library = await import('tokenizers').catch(() => undefined)
  return library
    ? new RustEncoder(library.Tokenizer.fromString(JSON.stringify(plainJson)))
    : createJavaScriptEncoder(loadTokenizer({ tokenizerJson: plainJson, tokenizerConfig }))
}

export function createJavaScriptEncoder(tokenizer: Tokenizer): TextEncoder {
  return { kind: 'javascript', encode: async (text) => tokenizer.encode(text), close: async () => {} }
}

/** The methods of the library's tokenizer that are used here. Each text is encoded on one of libuv's threads. */
interface RustTokenizer {
  encode(text: string, pair: null, options: { addSpecialTokens: boolean }): Promise<{ getIds(): number[] }>
  idToToken(id: number): string | null
  tokenToId(token: string): number | null
}

interface Job {
  text: string
  promptChars: number
  /** The number of shorter texts that were encoded before it. */
  overtaken: number
  resolve(ids: number[]): void
  reject(error: ProxyError): void
}

/**
 * The number of texts of long prompts that are encoded concurrently. libuv has four threads, which file and DNS
 * operations also use; the event loop occupies one core. One additional thread serves short prompts only: they take a
 * millisecond, a long one some hundreds.
 */
const LONG_THREADS = Math.max(1, Math.min(2, availableParallelism() - 1))
const LONG_CHARS = 16 * 1024
const MAX_QUEUED = 4096
const MAX_OVERTAKEN = 64

export class RustEncoder implements TextEncoder, TokenNames {
  readonly kind = 'rust'
  readonly #tokenizer: RustTokenizer
  readonly #queue: Job[] = []
  #running = 0
  #runningLong = 0
  #isTurnOfWaited = false
  #closed = false

  constructor(tokenizer: RustTokenizer) {
    this.#tokenizer = tokenizer
  }

  encode(text: string, promptChars = text.length): Promise<number[]> {
    return new Promise((resolve, reject) => {
      if (this.#closed) return reject(createClosedError())
      if (this.#queue.length >= MAX_QUEUED) {
        return reject(new ProxyError('queue_full', 'too many texts wait to be tokenized', { retryAfterS: 1 }))
      }
      this.#queue.push({ text, promptChars, overtaken: 0, resolve, reject })
      this.#dispatch()
    })
  }

  getToken(id: number): string | undefined {
    // The library would accept -1, 0.5 and 2^32 as ids of other tokens.
    return id >>> 0 === id ? (this.#tokenizer.idToToken(id) ?? undefined) : undefined
  }

  getId(token: string): number | undefined {
    return this.#tokenizer.tokenToId(token) ?? undefined
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const job of this.#queue.splice(0)) job.reject(createClosedError())
  }

  #dispatch(): void {
    while (this.#running <= LONG_THREADS) {
      const next = this.#next()
      if (next === undefined) return
      for (const job of this.#queue.slice(0, next)) job.overtaken += 1
      void this.#run(this.#queue.splice(next, 1)[0]!)
    }
  }

  /**
   * Selects the next text. Short prompts precede long ones, but texts that have been overtaken too often alternate with
   * the shortest.
   * @returns undefined: none may begin now
   */
  #next(): number | undefined {
    const mayBeLong = this.#runningLong < LONG_THREADS
    let shortest: number | undefined
    let waited: number | undefined
    for (const [index, job] of this.#queue.entries()) {
      if (isLong(job) && !mayBeLong) continue
      if (job.overtaken >= MAX_OVERTAKEN) waited ??= index
      if (shortest === undefined || job.promptChars < this.#queue[shortest]!.promptChars) shortest = index
    }
    this.#isTurnOfWaited = waited !== undefined && !this.#isTurnOfWaited
    return this.#isTurnOfWaited ? waited : shortest
  }

  async #run(job: Job): Promise<void> {
    this.#running += 1
    this.#runningLong += Number(isLong(job))
    try {
      job.resolve((await this.#tokenizer.encode(job.text, null, { addSpecialTokens: false })).getIds())
    } catch (cause) {
      job.reject(new ProxyError('internal', 'the text cannot be tokenized', { cause }))
    } finally {
      this.#running -= 1
      this.#runningLong -= Number(isLong(job))
      this.#dispatch()
    }
  }
}

function isLong({ promptChars }: Job): boolean {
  return promptChars > LONG_CHARS
}

function createClosedError(): ProxyError {
  return new ProxyError('shutting_down', 'the tokenizer is shutting down')
}
