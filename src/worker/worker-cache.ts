/**
 * Caches what a worker knows of sessions, so that the cost of each request depends on its new parts only. Evicted data
 * is sent, parsed or written again. All proxies of a worker share one cache. Not every proxy reports the end of a
 * session, so unused entries expire.
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
 * Requests of about 300 sessions of 100,000 tokens. If agents alternate, one session beyond the limit evicts the
 * entries of all.
 */
const MAX_REQUEST_BYTES = 256 * 1024 * 1024

/** About 300 prompts of 100,000 tokens, each counted as if it shared nothing. */
const MAX_REPORTED_BYTES = 128 * 1024 * 1024

/** About 300 sessions with prompts of 100,000 tokens. */
const MAX_LIST_BYTES = 128 * 1024 * 1024

/** Longer than the time that most agents take between two requests. */
export const UNUSED_TTL_MS = 10 * 60_000

/** The session id in a request: `serializeRequest` writes it among the first fields. */
const SESSION = /"session_id":"((?:[^"\\]|\\.)*)"/
const SESSION_WITHIN_BYTES = 1_024

/** Shorter requests are not cached, because parsing them is cheap. */
const REMEMBERED_FROM_BYTES = 4 * 1024

export interface FrameContent {
  readonly value: unknown
  readonly json?: FrameJson
}

export class WorkerCache {
  /** Request readers by session. */
  readonly requests: LruCache<string, RequestReader>
  /**
   * Prompts that were sent to a proxy, which may refer to them as bases of others; keyed by request, as the proxy names
   * it.
   */
  readonly reported: LruCache<string, PromptIds>
  /** Prompt lists by session, of sessions that have any. */
  readonly lists: LruCache<string, PromptLists>

  /** @param nowMs time of the clock that {@link forgetUnused} uses */
  constructor(nowMs: () => number) {
    this.requests = new LruCache(MAX_REQUEST_BYTES, ({ bytes, valueBytes }) => bytes + valueBytes, nowMs)
    this.reported = new LruCache(
      MAX_REPORTED_BYTES,
      ({ length }) => length * Int32Array.BYTES_PER_ELEMENT,
      nowMs,
    )
    this.lists = new LruCache(MAX_LIST_BYTES, ({ bytes, idBytes }) => bytes + idBytes, nowMs)
  }

  /** Deletes unused entries. Must be called periodically. */
  forgetUnused(): void {
    for (const part of [this.requests, this.reported, this.lists]) part.deleteUnused(UNUSED_TTL_MS)
  }
}

/** The part of the cache of one proxy: session names of two proxies may be equal. */
export class ProxyCache {
  readonly #memory: WorkerCache
  readonly #proxy: string

  constructor(memory: WorkerCache, proxy: string) {
    this.#memory = memory
    this.#proxy = proxy
  }

  /**
   * Parses a frame of the proxy. Large frames are requests, each of which repeats the conversation of an earlier one.
   */
  read(data: RawFrame): FrameContent {
    const session = Buffer.isBuffer(data) ? parseSessionId(data) : undefined
    if (session === undefined || !Buffer.isBuffer(data)) return { value: JSON.parse(data.toString()) }
    const { requests } = this.#memory
    const reader = requests.get(this.#getSessionName(session)) ?? new RequestReader()
    const { value, list } = reader.read(data, undefined, { listJson: true })
    if (data.length >= REMEMBERED_FROM_BYTES) requests.set(this.#getSessionName(session), reader)
    if (list?.json === undefined) return { value }
    const { tools } = value as { tools?: unknown }
    const isList = Array.isArray(tools) && tools.length > 0
    const toolsJson = isList && encodeElements(reader.computeOnce(formatTools, tools))
    return { value, json: { messagesJson: [list.json], ...(toolsJson && { toolsJson }) } }
  }

  /** Returns the lists with which a request of the session reads and writes its prompt. */
  getPromptLists(sessionId: string): PromptLists {
    return this.#memory.lists.get(this.#getSessionName(sessionId)) ?? new PromptLists()
  }

  /**
   * Returns the prompt of an earlier request, which the proxy has too; undefined if it was evicted, or has fewer ids.
   */
  getPrompt(requestId: string, atLeast = 0): PromptIds | undefined {
    const prompt = this.#memory.reported.get(this.#getSessionName(requestId))
    return prompt !== undefined && prompt.length >= atLeast ? prompt : undefined
  }

  /** Records that a prompt is sent to the proxy, which may refer to it as the base of another. */
  recordSentPrompt({ requestId, sessionId, promptLists: lists }: GenerationRequest, ids: PromptIds): void {
    if (ids.length >= MIN_REPORTED_IDS) this.#memory.reported.set(this.#getSessionName(requestId), ids)
    // Short lists are not kept. Setting a list again updates its size.
    if (lists !== undefined && lists.bytes > 0) this.#memory.lists.set(this.#getSessionName(sessionId), lists)
  }

  /** Deletes the entries of a session that has ended. Its prompts are keyed by request and expire. */
  forget(sessionId: string): void {
    this.#memory.requests.delete(this.#getSessionName(asInFrame(sessionId)))
    this.#memory.lists.delete(this.#getSessionName(sessionId))
  }

  #getSessionName(id: string): string {
    return `${this.#proxy} ${id}`
  }
}

/** @returns the result of {@link parseSessionId} for a frame of this session */
function asInFrame(sessionId: string): string {
  return Buffer.from(JSON.stringify(sessionId).slice(1, -1)).toString('latin1')
}

function parseSessionId(frame: Buffer): string | undefined {
  return SESSION.exec(frame.toString('latin1', 0, SESSION_WITHIN_BYTES))?.[1]
}
