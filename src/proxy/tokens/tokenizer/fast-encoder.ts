/**
 * Encodes text to ids with fastokens, if the addon beside this file was built: 40 to 100 times as fast as Hugging
 * Face's library, which remains the reference. The results for texts that other tokenizers encoded wrongly are compared
 * before the first prompt, then those for a share of all texts; after the first difference the addon is not used again.
 */
import { hash } from 'node:crypto'
import { join } from 'node:path'
import { loadOwnAddon } from '../../../base/assets.ts'
import type { TextEncoder, TokenizerFault, TokenizerFaultListener } from './encoder.ts'
import { createProofTexts } from './proof-texts.ts'

/** The interface of `fastokens/addon.rs`. */
interface FastTokenizer {
  encodeNow(text: string): Int32Array
  encode(text: string): Promise<Int32Array>
}

interface Addon {
  FastTokenizer: { open(path: string): Promise<FastTokenizer> }
}

/** The interval of comparisons, in texts. At this rate, comparing takes as much time as encoding all of them. */
const TEXTS_A_CHECK = 64
/** The maximum length of a text that is encoded on this thread: 0.1 ms, less than a round trip to another thread. */
const NOW_CHARS = 8 * 1024

/**
 * Reads a `tokenizer.json` on another thread, in a second or two.
 * @param directory contains the file
 * @returns undefined: the addon was not built. {@link openFastEncoder} reports a failure
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
 * Verifies the addon and returns its encoder.
 * @param loading the addon's tokenizer, of the same file as the reference's
 * @param addedTokens the texts of the added tokens
 * @returns undefined: the addon was not built
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
   * Waits for the addon's tokenizer. @param loading resolves to undefined if there is no addon @returns whether there
   * is one
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

  /** Registers a listener, and reports a past fault to it. */
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
    if (this.#texts % TEXTS_A_CHECK === 0) void this.#compare(text, ids)
    return ids
  }

  /** Compares the ids of both encoders. */
  async check(text: string): Promise<void> {
    const ids = await this.#encodeFast(text)
    if (ids !== undefined) await this.#compare(text, ids)
  }

  async close(): Promise<void> {
    this.#fast = undefined
    await this.#reference.close()
  }

  /** Encodes with the addon. @returns undefined: the reference must be used */
  async #encodeFast(text: string): Promise<Int32Array | undefined> {
    try {
      return text.length <= NOW_CHARS ? this.#fast?.encodeNow(text) : await this.#fast?.encode(text)
    } catch (error) {
      this.#fail({ why: 'fastokens cannot tokenize a text', ...computeFingerprint(text), error })
      return undefined
    }
  }

  async #compare(text: string, ids: Int32Array): Promise<void> {
    // A busy or closed reference does not indicate a fault of the addon.
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
