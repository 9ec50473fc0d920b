import { type buildConnector, Pool } from 'undici'
import { ProxyError } from '../../../../base/errors.ts'
import type { GenerationRequest } from '../../../../protocol/canonical/request.ts'
import { type Endpoint, parseEndpoint } from '../endpoint.ts'
import { EngineResponse } from './engine-response.ts'
import { convertHealthError, convertRejection, createResponseTooLargeError } from './failures.ts'
import { joinChunks } from './join-chunks.ts'
import type { BodyChunks } from './request.ts'
import { type RequestSession, SessionTokens } from './session-tokens.ts'

export interface ConnectionOptions {
  /** `http://host:8000` or `http://host:8000/v1`; may contain `user:password@`. */
  url: string
  apiKey?: string | undefined
  /**
   * The longest silence before an engine counts as hung: the limit on the wait for a complete response, and on a pause
   * in a streamed one. A slow engine is not hung: the duration of a response is unlimited.
   */
  maxSilenceMs?: number
  connectTimeoutMs?: number
  /** Opens a socket to the engine. Default: TCP or TLS, within `connectTimeoutMs`. */
  connect?: SocketConnector | undefined
  /**
   * The limit on a response, or an event of a streamed one; a larger one is a failure of the engine. Default: 100 MiB.
   */
  maxResponseBytes?: number
  /** The names of headers in which a request's session is sent, for a router in front of engines. */
  sessionHeaders?: readonly string[]
}

/** The properties of a request that are sent as headers. */
export type RequestIdentity = RequestSession & Pick<GenerationRequest, 'traceparent'>

/** A function that opens sockets, as undici defines it. */
export type SocketConnector = buildConnector.connector

const MAX_SILENCE_MS = 30 * 60_000
/** The size limit in bytes, equal to that of a frame between worker and proxy. */
const MAX_RESPONSE_BYTES = 100 * 1024 * 1024
const CONNECT_TIMEOUT_MS = 5_000
/**
 * The time after which an idle connection is closed: shorter than uvicorn's 5 s, so that no request is sent on a
 * connection that the engine is closing.
 */
const KEEP_ALIVE_MS = 4_000
/** The largest body in chunks that is sent as one buffer. */
const MAX_COPIED_BYTES = 64 * 1024

/**
 * The number of consecutive completions without prompt ids before operators are warned: a single one may be due to a
 * restart of the engine.
 */
const CONFIRMATIONS = 3

/**
 * A counter of consecutive completions for which the engine, or a router in front of it, does not report the ids of the
 * prompt.
 */
class MissingPromptIdCounter {
  #missing = 0

  countCompletion(isReported: boolean): void {
    this.#missing = isReported ? 0 : this.#missing + 1
  }

  /** The reason why turns are inexact; undefined while ids are reported. */
  get warning(): string | undefined {
    if (this.#missing < CONFIRMATIONS) return undefined
    return 'it reports no token ids of prompts, or a router before it drops them: its turns are not exact'
  }
}

/** An HTTP client of one engine, with as many kept-alive connections as there are concurrent requests. */
export class EngineConnection {
  readonly endpoint: Endpoint
  readonly maxResponseBytes: number
  readonly missingPromptIdCounter = new MissingPromptIdCounter()
  readonly #pool: Pool
  readonly #sessions: SessionTokens
  /** Optional routes that this server lacks; they are not requested again before {@link forgetMissing}. */
  readonly #missing = new Set<string>()

