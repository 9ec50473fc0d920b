/** The nodes as the front asks them. */
import { request as requestHttp } from 'node:http'
import { request as requestHttps } from 'node:https'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { nodeOfSession } from '../../session/state/nodes.ts'

/** What a node said to a question that all of them were asked. */
export type NodeAnswer = NodeReply | NodeAway

export interface NodeReply {
  /** `2/4`. */
  node: string
  status: number
  text: string
}

export interface NodeAway {
  node: string
  error: string
}

/** Headers of a request or an answer that are of one connection and no other. */
const OF_ONE_CONNECTION = new Set([
  'connection',
  'content-length',
  'expect',
  'host',
  'keep-alive',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
])

export class Nodes {
  readonly #urls: readonly string[]
  readonly #timeoutMs: number

  /**
   * @param urls base URLs, node 1 first
   * @param timeoutMs how long a node may take for a question to all
   */
  constructor(urls: readonly string[], timeoutMs: number) {
    this.#urls = urls.map((url) => url.replace(/\/+$/, ''))
    this.#timeoutMs = timeoutMs
  }

  get count(): number {
    return this.#urls.length
  }

  /** All at once, in the order of their numbers. */
  askAll(request: FastifyRequest, pathOf: PathOf = () => request.url, body?: BodyOf): Promise<NodeAnswer[]> {
    return Promise.all(
      this.#urls.map((_, place) => this.ask(place, request, pathOf(place), { body: body?.(place) })),
    )
  }

  /** `2/4` of the second. */
  nameOf(place: number): string {
    return `${place + 1}/${this.count}`
  }

  /** The answer of one node to a GET as it came, with the caller's key, as it begins. @throws Error when it is away */
  open(place: number, request: FastifyRequest, signal: AbortSignal): Promise<Response> {
    return fetch(`${this.#urls[place]}${request.url}`, { headers: keyOf(request), signal })
  }

  /** One, with the caller's key. */
  async ask(
    place: number,
    request: FastifyRequest,
    path: string,
    { body, method = request.method }: Asked = {},
  ): Promise<NodeAnswer> {
    const node = this.nameOf(place)
    const headers = keyOf(request)
    const sent = body === undefined ? {} : { body: JSON.stringify(body) }
    try {
      const response = await fetch(`${this.#urls[place]}${path}`, {
        method,
        headers: { ...headers, ...(body !== undefined && { 'content-type': 'application/json' }) },
        signal: AbortSignal.timeout(this.#timeoutMs),
        ...sent,
      })
      return { node, status: response.status, text: await response.text() }
    } catch (error) {
      return { node, error: reasonOf(error) }
    }
  }

  /**
   * Hands a request on to the session's node, and its answer back, as they come.
   * @param body what was read of the request; absent: its stream
   * @returns when the answer has begun. @throws ProxyError `node_away`
   */
  async pass(sessionId: string, request: FastifyRequest, reply: FastifyReply, body?: unknown): Promise<void> {
    const place = nodeOfSession(sessionId, this.count) - 1
    const url = new URL(`${this.#urls[place]}${request.url}`)
    const send = url.protocol === 'https:' ? requestHttps : requestHttp
    const outgoing = send(url, { method: request.method, headers: passedOn(request.headers) })
    reply.raw.once('close', () => outgoing.destroy())
    const { promise, resolve, reject } = Promise.withResolvers<void>()
    outgoing.on('error', (cause) => {
      const message = `Node ${this.nameOf(place)} does not answer: ${reasonOf(cause)}`
      // Once the answer has begun it can only break off.
      if (reply.raw.headersSent) reply.raw.destroy()
      else reject(new ProxyError('node_away', message, { cause, node: this.nameOf(place) }))
    })
    outgoing.on('response', (response) => {
      reply.hijack()
      reply.raw.writeHead(response.statusCode ?? 502, passedOn(response.headers))
      response.on('error', () => reply.raw.destroy())
      response.pipe(reply.raw)
      resolve()
    })
    if (body === undefined) request.raw.pipe(outgoing)
    else outgoing.end(JSON.stringify(body))
    await promise
  }
}

interface Asked {
  body?: unknown
  /** Default: the request's. */
  method?: string
}

type PathOf = (place: number) => string
type BodyOf = (place: number) => unknown

const KEY_HEADERS = ['authorization', 'x-api-key', 'x-goog-api-key'] as const

function keyOf({ headers }: FastifyRequest): Record<string, string> {
  const sent = KEY_HEADERS.flatMap((name) =>
    typeof headers[name] === 'string' ? [[name, headers[name]]] : [],
  )
  return Object.fromEntries(sent)
}

function passedOn(headers: NodeJS.Dict<string | string[]>): NodeJS.Dict<string | string[]> {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !OF_ONE_CONNECTION.has(name)))
}

/** Why a node does not answer. */
export function reasonOf(error: unknown): string {
  const cause = error instanceof Error && error.cause instanceof Error ? error.cause : error
  return cause instanceof Error ? cause.message || cause.name : String(cause)
}
