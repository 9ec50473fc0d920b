/**
 * Encodes text to ids with fastokens, if its addon was built (`fastokens/`). It is 40 to 100 times as fast as Hugging
 * Face's library, which remains the reference. Before the first prompt, the ids of texts that other tokenizers have
 * encoded wrongly are compared with those of the reference, and later those of a share of all texts. After a
 * difference, the addon is not used again.
 */
import { hash } from 'node:crypto'
import { join } from 'node:path'
import { loadOwnAddon } from '../../../base/assets.ts'
import type { TextEncoder, TokenizerFault, TokenizerFaultListener } from './encoder.ts'
import { createProofTexts } from './proof-texts.ts'

/** The interface of `FastTokenizer` in `fastokens/addon.rs`. */
interface FastTokenizer {
  encodeNow(text: string): Int32Array
  encode(text: string): Promise<Int32Array>
}

/** The exports of the addon. */
interface Addon {
  FastTokenizer: { open(path: string): Promise<FastTokenizer> }
}

/**
 * The interval of comparisons, in texts. Comparing one of 64 texts takes about as much time as encoding all of them.
 */
const TEXTS_PER_CHECK = 64
/**
 * The maximum length of a text that is encoded on this thread: it takes 0.1 ms, less than a round trip to another
 * thread.
 */
const MAX_SYNC_CHARS = 8 * 1024

/**
 * Reads a `tokenizer.json` on another thread, which takes one or two seconds. {@link openFastEncoder} reports a
 * failure.
 * @param directory contains the file
 * @returns undefined if the addon was not built
 */
export function loadFastTokenizer(directory: string): Promise<FastTokenizer | undefined> {
  const loading = (async () => {
    const addon = loadOwnAddon(new URL('./fastokens/fastokens.node', import.meta.url)) as Addon | undefined
    return addon?.FastTokenizer.open(join(directory, 'tokenizer.json'))
  })()
  loading.catch(() => {})
  return loading
}

/**
 * Compares the addon with the reference, and returns an encoder that uses the addon as long as both agree.
 * @param loading the addon's tokenizer, read from the same file as the reference
 * @param addedTokens the texts of the added tokens
 * @returns undefined if the addon was not built
 */
export async function openFastEncoder(
  loading: Promise<FastTokenizer | undefined>,
  reference: TextEncoder,
  addedTokens: readonly string[],
): Promise<FastEncoder | undefined> {
  const encoder = new FastEncoder(reference)
  const wasBuilt = await encoder.open(loading)
  for (const text of createProofTexts(addedTokens)) await encoder.check(text)
  return wasBuilt ? encoder : undefined
}

/** An encoder that uses the addon until its first fault, and the reference after it. */
export class FastEncoder implements TextEncoder {
  readonly #reference: TextEncoder
  readonly #listeners: TokenizerFaultListener[] = []
  #fault: TokenizerFault | undefined
  #fast: FastTokenizer | undefined
  #texts = 0

  constructor(reference: TextEncoder) {
    this.#reference = reference
  }

  /**
   * Waits for the addon's tokenizer.
   * @param loading resolves to undefined if the addon was not built
   * @returns whether it was built
   */
  async open(loading: Promise<FastTokenizer | undefined>): Promise<boolean> {
    try {
      this.#fast = await loading
      return this.#fast !== undefined
    } catch (error) {
      this.#fail({ why: 'fastokens cannot be used', error })
      return true
    }
  }

  /** Registers a listener for a fault. A past fault is reported immediately. */
  onFault(listener: TokenizerFaultListener): void {
    this.#listeners.push(listener)
    if (this.#fault) listener(this.#fault)
  }

  get kind(): TextEncoder['kind'] {
    return this.#fast === undefined ? this.#reference.kind : 'fastokens'
  }

  async encode(text: string, promptChars?: number): Promise<ArrayLike<number>> {
    const ids = await this.#encodeFast(text)
    if (ids === undefined) return this.#reference.encode(text, promptChars)
    this.#texts += 1
    if (this.#texts % TEXTS_PER_CHECK === 0) void this.#compare(text, ids)
    return ids
  }

  /** Compares the ids of addon and reference for a text. */
  async check(text: string): Promise<void> {
    const ids = await this.#encodeFast(text)
    if (ids !== undefined) await this.#compare(text, ids)
  }

  async close(): Promise<void> {
    this.#fast = undefined
    await this.#reference.close()
  }

  /** Encodes a text with the addon. @returns undefined if the reference must be used */
  async #encodeFast(text: string): Promise<Int32Array | undefined> {
    try {
      return text.length <= MAX_SYNC_CHARS ? this.#fast?.encodeNow(text) : await this.#fast?.encode(text)
    } catch (error) {
      this.#fail({ why: 'fastokens cannot tokenize a text', ...computeFingerprint(text), error })
      return undefined
    }
  }

  async #compare(text: string, ids: Int32Array): Promise<void> {
    // An error of a busy or closed reference is not a fault of the addon.
    const expected = await this.#reference.encode(text).catch(() => undefined)
    if (expected === undefined || this.#fast === undefined) return
    if (expected.length === ids.length && ids.every((id, index) => id === expected[index])) return
    this.#fail({
      why: "fastokens returned other ids than Hugging Face's library for a text",
      ...computeFingerprint(text),
    })
  }

  #fail(fault: TokenizerFault): void {
    this.#fast = undefined
    this.#fault = fault
    for (const listener of this.#listeners) listener(fault)
  }
}

function computeFingerprint(text: string): { textSha256: string; chars: number } {
  return { textSha256: hash('sha256', text), chars: text.length }
}
