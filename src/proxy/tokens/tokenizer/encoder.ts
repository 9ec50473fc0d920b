/**
 * Encodes text to ids. Hugging Face's tokenizer in Rust does so off the event loop, if npm has a binary for this
 * machine. Otherwise, its JavaScript tokenizer does so synchronously; it is slower and returns different ids for some
 * texts (with Unicode digits, for example). `fast-encoder.ts` contains a faster encoder, which is verified against the
 * Rust one.
 */
import { availableParallelism } from 'node:os'
import { join } from 'node:path'
import { ProxyError } from '../../../base/errors.ts'
import { LongTextEncoder } from './long-text-encoder.ts'
import { openRustTokenizer, type RustTokenizer } from './rust-tokenizer.ts'
import { loadTokenizer, type Tokenizer } from './tokenizer.ts'
import { readTokenizerFiles } from './tokenizer-files.ts'
import type { TokenNames } from './vocabulary.ts'

/** An encoder of texts to token ids. */
export interface TextEncoder {
  readonly kind: 'fastokens' | 'rust' | 'javascript'
  /**
   * Encodes a text. Texts of short prompts precede those of long prompts.
   * @param promptChars the length of the prompt that contains the text; default: that of the text
   * @throws ProxyError `queue_full`, `shutting_down`, `internal`
   */
  encode(text: string, promptChars?: number): Promise<ArrayLike<number>>
  /**
   * Registers a listener for a past or future fault, after which another encoder is used. Absent if the encoder is the
   * reference.
   */
  onFault?(listener: TokenizerFaultListener): void
  close(): Promise<void>
}

/** The reason why an encoder is no longer used. It does not contain the text, which may be confidential. */
export interface TokenizerFault {
  why: string
  /** The SHA-256 of the text, in hexadecimal. */
  textSha256?: string
  /** The length of the text. */
  chars?: number
  error?: unknown
}

export type TokenizerFaultListener = (fault: TokenizerFault) => void

/**
 * Opens the Rust encoder, which also provides the names of tokens.
 * @returns undefined if there is no binary for this machine
 * @throws ProxyError `config_invalid` if the library cannot read `tokenizer.json`
 */
export async function openRustEncoder(directory: string): Promise<RustEncoder | undefined> {
  const source = { file: join(directory, 'tokenizer.json') }
  try {
    const tokenizer = await openRustTokenizer(source)
    return tokenizer && new RustEncoder(tokenizer, new LongTextEncoder(source))
  } catch (cause) {
    throw new ProxyError('config_invalid', `cannot use this tokenizer.json: ${(cause as Error).message}`, {
      cause,
    })
  }
}

/**
 * Opens an encoder that recognizes no added tokens, so that their text is encoded like any other. Blocks for up to a
 * second.
 * @throws ProxyError `config_invalid` if the files cannot be used
 */
export async function openPlainEncoder(directory: string): Promise<TextEncoder> {
  const { tokenizerJson, tokenizerConfig } = readTokenizerFiles(directory)
  const plainJson = { ...tokenizerJson, added_tokens: [], post_processor: null }
  const source = { json: JSON.stringify(plainJson) }
  const tokenizer = await openRustTokenizer(source)
  return tokenizer
    ? new RustEncoder(tokenizer, new LongTextEncoder(source))
    : createJavaScriptEncoder(loadTokenizer({ tokenizerJson: plainJson, tokenizerConfig }))
}

export function createJavaScriptEncoder(tokenizer: Tokenizer): TextEncoder {
  return { kind: 'javascript', encode: async (text) => tokenizer.encode(text), close: async () => {} }
}

/** A queued text. */
interface Job {
  text: string
  promptChars: number
  /** The number of texts that were queued after this one and encoded before it. */
  overtaken: number
  resolve(ids: ArrayLike<number>): void
  reject(error: ProxyError): void
}

/**
 * The number of texts of long prompts that are encoded concurrently. libuv has four threads, which file and DNS
 * operations also use, and the event loop occupies one core. One more thread serves only short prompts, which take a
 * millisecond, whereas a long one takes some hundreds of milliseconds.
 */
const LONG_THREADS = Math.max(1, Math.min(2, availableParallelism() - 1))
/** The length above which a prompt is long. */
const LONG_CHARS = 16 * 1024
/**
 * The length above which a text is encoded on a thread. The event loop creates an array of as many ids in 15 ms; longer
 * texts are rare, because a tokenizer's safe cuts and the cache of messages divide a prompt.
 */
const THREAD_CHARS = 256 * 1024
const MAX_QUEUED = 4096
/** The number of times that a text may be overtaken before it alternates with the shortest ones. */
const MAX_OVERTAKEN = 64

/** Hugging Face's tokenizer in Rust, with a queue that prefers short prompts. */
export class RustEncoder implements TextEncoder, TokenNames {
  readonly kind = 'rust'
  readonly #tokenizer: RustTokenizer
  readonly #longTexts: Pick<LongTextEncoder, 'encode' | 'close'>
  readonly #queue: Job[] = []
  #running = 0
  #runningLong = 0
  #prefersWaiting = false
  #closed = false

  /** @param longTexts encodes texts for which the array of ids would block the event loop */
  constructor(tokenizer: RustTokenizer, longTexts: Pick<LongTextEncoder, 'encode' | 'close'>) {
    this.#tokenizer = tokenizer
    this.#longTexts = longTexts
  }

  encode(text: string, promptChars = text.length): Promise<ArrayLike<number>> {
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
    // The library would convert -1, 0.5 and 2^32 to the ids of other tokens.
    return id >>> 0 === id ? (this.#tokenizer.idToToken(id) ?? undefined) : undefined
  }

  getId(token: string): number | undefined {
    return this.#tokenizer.tokenToId(token) ?? undefined
  }

  async close(): Promise<void> {
    this.#closed = true
    for (const job of this.#queue.splice(0)) job.reject(createClosedError())
    await this.#longTexts.close()
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
   * Selects the next text. Short prompts precede long ones, but texts that were overtaken too often alternate with the
   * shortest ones.
   * @returns its index in the queue; undefined if no text may be encoded now
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
    this.#prefersWaiting = waited !== undefined && !this.#prefersWaiting
    return this.#prefersWaiting ? waited : shortest
  }

  async #run(job: Job): Promise<void> {
    this.#running += 1
    this.#runningLong += Number(isLong(job))
    try {
      job.resolve(await this.#encodeNow(job.text))
    } catch (cause) {
      const error = new ProxyError('internal', 'the text cannot be tokenized', { cause })
      job.reject(this.#closed ? createClosedError() : error)
    } finally {
      this.#running -= 1
      this.#runningLong -= Number(isLong(job))
      this.#dispatch()
    }
  }

  async #encodeNow(text: string): Promise<ArrayLike<number>> {
    if (text.length > THREAD_CHARS) return this.#longTexts.encode(text)
    return (await this.#tokenizer.encode(text, null, { addSpecialTokens: false })).getIds()
  }
}

function isLong({ promptChars }: Job): boolean {
  return promptChars > LONG_CHARS
}

function createClosedError(): ProxyError {
  return new ProxyError('shutting_down', 'the tokenizer is shutting down')
}
