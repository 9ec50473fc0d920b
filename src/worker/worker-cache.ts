/**
 * The cache of a worker, by which the cost of a request depends only on its new parts. Evicted data is sent, parsed or
 * serialized again. All links of a worker share one cache. Unused entries expire, because some proxies do not report
 * the end of a session.
 */
import { LruCache } from '../base/lru-cache.ts'
import { formatTools } from '../protocol/canonical/number-texts.ts'
import type { GenerationRequest } from '../protocol/canonical/request.ts'
import { RequestReader } from '../protocol/canonical/request-reader.ts'
import { encodeElements } from '../protocol/json/json-member.ts'
import type { PromptIds } from '../protocol/token-ids/prompt-ids.ts'
import { PromptLists } from '../protocol/token-ids/prompt-lists.ts'
import type { RawFrame } from '../protocol/worker/frames.ts'
import { MIN_REPORTED_IDS } from '../protocol/worker/reported-prompts.ts'
import type { FrameJson } from '../protocol/worker/request-frames.ts'

/**
 * Enough for the requests of about 300 sessions of 100,000 tokens. Beyond the limit, sessions that alternate evict each
 * other's entries.
 */
const MAX_REQUEST_BYTES = 256 * 1024 * 1024

/** Enough for about 300 prompts of 100,000 tokens, each counted as if it shared no ids with others. */
const MAX_REPORTED_BYTES = 128 * 1024 * 1024

/** Enough for about 300 sessions with prompts of 100,000 tokens. */
const MAX_LIST_BYTES = 128 * 1024 * 1024

/** The time after which an unused entry expires; most agents send their next request earlier. */
export const UNUSED_TTL_MS = 10 * 60_000

/** Matches the session id in the text of a request, where `serializeRequest` writes it among the first fields. */
const SESSION = /"session_id":"((?:[^"\\]|\\.)*)"/
const SESSION_WITHIN_BYTES = 1_024

/** The minimum size of a cached request: parsing a shorter one is cheap. */
const MIN_CACHED_BYTES = 4 * 1024

/** A parsed frame, with the JSON of its messages and tools if it is a request with messages. */
export interface FrameContent {
  readonly value: unknown
  readonly json?: FrameJson
}

/** The cached data of all sessions, of all proxies. */
export class WorkerCache {
  /** Request readers, which cache parsed requests, by session. */
  readonly requests: LruCache<string, RequestReader>
  /**
   * Prompts that the worker has reported to a proxy, by request. The proxy may refer to them as the base of another
   * prompt.
   */
  readonly reported: LruCache<string, PromptIds>
  /** Serialized lists of prompt ids, by session. */
  readonly lists: LruCache<string, PromptLists>

  /** @param nowMs returns the time, by which unused entries expire */
  constructor(nowMs: () => number) {
    this.requests = new LruCache(MAX_REQUEST_BYTES, ({ bytes, valueBytes }) => bytes + valueBytes, nowMs)
    this.reported = new LruCache(
      MAX_REPORTED_BYTES,
      ({ length }) => length * Int32Array.BYTES_PER_ELEMENT,
      nowMs,
    )
    this.lists = new LruCache(MAX_LIST_BYTES, ({ bytes, idBytes }) => bytes + idBytes, nowMs)
  }

  /** Deletes entries that were not used for {@link UNUSED_TTL_MS}. Must be called periodically. */
  forgetUnused(): void {
    for (const part of [this.requests, this.reported, this.lists]) part.deleteUnused(UNUSED_TTL_MS)
  }
}

/** The part of the cache for one proxy: two proxies may use the same session and request ids. */
export class ProxyCache {
  readonly #memory: WorkerCache
  readonly #proxy: string

  constructor(memory: WorkerCache, proxy: string) {
    this.#memory = memory
    this.#proxy = proxy
  }

  /**
   * Parses a frame of the proxy. A large frame is usually a request that repeats the conversation of an earlier one, of
   * which only the new part is parsed.
   */
  read(data: RawFrame): FrameContent {
    const session = Buffer.isBuffer(data) ? parseSessionId(data) : undefined
    if (session === undefined || !Buffer.isBuffer(data)) return { value: JSON.parse(data.toString()) }
    const { requests } = this.#memory
    const reader = requests.get(this.#getSessionName(session)) ?? new RequestReader()
    const { value, list } = reader.read(data, undefined, { listJson: true })
    if (data.length >= MIN_CACHED_BYTES) requests.set(this.#getSessionName(session), reader)
    if (list?.json === undefined) return { value }
    const { tools } = value as { tools?: unknown }
    const isList = Array.isArray(tools) && tools.length > 0
    const toolsJson = isList && encodeElements(reader.computeOnce(formatTools, tools))
    return { value, json: { messagesJson: [list.json], ...(toolsJson && { toolsJson }) } }
  }

  /** Returns the prompt lists of a session, with which its requests parse and serialize prompts. */
  getPromptLists(sessionId: string): PromptLists {
    return this.#memory.lists.get(this.#getSessionName(sessionId)) ?? new PromptLists()
  }

  /**
   * Returns the prompt that the worker reported for an earlier request; undefined if it was evicted, or has fewer than
   * `atLeast` ids.
   */
  getPrompt(requestId: string, atLeast = 0): PromptIds | undefined {
    const prompt = this.#memory.reported.get(this.#getSessionName(requestId))
    return prompt !== undefined && prompt.length >= atLeast ? prompt : undefined
  }

  /** Caches a prompt that is reported to the proxy, which may refer to it as the base of another. */
  recordSentPrompt({ requestId, sessionId, promptLists: lists }: GenerationRequest, ids: PromptIds): void {
    if (ids.length >= MIN_REPORTED_IDS) this.#memory.reported.set(this.#getSessionName(requestId), ids)
    // Lists of short prompts have no bytes and are not cached. Setting a list again updates its size.
    if (lists !== undefined && lists.bytes > 0) this.#memory.lists.set(this.#getSessionName(sessionId), lists)
  }

  /** Deletes the entries of a session that has ended. Its reported prompts are keyed by request, so they expire. */
  forget(sessionId: string): void {
    this.#memory.requests.delete(this.#getSessionName(asInFrame(sessionId)))
    this.#memory.lists.delete(this.#getSessionName(sessionId))
  }

  #getSessionName(id: string): string {
    return `${this.#proxy} ${id}`
  }
}

/**
 * Returns the session id as {@link parseSessionId} reads it from a frame: escaped as in JSON, its UTF-8 read as
 * Latin-1.
 */
function asInFrame(sessionId: string): string {
  return Buffer.from(JSON.stringify(sessionId).slice(1, -1)).toString('latin1')
}

/** Returns the session id of a request frame, without decoding it; undefined: it has none near its beginning. */
function parseSessionId(frame: Buffer): string | undefined {
  return SESSION.exec(frame.toString('latin1', 0, SESSION_WITHIN_BYTES))?.[1]
}
