/**
 * Reverse proxy between the nodes of one database. undici frames the bodies of all methods and rejects requests that it
 * cannot frame. The target is a path, never a URL, so that a client cannot choose the host.
 */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { Agent, type Dispatcher, errors } from 'undici'
import { ProxyError } from '../../../base/errors.ts'
import type { NodeCoordination } from '../../store/port/node-coordination.ts'
import { DELIVERY_HEADER, type Deliveries } from './deliveries.ts'
import { DeliveryReports, type ReportTarget } from './delivery-reports.ts'
import { NODE_HEADER, type NodeIdentity, type SignedMessage } from './node-identity.ts'
import { NodeTrust } from './node-trust.ts'
import type { RequestBody } from './request-body.ts'
import type { DeliveryReport } from './routes.ts'

/** The header with the number of nodes that have forwarded a request. It is not signed, as it only bounds loops. */
const HOPS_HEADER = 'x-llm-proxy-hops'

/**
 * The header with the id of the message in which the request was sent before, to a node that crashed. It is trusted
 * only in requests that a node has signed. Earlier releases send `1`.
 */
const REPEATED_HEADER = 'x-llm-proxy-repeated'

/** The maximum number of times that a request is forwarded: its session may change its owner while it is in transit. */
export const MAX_HOPS = 4

const REPORT_TIMEOUT_MS = 5_000
/** The time that `close` waits for the last delivery reports. */
const FLUSH_MS = 2_000

/**
 * Headers that are not forwarded: those of one connection (RFC 9110, section 7.6.1), those that each hop writes itself,
 * and `Origin`, which only the first node can compare with the host that the client requested.
 */
const HOP_HEADERS = new Set([
  ...['connection', 'keep-alive', 'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade'],
  ...['host', 'expect', 'origin', HOPS_HEADER, NODE_HEADER, DELIVERY_HEADER, REPEATED_HEADER],
])

/** Headers that describe a body, which are removed from requests that are sent without it. */
const BODY_HEADERS = ['content-length', 'content-type', 'content-encoding']

/** Returns how often a request has been forwarded; {@link MAX_HOPS} if the header is malformed. */
export function getHops({ headers }: Pick<FastifyRequest, 'headers'>): number {
  const hops = Number(headers[HOPS_HEADER] ?? 0)
  return Number.isInteger(hops) && hops >= 0 ? hops : MAX_HOPS
}

/** Returns the id of the message in which a crashed node received this request, which it may have executed. */
export function getLostMessageId(request: FastifyRequest, identity: NodeIdentity): string | undefined {
  const { [REPEATED_HEADER]: id } = request.headers
  return typeof id === 'string' && identity.verify(request) !== undefined ? id : undefined
}

interface ForwarderOptions {
  shared: NodeCoordination
  identity: NodeIdentity
  deliveries: Deliveries
  /** The path that precedes all routes; it is the same at every node. */
  basePath?: string | undefined
  /** Verifies nodes with TLS; the forwarder closes it. Default: nodes have a certificate that Node.js trusts. */
  trust?: NodeTrust | undefined
}

/** A sender of requests to the other nodes. */
export class Forwarder {
  readonly #options: ForwarderOptions
  readonly #agent: Agent
  readonly #trust: NodeTrust
  readonly #reports: DeliveryReports

