import { type buildConnector, Pool } from 'undici'
import { ProxyError } from '../../../../base/errors.ts'
import { parseJson } from '../../../../base/json.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { type Endpoint, parseEndpoint } from '../endpoint.ts'
import { answerFailure, answerTooLarge, healthFailure, refusalError, requestFailure } from './failures.ts'
import { joinForNow } from './joined.ts'
import { PromptReports } from './prompt-reports.ts'
import type { BodyPieces } from './request.ts'
import { type SessionOfCall, SessionWords } from './session-words.ts'

export interface ConnectionOptions {
  /** `http://host:8000` or `http://host:8000/v1`; may hold `user:password@`. */
  url: string
  apiKey?: string | undefined
  /**
   * The longest silence before an engine counts as hung: a whole answer may take this long, a streamed one may pause
   * this long. Slow is not hung; there is no limit on an answer's length.
   */
  maxSilenceMs?: number
  connectTimeoutMs?: number
  /** Opens a socket to the engine. Default: TCP or TLS, within `connectTimeoutMs`. */
  connect?: Connect | undefined
  /** A larger answer, or event of a streamed one, is a failure of the engine. Default: 100 MiB. */
  maxAnswerBytes?: number
  /** Headers that tell a router in front of engines which session a call belongs to. */
  sessionHeaders?: readonly string[]
}

/** What headers tell of a call. */
export type CallOnWire = SessionOfCall & Pick<GenerationRequest, 'traceparent'>

/** Opens sockets, as undici asks for them. */
export type Connect = buildConnector.connector

export type EngineResponse = Awaited<ReturnType<Pool['request']>>

const MAX_SILENCE_MS = 30 * 60_000
/** As much as a frame between worker and proxy holds. */
const MAX_ANSWER_BYTES = 100 * 1024 * 1024
const CONNECT_TIMEOUT_MS = 5_000
/** Shorter than uvicorn's 5 s, so that a call never goes out on a connection that the engine is closing. */
const KEEP_ALIVE_MS = 4_000
/** How long the end of an answer is waited for once it has said everything, so that its connection can be used again. */
const DRAIN_MS = 1_000
/** A body in pieces that is no longer is sent as one. */
const MAX_COPIED_BYTES = 64 * 1024

/** HTTP to one engine, over as many kept-alive connections as there are calls. */
export class EngineConnection {
  readonly endpoint: Endpoint
  readonly maxAnswerBytes: number
  readonly promptReports = new PromptReports()
  readonly #pool: Pool
  readonly #sessions: SessionWords
  /** Routes that only some versions of an engine have: one that was found missing is not asked for again. */
  readonly #missing = new Set<string>()

