/**
 * What a worker remembers of the sessions whose calls it serves, so that each call costs what is new in it. Whatever is
 * forgotten is sent, read or written anew. One memory for all proxies that it dials. Not every proxy says when a session
 * has ended: what nobody used for a while goes too.
 */
import { LruCache } from '../base/lru-cache.ts'
import { formatTools } from '../protocol/canonical/number-texts.ts'
import type { GenerationRequest } from '../protocol/canonical/request.ts'
import { RequestReader } from '../protocol/canonical/request-reader.ts'
import { encodeElements } from '../protocol/json/json-member.ts'
import type { PromptIds } from '../protocol/token-ids/prompt-ids.ts'
import { PromptLists } from '../protocol/token-ids/prompt-lists.ts'
import type { FrameData } from '../protocol/worker/frames.ts'
import { MIN_REPORTED_IDS } from '../protocol/worker/reported-prompts.ts'
import type { FrameJson } from '../protocol/worker/request-frames.ts'

/** Requests of some 300 sessions of 100,000 tokens. Where agents take turns, one session too many costs all of them theirs. */
const MAX_REQUEST_BYTES = 256 * 1024 * 1024

/** Some 300 prompts of 100,000 tokens, each counted as if it shared nothing. */
const MAX_REPORTED_BYTES = 128 * 1024 * 1024

/** Some 300 sessions with prompts of 100,000 tokens. */
const MAX_LIST_BYTES = 128 * 1024 * 1024

/** Longer than most agents take between two calls. */
export const UNUSED_TTL_MS = 10 * 60_000

/** Where `requestJson` writes the session: among the first fields. */
const SESSION = /"session_id":"((?:[^"\\]|\\.)*)"/
const SESSION_WITHIN_BYTES = 1_024

/** Of shorter requests nothing is remembered: they are read in no time. */
const REMEMBERED_FROM_BYTES = 4 * 1024

export interface FrameContent {
  readonly value: unknown
  readonly json?: FrameJson
}

export class WorkerCache {
  /** By session. */
  readonly requests: LruCache<string, RequestReader>
  /** Prompts that a proxy was sent, and may name as the base of another: by the call, as the proxy names it. */
  readonly reported: LruCache<string, PromptIds>
  /** By session, of those that have any. */
  readonly lists: LruCache<string, PromptLists>

  /** @param nowMs of the clock by which {@link forgetUnused} tells what nobody used */
  constructor(nowMs: () => number) {
    this.requests = new LruCache(MAX_REQUEST_BYTES, ({ bytes, valueBytes }) => bytes + valueBytes, nowMs)
    this.reported = new LruCache(
      MAX_REPORTED_BYTES,
      ({ length }) => length * Int32Array.BYTES_PER_ELEMENT,
      nowMs,
    )
    this.lists = new LruCache(MAX_LIST_BYTES, ({ bytes, idBytes }) => bytes + idBytes, nowMs)
  }

  /** To be called now and then. */
  forgetUnused(): void {
    for (const part of [this.requests, this.reported, this.lists]) part.deleteUnused(UNUSED_TTL_MS)
  }
}

/** What a worker remembers of one proxy's sessions: another proxy's may have the same names. */
export class ProxyCache {
  readonly #memory: WorkerCache
  readonly #proxy: string

  constructor(memory: WorkerCache, proxy: string) {
    this.#memory = memory
    this.#proxy = proxy
  }

  /** A frame of the proxy. The large ones are requests, each of which repeats the conversation of one before it. */
  read(data: FrameData): FrameContent {
    const session = Buffer.isBuffer(data) ? parseSessionId(data) : undefined
    if (session === undefined || !Buffer.isBuffer(data)) return { value: JSON.parse(data.toString()) }
    const { requests } = this.#memory
    const reader = requests.get(this.#getSessionName(session)) ?? new RequestReader()
    const { value, list } = reader.read(data, undefined, { listJson: true })
    if (data.length >= REMEMBERED_FROM_BYTES) requests.set(this.#getSessionName(session), reader)
    if (list?.json === undefined) return { value }
    const { tools } = value as { tools?: unknown }
    const isList = Array.isArray(tools) && tools.length > 0
    const toolsJson = isList && encodeElements(reader.once(formatTools, tools))
    return { value, json: { messagesJson: [list.json], ...(toolsJson && { toolsJson }) } }
  }

  /** What a call of the session reads and writes its prompt with. */
  getPromptLists(sessionId: string): PromptLists {
    return this.#memory.lists.get(this.#getSessionName(sessionId)) ?? new PromptLists()
  }

  /** The prompt of an earlier call, which the proxy has too; undefined: it is forgotten, or has fewer ids. */
  getPrompt(requestId: string, atLeast = 0): PromptIds | undefined {
    const prompt = this.#memory.reported.get(this.#getSessionName(requestId))
    return prompt !== undefined && prompt.length >= atLeast ? prompt : undefined
  }

  /** A prompt is sent to the proxy, which may name it as the base of another. */
  sentPrompt({ requestId, sessionId, promptLists: lists }: GenerationRequest, ids: PromptIds): void {
    if (ids.length >= MIN_REPORTED_IDS) this.#memory.reported.set(this.#getSessionName(requestId), ids)
    // Short lists are not kept. One that has grown is counted anew.
    if (lists !== undefined && lists.bytes > 0) this.#memory.lists.set(this.#getSessionName(sessionId), lists)
  }

  /** The session has ended. Its prompts are known by their calls, and go with time. */
  forget(sessionId: string): void {
    this.#memory.requests.delete(this.#getSessionName(asInFrame(sessionId)))
    this.#memory.lists.delete(this.#getSessionName(sessionId))
  }

  #getSessionName(id: string): string {
    return `${this.#proxy} ${id}`
  }
}

/** @returns what {@link parseSessionId} finds in a frame of this session */
function asInFrame(sessionId: string): string {
  return Buffer.from(JSON.stringify(sessionId).slice(1, -1)).toString('latin1')
}

function parseSessionId(frame: Buffer): string | undefined {
  return SESSION.exec(frame.toString('latin1', 0, SESSION_WITHIN_BYTES))?.[1]
}
