/**
 * The ids of tool calls that agents see: the proxy's own, drawn for each call of each answer. Agents send them back
 * untouched, while they rewrite names, arguments and texts; ids that a model writes (Kimi's `functions.f:0`) or an engine
 * makes may come twice in a session.
 */
import { hash, randomBytes } from 'node:crypto'

/** Nine letters and digits, as Mistral's templates want them, and nobody else has. */
const SHORT = /^[0-9A-Za-z]{9}$/
const LONG = /^call_[0-9a-f]{24}$/
/** A long id in the form of clients that strip everything but letters and digits, such as OpenClaw. */
const STRIPPED = /^call([0-9a-f]{24})$/
const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

/** What engines make up where the model names no call: vLLM's, SGLang's and OpenAI's own. No template teaches them. */
const MADE_BY_ENGINE = /^(?:call|chatcmpl-tool|toolu)[_-]/

/** A short id has 6 random characters and 3 of their sum; a long one 16 and 8. */
const SUM_AT = { short: 6, long: 'call_'.length + 16 }

/** Whether it has the form of an id that a proxy drew, for this session or another one. */
export function isProxyToolCallId(id: string): boolean {
  if (SHORT.test(id)) return id.endsWith(shortSum(id.slice(0, SUM_AT.short)))
  return LONG.test(id) && id.endsWith(longSum(id.slice(0, SUM_AT.long)))
}

/** Returns the id as a proxy drew it, where a client has stripped its underscore; any other id unchanged. */
export function restoreId(id: string): string {
  const letters = STRIPPED.exec(id)?.[1]
  const restored = `call_${letters}`
  return letters !== undefined && isProxyToolCallId(restored) ? restored : id
}

function createToolCallId(isShort: boolean): string {
  if (isShort) {
    const random = encodeLetters(randomBytes(SUM_AT.short))
    return random + shortSum(random)
  }
  const random = `call_${randomBytes(8).toString('hex')}`
  return random + longSum(random)
}

function longSum(random: string): string {
  return hash('sha256', random, 'hex').slice(0, 8)
}

function shortSum(random: string): string {
  return encodeLetters(hash('sha256', random, 'buffer').subarray(0, SHORT_SUM_BYTES))
}

const SHORT_SUM_BYTES = 3

function encodeLetters(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => ALPHABET[byte % ALPHABET.length]).join('')
}

/** An id and what is kept of it, as measured. */
const ID_BYTES = 200

/** As turns have it on record: drawn ids, and what the model or its engine had called the call. */
export type ToolCallNames = Record<string, string | null>

/** The drawn ids of one session. */
export class ToolCallIds {
  readonly #own = new Map<string, string | null>()
  #bytes = 0
  /** Those of the session's turns on record are among them. */
  isWhole = false

  #hasOwn = false

  /** Whether the model knows some of its calls by ids of its own. */
  get hasOwn(): boolean {
    return this.#hasOwn
  }

  /** What it keeps in memory. */
  get bytes(): number {
    return this.#bytes
  }

  /** @param own what the model or its engine calls the call; the new id has its form */
  draw(own: string | undefined): string {
    const isShort = own !== undefined && SHORT.test(own)
    let id = createToolCallId(isShort)
    while (this.#own.has(id)) id = createToolCallId(isShort)
    return id
  }

  learn(names: ToolCallNames): void {
    for (const [id, own] of Object.entries(names)) this.#learn(id, own)
  }

  /** The same from the annotations of a turn on record. */
  learnFrom({ annotations }: { annotations: string }): void {
    if (!annotations.includes('"call_ids"')) return
    const { call_ids: names } = JSON.parse(annotations) as { call_ids?: ToolCallNames }
    if (names !== undefined) this.learn(names)
  }

  /** What the model knows the call by; undefined: by this very id, or by none. */
  findOriginal(id: string): string | undefined {
    const own = this.#own.get(restoreId(id))
    return own === null || own === undefined || MADE_BY_ENGINE.test(own) ? undefined : own
  }

  /** Whether a proxy drew it, and for no turn that is known here. */
  isStray(id: string): boolean {
    const restored = restoreId(id)
    return !this.#own.has(restored) && isProxyToolCallId(restored)
  }

  /** Counts what is kept of messages because of their ids. */
  addBytes(bytes: number): void {
    this.#bytes += bytes
  }

  #learn(id: string, own: string | null): void {
    if (!this.#own.has(id)) this.#bytes += ID_BYTES
    this.#own.set(id, own)
    this.#hasOwn ||= this.findOriginal(id) !== undefined
  }
}
