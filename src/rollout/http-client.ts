import type { IncomingHttpHeaders } from 'node:http'
import type { Readable } from 'node:stream'
import { text } from 'node:stream/consumers'
import { Agent, type FormData, request } from 'undici'

export interface HttpRequest {
  method: 'GET' | 'POST' | 'DELETE'
  url: string
  headers?: Readonly<Record<string, string>>
  /** JSON text, a form, or a stream of bytes. */
  body?: string | FormData | Readable | undefined
  signal: AbortSignal
}

export interface HttpResponse {
  /** The status code, 200 to 599. */
  status: number
  text: string
}

/** A response whose body has not been read yet. */
export interface OpenHttpResponse {
  status: number
  headers: IncomingHttpHeaders
  body: Readable
}

/**
 * The time that idle connections stay open, shorter than uvicorn's 5 s, so that no request is sent on a connection that
 * the server is closing.
 */
const KEEP_ALIVE_MS = 4_000
const CONNECT_TIMEOUT_MS = 10_000

/**
 * The HTTP client of rollouts: a pool of keep-alive connections. A response has no time limit other than the request's
 * signal, because a server may run an agent before it responds.
 */
export class HttpClient {
  readonly #agent: Agent

  /** @param trust authorities in PEM that may issue the servers' certificates; default: those of Node.js */
  constructor(trust: { ca?: string[] } = {}) {
    this.#agent = new Agent({
      headersTimeout: 0,
      bodyTimeout: 0,
      keepAliveTimeout: KEEP_ALIVE_MS,
      connect: { timeout: CONNECT_TIMEOUT_MS, ...trust },
    })
  }

  /** Sends a request and reads the response. @throws the error of the connection; `signal.reason` after an abort */
  async send(options: HttpRequest): Promise<HttpResponse> {
    const { status, body } = await this.open(options)
    try {
      return { status, text: await text(body) }
    } catch (error) {
      options.signal.throwIfAborted()
      throw error
    }
  }

  /** Sends a request as `send` does, and returns the body as a stream. */
  async open({ method, url, headers = {}, body, signal }: HttpRequest): Promise<OpenHttpResponse> {
    signal.throwIfAborted()
    try {
      const response = await request(url, {
        dispatcher: this.#agent,
        method,
        headers: { ...headers, ...(typeof body === 'string' && { 'content-type': 'application/json' }) },
        body: body ?? null,
        signal,
      })
      return { status: response.statusCode, headers: response.headers, body: response.body }
    } catch (error) {
      signal.throwIfAborted()
      throw error
    }
  }

  /** Closes all connections. Requests in flight fail. */
  async close(): Promise<void> {
    await this.#agent.destroy()
  }
}
