/**
 * The tool-call ids that agents receive. The proxy generates one for each tool call of each completion. Agents return
 * these ids unchanged, while they may rewrite names, arguments and texts. The ids that a model samples (Kimi's
 * `functions.f:0`) or an engine generates may repeat within a session.
 */
import { hash, randomBytes } from 'node:crypto'

/** Nine letters and digits: the form that Mistral's templates require. No other model uses it. */
const SHORT = /^[0-9A-Za-z]{9}$/
const LONG = /^call_[0-9a-f]{24}$/
/**
 * A long id without its underscore, as sent by clients that remove all characters except letters and digits, such as
 * OpenClaw.
 */
const STRIPPED = /^call([0-9a-f]{24})$/
const ALPHABET = '0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz'

/** Matches the ids that vLLM, SGLang and OpenAI generate if the model samples none. No template renders them. */
const MADE_BY_ENGINE = /^(?:call|chatcmpl-tool|toolu)[_-]/

/** The offset of the checksum in an id. A short id has 6 random characters and 3 of checksum, a long one 16 and 8. */
const SUM_AT = { short: 6, long: 'call_'.length + 16 }

/** Returns whether an id has the form of a proxy-generated id, for this session or another one. */
export function isProxyToolCallId(id: string): boolean {
  if (SHORT.test(id)) return id.endsWith(computeShortSum(id.slice(0, SUM_AT.short)))
  return LONG.test(id) && id.endsWith(computeLongSum(id.slice(0, SUM_AT.long)))
}

/** Restores a proxy-generated id whose underscore a client has stripped. Returns any other id unchanged. */
export function restoreId(id: string): string {
  const letters = STRIPPED.exec(id)?.[1]
  const restored = `call_${letters}`
  return letters !== undefined && isProxyToolCallId(restored) ? restored : id
}

function createToolCallId(isShort: boolean): string {
  if (isShort) {
    const random = encodeLetters(randomBytes(SUM_AT.short))
    return random + computeShortSum(random)
  }
  const random = `call_${randomBytes(8).toString('hex')}`
  return random + computeLongSum(random)
}

function computeLongSum(random: string): string {
  return hash('sha256', random, 'hex').slice(0, 8)
}

function computeShortSum(random: string): string {
  return encodeLetters(hash('sha256', random, 'buffer').subarray(0, SHORT_SUM_BYTES))
}

const SHORT_SUM_BYTES = 3

function encodeLetters(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => ALPHABET[byte % ALPHABET.length]).join('')
}

/** The measured size of an id and its entry. */
const ID_BYTES = 200

/** The ids of the model or its engine by proxy-generated id, as recorded with a turn; null: the engine sent none. */
export type EngineToolCallIds = Record<string, string | null>

/** The proxy-generated ids of one session. */
export class ToolCallIds {
  /** The ids of the model or its engine, by proxy-generated id. */
  readonly #own = new Map<string, string | null>()
  #bytes = 0
  /** Whether the ids of the session's recorded turns are included. */
  isComplete = false

  #hasOwn = false

  /** Whether the model sampled the ids of some tool calls. */
  get hasOwn(): boolean {
    return this.#hasOwn
  }

  /** The size of the ids, and of the messages in which ids were replaced. */
  get bytes(): number {
    return this.#bytes
  }

  /**
   * Generates an id that is unique in the session.
   * @param own the id by the model or its engine; the new id has the same form, short or long
   */
  create(own: string | undefined): string {
    const isShort = own !== undefined && SHORT.test(own)
    let id = createToolCallId(isShort)
    while (this.#own.has(id)) id = createToolCallId(isShort)
    return id
  }

  /** Adds the ids of a completion. */
  learn(names: EngineToolCallIds): void {
    for (const [id, own] of Object.entries(names)) this.#learn(id, own)
  }

  /** Adds the ids that a recorded turn has in its annotations. */
  learnFrom({ annotations }: { annotations: string }): void {
    if (!annotations.includes('"call_ids"')) return
    const { call_ids: names } = JSON.parse(annotations) as { call_ids?: EngineToolCallIds }
    if (names !== undefined) this.learn(names)
  }

  /** Returns the id that the model sampled for a tool call; undefined: it sampled none, or the id is unknown here. */
  findOriginal(id: string): string | undefined {
    const own = this.#own.get(restoreId(id))
    return own === null || own === undefined || MADE_BY_ENGINE.test(own) ? undefined : own
  }

  /** Returns whether a proxy generated the id, but not for a turn of this session whose ids were added. */
  isStray(id: string): boolean {
    const restored = restoreId(id)
    return !this.#own.has(restored) && isProxyToolCallId(restored)
  }

  /** Adds the size of messages that are cached because their ids were replaced. */
  addBytes(bytes: number): void {
    this.#bytes += bytes
  }

  #learn(id: string, own: string | null): void {
    if (!this.#own.has(id)) this.#bytes += ID_BYTES
    this.#own.set(id, own)
    this.#hasOwn ||= this.findOriginal(id) !== undefined
  }
}