  constructor(options: ForwarderOptions) {
    this.#options = options
    const { trust = new NodeTrust(), shared } = options
    this.#trust = trust
    this.#agent = new Agent({
      // A response may be silent while a request waits for an engine, the end of a pause or the end of a session.
      headersTimeout: 0,
      bodyTimeout: 0,
      connect: trust.connect,
    })
    this.#reports = new DeliveryReports({
      send: (...args) => this.#sendReports(...args),
      getLossSignal: (id) => shared.getLossSignal(id),
    })
  }

  /**
   * Sends a request to the owner of its session, and the owner's response to the client.
   * @param body must be complete if the request was sent before, to a node that crashed
   * @returns false if the owner could not be reached; the body has not been read then
   * @throws ProxyError `proxy_away` if the owner crashes before its response begins; `invalid_request` for a target
   *   that is not a path, or a header that cannot be sent
   */
  async forward(
    request: FastifyRequest,
    reply: FastifyReply,
    owner: ReportTarget,
    body: RequestBody,
  ): Promise<boolean> {
    const { headers, method } = request
    const { shared, identity, deliveries } = this.#options
    const path = getPath(request.raw)
    const message = identity.sign(owner.id)
    const report = (delivered: boolean) => {
      if (message !== undefined) this.#reports.add(owner, { id: message.id, delivered })
    }
    const exchange = new NodeExchange(body, reply, {
      gone: shared.getLossSignal(owner.id),
      onTracked: () =>
        deliveries.watch(reply.raw, identity.verify(request), undefined, (outcome) =>
          report(outcome === 'delivered'),
        ),
    })
    this.#agent.dispatch(
      {
        origin: new URL(owner.url).origin,
        path,
        method: method as Dispatcher.HttpMethod,
        headers: {
          ...toForwardedHeaders(headers),
          ...toNodeHeaders(headers, message),
          ...(body.lostMessageId !== undefined && { [REPEATED_HEADER]: body.lostMessageId }),
        },
        body: body.open(message?.id),
      },
      exchange,
    )
    try {
      return await exchange.started
    } catch (error) {
      // The owner may have sent its whole response, and then waits for a delivery report.
      report(false)
      throw error
    }
  }

  /** Sends the same request to another node, as GET without a body. @throws Error if the node does not respond */
  sendGet(request: FastifyRequest, url: string, signal: AbortSignal): Promise<Dispatcher.ResponseData> {
    return this.send(request, url, { method: 'GET', signal })
  }

  /**
   * Sends a request to another node.
   * @param options the body is JSON text; absent: none
   * @throws Error if the node does not respond
   */
  async send(
    request: FastifyRequest,
    url: string,
    { method, body, signal }: { method: Dispatcher.HttpMethod; body?: string; signal: AbortSignal },
  ): Promise<Dispatcher.ResponseData> {
    const headers = toForwardedHeaders(request.headers)
    for (const name of BODY_HEADERS) delete headers[name]
    return await this.#agent.request({
      origin: new URL(url).origin,
      path: getPath(request.raw),
      method,
      headers: {
        ...headers,
        ...toNodeHeaders(request.headers, undefined),
        ...(body !== undefined && { 'content-type': 'application/json' }),
      },
      ...(body !== undefined && { body }),
      signal,
    })
  }

  async #sendReports(
    target: ReportTarget,
    reports: readonly DeliveryReport[],
    signal: AbortSignal,
  ): Promise<boolean> {
    const { identity, basePath = '' } = this.#options
    const message = identity.sign(target.id)
    if (message === undefined) return false
    const { statusCode, body } = await this.#agent.request({
      origin: new URL(target.url).origin,
      path: `${basePath}/nodes/deliveries`,
      method: 'POST',
      headers: { 'content-type': 'application/json', [NODE_HEADER]: message.header },
      body: JSON.stringify({ deliveries: reports }),
      signal: AbortSignal.any([signal, AbortSignal.timeout(REPORT_TIMEOUT_MS)]),
    })
    await body.dump()
    // A node that rejects the reports has a new lease, and no longer waits for them.
    return statusCode < 500
  }

  /** Sends the remaining reports and closes all connections. */
  async close(): Promise<void> {
    await this.#reports.flush(FLUSH_MS)
    await this.#agent.destroy()
    this.#trust.close()
  }
}

interface ExchangeOptions {
  /** Aborts when the lease of the other node has ended. */
  gone: AbortSignal
  /** Called before the headers are sent to the client, if the other node waits for a delivery report. */
  onTracked(): void
}

/** One exchange: a request that is forwarded to another node, and the response that is sent to the client. */
class NodeExchange implements Dispatcher.DispatchHandler {
  /** Resolves with false if the other node could not be reached; rejects if it crashed before its response began. */
  readonly started: Promise<boolean>
  readonly #body: RequestBody
  readonly #reply: FastifyReply
  readonly #options: ExchangeOptions
  readonly #settle: { resolve(isForwarded: boolean): void; reject(error: ProxyError): void }
  #state: 'connecting' | 'sent' | 'responding' | 'ended' = 'connecting'
  #controller: Dispatcher.DispatchController | undefined
  #abortReason: Error | undefined