  constructor(options: ConnectionOptions) {
    this.endpoint = parseEndpoint(options.url, options.apiKey)
    this.maxResponseBytes = options.maxResponseBytes ?? MAX_RESPONSE_BYTES
    this.#sessions = new SessionTokens(options.sessionHeaders ?? [])
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
   * Sends a request.
   * @param path the path after the engine's base path, such as `/v1/models`
   * @param json the body of a POST, perhaps in chunks; without it, the request is a GET
   * @param agentRequest the agent's request, if there is one: its session and its span are sent as headers
   * @returns the response once its status is known to be 2xx
   * @throws ProxyError `engine_unreachable`, `engine_rejected`, `engine_failed`, `engine_lost`, `engine_timeout`. After
   *   an abort: `signal.reason`.
   */
  async sendRequest(
    path: string,
    signal: AbortSignal,
    json?: string | BodyChunks,
    agentRequest?: RequestIdentity,
  ): Promise<EngineResponse> {
    signal.throwIfAborted()
    const response = new EngineResponse(this.name, signal)
    const method = json === undefined ? 'GET' : 'POST'
    const options = {
      path: this.endpoint.basePath + path,
      method,
      headers: this.#headers(json, agentRequest),
    }
    this.#pool.dispatch({ ...options, body: readBody(json) }, response)
    await response.head
    const { statusCode: status, headers } = response
    if (agentRequest) this.#sessions.storeToken(agentRequest, headers)
    if (status >= 200 && status < 300) return response
    const text = this.endpoint.redact(await this.readText(response))
    throw convertRejection({
      engine: this.name,
      status,
      text,
      retryAfter: headers['retry-after']?.toString(),
    })
  }

  #headers(
    json: string | BodyChunks | undefined,
    agentRequest: RequestIdentity | undefined,
  ): Record<string, string> {
    const headers = agentRequest ? this.#sessions.getHeaders(agentRequest) : {}
    if (json !== undefined) {
      headers['content-type'] = 'application/json'
      headers['content-length'] = String(toBytes(json))
    }
    if (this.endpoint.authorization !== undefined) headers.authorization = this.endpoint.authorization
    if (agentRequest?.traceparent !== undefined) headers.traceparent = agentRequest.traceparent
    return headers
  }

  /** Discards the affinity of a session that has ended. */
  endSession(sessionId: string): void {
    this.#sessions.forget(sessionId)
  }

  /** Reads the complete body as text. @throws as {@link sendRequest} */
  async readText(response: EngineResponse): Promise<string> {
    return joinChunks(await this.readChunks(response)).toString()
  }

  /** Reads the complete body. @throws as {@link sendRequest}; `engine_failed` for one that is too large */
  async readChunks(response: EngineResponse): Promise<readonly Buffer[]> {
    const parts: Buffer[] = []
    let size = 0
    await response.pushTo({
      isDone: false,
      read: (chunks) => {
        for (const chunk of chunks) {
          parts.push(chunk)
          size += chunk.length
        }
        if (size > this.maxResponseBytes) throw createResponseTooLargeError(this.name, this.maxResponseBytes)
        return undefined
      },
    })
    return parts
  }

  /** Returns the response body of a GET, or of a POST of `json`. @throws as {@link sendRequest} */
  async query(path: string, signal: AbortSignal, json?: string): Promise<string> {
    return await this.readText(await this.sendRequest(path, signal, json))
  }

  /**
   * Returns the response body of a GET for a health check, on a route that only some versions have.
   * @returns undefined if the server lacks the route, or denies access
   * @throws ProxyError `engine_unreachable` or `engine_failed`
   */
  async queryOptional(path: string, signal: AbortSignal): Promise<string | undefined> {
    if (this.#missing.has(path)) return undefined
    try {
      return await this.query(path, signal)
    } catch (thrown) {
      if (!(thrown instanceof ProxyError && thrown.code === 'engine_rejected'))
        throw convertHealthError(thrown)
      const isMissing = thrown.status === 404 || thrown.status === 405
      // `/health` is requested by every check: a check that omits it would not detect a dead engine process.
      if (isMissing && path !== '/health') this.#missing.add(path)
      return undefined
    }
  }

  /**
   * Discards which routes are missing, because another server may replace this one. A gateway may also have responded
   * with 404 to all requests while the server restarted.
   */
  forgetMissing(): void {
    this.#missing.clear()
  }

  /** Closes all connections. Running requests fail; there should be none. */
  async close(): Promise<void> {
    await this.#pool.destroy()
  }
}

/**
 * Returns a body for undici, which accepts an iterable of chunks, though its types do not declare it. A short body is
 * copied into one buffer: each chunk is a system call, and often a packet, which takes ten times as long as the copy.
 */
function readBody(json: string | BodyChunks | undefined): string | Buffer | null {
  if (json === undefined || typeof json === 'string') return json ?? null
  const length = toBytes(json)
  return length <= MAX_COPIED_BYTES ? Buffer.concat(json, length) : (json as unknown as Buffer)
}

function toBytes(json: string | BodyChunks): number {
  if (typeof json === 'string') return Buffer.byteLength(json)
  return json.reduce((sum, chunk) => sum + chunk.length, 0)
}