  constructor(options: ConnectionOptions) {
    this.endpoint = parseEndpoint(options.url, options.apiKey)
    this.maxAnswerBytes = options.maxAnswerBytes ?? MAX_ANSWER_BYTES
    this.#sessions = new SessionWords(options.sessionHeaders ?? [])
    const silence = options.maxSilenceMs ?? MAX_SILENCE_MS
    this.#pool = new Pool(this.endpoint.origin, {
      headersTimeout: silence,
      bodyTimeout: silence,
      keepAliveTimeout: KEEP_ALIVE_MS,
      connect: options.connect ?? { timeout: options.connectTimeoutMs ?? CONNECT_TIMEOUT_MS },
    })
  }

  get name(): string {
    return this.endpoint.name
  }

  /**
   * @param path after the engine's base path, such as `/v1/models`
   * @param json the body of a POST, perhaps in pieces; without it, the request is a GET
   * @param call an agent's: routers send the calls of one session to one engine, and traced ones name their span
   * @returns the response once its status is known to be 2xx
   * @throws ProxyError `engine_unreachable`, `engine_rejected`, `engine_failed`, `engine_lost`, `engine_timeout`. After
   *   an abort: whatever `signal.reason` is.
   */
  async request(
    path: string,
    signal: AbortSignal,
    json?: string | BodyPieces,
    call?: CallOnWire,
  ): Promise<EngineResponse> {
    signal.throwIfAborted()
    const response = await this.#send(path, signal, json, call)
    const status = response.statusCode
    if (call) this.#sessions.hear(call, response.headers)
    if (status >= 200 && status < 300) return response
    const text = this.endpoint.redact(await this.text(response, signal))
    const retryAfter = response.headers['retry-after']?.toString()
    throw refusalError({ engine: this.name, status, text, retryAfter })
  }

  async #send(
    path: string,
    signal: AbortSignal,
    json: string | BodyPieces | undefined,
    call: CallOnWire | undefined,
  ): Promise<EngineResponse> {
    const { authorization, basePath } = this.endpoint
    try {
      return await this.#pool.request({
        path: basePath + path,
        method: json === undefined ? 'GET' : 'POST',
        headers: {
          ...(json !== undefined && {
            'content-type': 'application/json',
            'content-length': String(bytesOf(json)),
          }),
          ...(authorization !== undefined && { authorization }),
          ...(call && this.#sessions.of(call)),
          ...(call?.traceparent !== undefined && { traceparent: call.traceparent }),
        },
        body: bodyOf(json),
        signal,
      })
    } catch (thrown) {
      signal.throwIfAborted()
      throw requestFailure(this.name, thrown)
    }
  }

  /** Nothing of the session is told or kept any more. */
  endSession(sessionId: string): void {
    this.#sessions.forget(sessionId)
  }

  /** The whole body as text. @throws as {@link request} */
  async text(response: EngineResponse, signal: AbortSignal): Promise<string> {
    return joinForNow(await this.pieces(response, signal)).toString()
  }

  /** The whole body. @throws as {@link request}; `engine_failed` for one that is too large */
  async pieces({ body }: EngineResponse, signal: AbortSignal): Promise<readonly Buffer[]> {
    const parts: Buffer[] = []
    let size = 0
    body.on('error', () => {}) // A body that is left unread says so.
    try {
      for await (const part of body as AsyncIterable<Buffer>) {
        parts.push(part)
        size += part.length
        if (size > this.maxAnswerBytes) throw answerTooLarge(this.name, this.maxAnswerBytes)
      }
      return parts
    } catch (thrown) {
      if (thrown instanceof ProxyError) throw thrown
      signal.throwIfAborted()
      throw answerFailure(this.name, thrown)
    }
  }

  /** The body of the answer to a GET, or to a POST of `json`. @throws as {@link request} */
  async ask(path: string, signal: AbortSignal, json?: string): Promise<string> {
    return await this.text(await this.request(path, signal, json), signal)
  }

  /**
   * The same, read as JSON.
   * @returns undefined for a refusal: a gateway may keep a route to itself, a server may have no tokenizer
   */
  async askIfTold(path: string, signal: AbortSignal, json: string): Promise<unknown> {
    try {
      return parseJson(await this.ask(path, signal, json))
    } catch (thrown) {
      const refuses = ['engine_rejected', 'engine_failed']
      if (thrown instanceof ProxyError && refuses.includes(thrown.code)) return undefined
      throw thrown
    }
  }

  /**
   * The body of a GET for a health check, of a route that only some versions have.
   * @returns undefined when the server has no such route, as some versions and gateways do not, or does not let us
   * @throws ProxyError `engine_unreachable` or `engine_failed`
   */
  async askOptional(path: string, signal: AbortSignal): Promise<string | undefined> {
    if (this.#missing.has(path)) return undefined
    try {
      return await this.ask(path, signal)
    } catch (thrown) {
      if (!(thrown instanceof ProxyError && thrown.code === 'engine_rejected')) throw healthFailure(thrown)
      if (thrown.status === 404 || thrown.status === 405) this.#missing.add(path)
      return undefined
    }
  }

  /**
   * The body as it comes: what one read of the socket brought is one chunk. While the consumer does not pull, reading
   * stops after one buffer (64 KiB), and the engine's socket fills up.
   * Leaving the loop closes the connection, which is how an engine learns that nobody wants the answer; unless
   * `isWhole` says that the answer has been read, and the connection can serve the next call.
   * @throws as {@link request}
   */
  async *chunks(
    { body }: EngineResponse,
    signal: AbortSignal,
    isWhole: () => boolean,
  ): AsyncGenerator<Buffer, void, undefined> {
    try {
      for await (const chunk of body.iterator({ destroyOnReturn: false })) yield chunk
    } catch (thrown) {
      signal.throwIfAborted()
      throw answerFailure(this.name, thrown)
    } finally {
      body.on('error', () => {}) // A body that is destroyed unread says so.
      if (isWhole()) drain(body)
      else body.destroy()
    }
  }

  /** Running requests fail; there should be none. */
  async close(): Promise<void> {
    await this.#pool.destroy()
  }
}

/**
 * Pieces are written one after the other, as undici does with whatever can be iterated; its types do not say so. Each is a
 * system call, and often a packet, of its own, which for a short body takes ten times as long as copying it.
 */
function bodyOf(json: string | BodyPieces | undefined): string | Buffer | null {
  if (json === undefined || typeof json === 'string') return json ?? null
  const length = bytesOf(json)
  return length <= MAX_COPIED_BYTES ? Buffer.concat(json, length) : (json as unknown as Buffer)
}

function bytesOf(json: string | BodyPieces): number {
  if (typeof json === 'string') return Buffer.byteLength(json)
  return json.reduce((sum, piece) => sum + piece.length, 0)
}

/** Reads what is left, which is nothing but the end, for a connection is used again only once its answer has ended. */
function drain(body: EngineResponse['body']): void {
  const timer = setTimeout(() => body.destroy(), DRAIN_MS).unref()
  body.once('close', () => clearTimeout(timer))
  body.resume()
}