  constructor(body: RequestBody, reply: FastifyReply, options: ExchangeOptions) {
    this.#body = body
    this.#reply = reply
    this.#options = options
    const { promise, resolve, reject } = Promise.withResolvers<boolean>()
    this.started = promise
    this.#settle = { resolve, reject }
    options.gone.addEventListener('abort', this.#onGone, { once: true })
    if (reply.raw.closed) this.#onClosed()
    else reply.raw.once('close', this.#onClosed)
  }

  readonly #onGone = () => this.#abort(new Error('the lease of the owner has ended'))
  readonly #onClosed = () => this.#abort(new Error('the client has left'))

  onRequestStart(controller: Dispatcher.DispatchController): void {
    if (this.#abortReason) {
      controller.abort(this.#abortReason)
      return
    }
    this.#controller = controller
    this.#state = 'sent'
    this.#body.start()
  }

  onResponseStart(
    controller: Dispatcher.DispatchController,
    status: number,
    headers: IncomingHttpHeaders,
    statusText = '',
  ): void {
    if (status < 200) return
    this.#state = 'responding'
    this.#body.release()
    if (headers[DELIVERY_HEADER] !== undefined) this.#options.onTracked()
    const { raw } = this.#reply.hijack()
    raw.writeHead(status, statusText, toResponseHeaders(controller.rawHeaders as Buffer[]))
    raw.flushHeaders()
    this.#settle.resolve(true)
  }

  onResponseData(controller: Dispatcher.DispatchController, chunk: Buffer): void {
    const { raw } = this.#reply
    if (raw.write(chunk) || raw.destroyed) return
    controller.pause()
    raw.once('drain', () => controller.resume())
  }

  onResponseEnd(): void {
    this.#end()
    this.#reply.raw.end()
  }

  onResponseError(_controller: Dispatcher.DispatchController, cause: Error): void {
    const state = this.#state
    this.#end()
    if (state === 'responding') this.#reply.raw.destroy()
    else if (cause instanceof errors.InvalidArgumentError || cause instanceof errors.NotSupportedError) {
      const message = `This request cannot be forwarded: ${cause.message}`
      this.#settle.reject(new ProxyError('invalid_request', message, { cause }))
    } else if (state === 'connecting' && !this.#reply.raw.destroyed) this.#settle.resolve(false)
    else {
      const message = 'The node that serves this session has crashed or cannot be reached'
      this.#settle.reject(new ProxyError('proxy_away', message, { cause, retryAfterS: 1 }))
    }
  }

  #end(): void {
    const wasConnecting = this.#state === 'connecting'
    this.#state = 'ended'
    this.#options.gone.removeEventListener('abort', this.#onGone)
    this.#reply.raw.off('close', this.#onClosed)
    if (!wasConnecting) this.#body.stop()
  }

  #abort(reason: Error): void {
    this.#abortReason = reason
    this.#controller?.abort(reason)
  }
}

/**
 * Returns the path and query of a request. The router has reduced a target in absolute form to its path; any other form
 * is rejected.
 * @throws ProxyError `invalid_request`
 */
function getPath({ url = '' }: IncomingMessage): string {
  if (url.startsWith('/')) return url
  throw new ProxyError('invalid_request', 'The target of this request is not a path')
}

function toForwardedHeaders(headers: IncomingHttpHeaders): IncomingHttpHeaders {
  const nominated = new Set(headers.connection?.split(',').map((name) => name.trim().toLowerCase()))
  return Object.fromEntries(
    Object.entries(headers).filter(([name]) => !HOP_HEADERS.has(name) && !nominated.has(name)),
  )
}

function toNodeHeaders(
  headers: IncomingHttpHeaders,
  message: SignedMessage | undefined,
): Record<string, string> {
  return {
    [HOPS_HEADER]: String(getHops({ headers }) + 1),
    ...(message && { [NODE_HEADER]: message.header }),
  }
}

/** Returns the headers to send to the client, as alternating names and values. */
function toResponseHeaders(raw: readonly Buffer[]): string[] {
  const texts = raw.map((part) => part.toString('latin1'))
  return texts.filter((_, index) => !HOP_HEADERS.has(texts[index - (index % 2)]!.toLowerCase()))
}
