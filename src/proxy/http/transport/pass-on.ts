/** A request that another proxy answers: bytes both ways, as they come. */
import {
  Agent as HttpAgent,
  type IncomingHttpHeaders,
  type IncomingMessage,
  type RequestOptions,
  request,
} from 'node:http'
import { Agent as HttpsAgent, request as secureRequest } from 'node:https'
import type { Socket } from 'node:net'
import { pipeline } from 'node:stream'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { whenClosed } from './when-closed.ts'

/** Through how many proxies a request has come. */
const HOPS = 'x-llm-proxy-hops'

/** Each of a series of owners may have gone by the time that a request comes to it. */
export const MAX_HOPS = 4

/** Says on a connection that is about to be closed that all answers of before have been passed on. */
const FAREWELL = 'GET /health HTTP/1.1\r\nhost: llm-proxy\r\nconnection: close\r\n\r\n'

/** A client of HTTP closes an idle connection so much earlier than its server would. */
const IDLE_MARGIN_MS = 2_000

/** Of one connection only (RFC 9110, section 7.6.1), and what each hop says for itself. */
const OWN_HEADERS = new Set([
  ...['connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade'],
  ...['host', 'expect'],
])

export function hopsOf({ headers }: FastifyRequest): number {
  const hops = Number(headers[HOPS] ?? 0)
  return Number.isInteger(hops) && hops >= 0 ? hops : MAX_HOPS
}

/** An event of a connection. */
const HEARD_AGAIN = 'heard-again'

/** To be called for each request. Who asks again has passed on what it was answered before. */
export function heardAgain({ raw: { socket } }: FastifyRequest): void {
  socket.emit(HEARD_AGAIN)
}

/**
 * Runs it if the proxy that has passed a request on is gone soon after it was sent the answer, without a word: it may have
 * been killed with the answer in its hands. It has passed it on where it asks for something else, or closes an idle
 * connection in its time, or says {@link FAREWELL}.
 */
export function whenPasserIsLost(request: FastifyRequest, reply: FastifyReply, run: () => void): void {
  if (hopsOf(request) === 0) return
  const { raw, server } = request
  const { socket } = raw
  whenClosed(reply.raw, () => {
    if (!reply.raw.writableFinished) return
    const idleFromMs = performance.now() + server.server.keepAliveTimeout - IDLE_MARGIN_MS
    const onClose = () => {
      if (performance.now() < idleFromMs) run()
    }
    if (socket.destroyed) return onClose()
    socket.once('close', onClose)
    socket.once(HEARD_AGAIN, () => socket.off('close', onClose))
  })
}

export class PassOn {
  readonly #http = new HttpAgent({ keepAlive: true })
  readonly #https: HttpsAgent

  /** @param authority certificate, in PEM, of proxies that are dialled by https; their names are not looked at */
  constructor(authority?: string) {
    this.#https = new HttpsAgent({
      keepAlive: true,
      ...(authority !== undefined && { ca: authority, checkServerIdentity: () => undefined }),
    })
  }

  /**
   * Sends the request to another proxy, and its answer to the client.
   * @param gone aborts when that proxy is known to have gone
   * @returns false: it could not be reached, and nothing of the request has been read
   */
  async send(request: FastifyRequest, reply: FastifyReply, url: string, gone: AbortSignal): Promise<boolean> {
    const answer = await this.#open(request, reply, url, gone)
    if (answer === undefined) return false
    reply.hijack()
    const { raw } = reply
    raw.writeHead(answer.statusCode!, answer.statusMessage, ownHeadersOut(answer.rawHeaders))
    raw.flushHeaders()
    const cut = () => raw.destroy()
    gone.addEventListener('abort', cut, { once: true })
    pipeline(answer, raw, () => gone.removeEventListener('abort', cut))
    // The client has left before all of it was handed over; the proxy that answered has to hear of it.
    const { socket } = answer
    whenClosed(raw, () => {
      if (!raw.writableFinished && this.#connections('freeSockets').includes(socket)) socket.destroy()
    })
    return true
  }

  #connections(which: 'sockets' | 'freeSockets'): Socket[] {
    return [this.#http, this.#https].flatMap((agent) =>
      Object.values(agent[which]).flatMap((sockets) => sockets ?? []),
    )
  }

  /** Its head. @throws ProxyError `proxy_away` once it has been sent a part of the request */
  #open(
    { raw, originalUrl, method, headers }: FastifyRequest,
    reply: FastifyReply,
    url: string,
    gone: AbortSignal,
  ): Promise<IncomingMessage | undefined> {
    const target = new URL(url)
    const isSecure = target.protocol === 'https:'
    const options: RequestOptions = {
      agent: isSecure ? this.#https : this.#http,
      method,
      headers: { ...passedHeaders(headers), [HOPS]: String(Number(headers[HOPS] ?? 0) + 1) },
    }
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage | undefined>()
    const outgoing = (isSecure ? secureRequest : request)(new URL(originalUrl, target), options, resolve)
    let hasBegun = false
    const cut = () => outgoing.destroy(new Error('its lease has run out'))
    gone.addEventListener('abort', cut, { once: true })
    whenClosed(reply.raw, () => {
      gone.removeEventListener('abort', cut)
      outgoing.destroy()
    })
    outgoing.once('error', (cause) => {
      if (!hasBegun && !raw.destroyed) resolve(undefined)
      else
        reject(
          new ProxyError('proxy_away', 'The proxy that had this session has gone', { cause, retryAfterS: 1 }),
        )
    })
    // A connection that is kept may be closed at the other end: the body is not read before there is one.
    outgoing.once('socket', (socket) => {
      const begin = () => {
        hasBegun = true
        pipeline(raw, outgoing, () => {})
      }
      if (socket.connecting) socket.once(isSecure ? 'secureConnect' : 'connect', begin)
      else begin()
    })
    return promise
  }

  /** The same question, put to another proxy, which answers for itself. @throws Error when it does not answer */
  ask({ originalUrl, headers }: FastifyRequest, url: string, signal: AbortSignal): Promise<IncomingMessage> {
    const target = new URL(originalUrl, url)
    const isSecure = target.protocol === 'https:'
    const options = {
      agent: isSecure ? this.#https : this.#http,
      headers: { ...passedHeaders(headers), [HOPS]: '1' },
      signal,
    }
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>()
    const outgoing = (isSecure ? secureRequest : request)(target, options, resolve)
    outgoing.once('error', reject)
    outgoing.end()
    return promise
  }

  close(): void {
    for (const socket of this.#connections('freeSockets')) socket.unref().end(FAREWELL)
    for (const socket of this.#connections('sockets')) socket.destroy()
  }
}

function passedHeaders(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => !OWN_HEADERS.has(name)))
}

/** Names and values in turn, as Node has them. */
function ownHeadersOut(raw: readonly string[]): string[] {
  return raw.filter((_, place) => !OWN_HEADERS.has(raw[place - (place % 2)]!.toLowerCase()))
}
