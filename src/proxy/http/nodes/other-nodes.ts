/** Queries the other nodes of the database for state that only their memory contains: open turns and events. */
import { json } from 'node:stream/consumers'
import type { FastifyRequest } from 'fastify'
import { splitLines } from '../../../base/split-lines.ts'
import type { NodeCoordination, NodeStatus } from '../../store/port/node-coordination.ts'
import type { NdjsonReply } from '../transport/ndjson-reply.ts'
import { type Forwarder, getHops } from './forwarder.ts'

/** The interval at which new nodes are detected. */
const POLL_MS = 1_000
const TIMEOUT_MS = 2_000

/** A client for queries to the other nodes. */
export class OtherNodes {
  readonly #shared: NodeCoordination
  readonly #forwarder: Forwarder

  constructor(shared: NodeCoordination, forwarder: Forwarder) {
    this.#shared = shared
    this.#forwarder = forwarder
  }

  /**
   * Adds the lines that the other nodes stream, until the client disconnects. Adds none if another node sent the
   * request.
   */
  follow(request: FastifyRequest, lines: NdjsonReply): void {
    if (getHops(request) > 0) return
    const left = new AbortController()
    lines.runWhenClosed(() => left.abort())
    const followed = new Set<number>()
    const copyNew = () => {
      for (const other of this.#others) {
        if (followed.has(other.id)) continue
        followed.add(other.id)
        void this.#copy(request, other, lines, left.signal).finally(() => followed.delete(other.id))
      }
    }
    copyNew()
    lines.runEvery(POLL_MS, copyNew)
  }

  /** Returns the JSON responses of the other nodes, except nodes that fail or reject the request. */
  async ask<T>(request: FastifyRequest): Promise<T[]> {
    if (getHops(request) > 0) return []
    const responses = await Promise.all(
      this.#others.map((other) => this.#sendRequest<T>(request, other).catch(() => undefined)),
    )
    return responses.filter((response) => response !== undefined)
  }

  get #others(): (NodeStatus & { url: string })[] {
    const { self, proxies } = this.#shared
    return proxies.flatMap((proxy) =>
      proxy.id === self?.id || proxy.url === undefined ? [] : [{ ...proxy, url: proxy.url }],
    )
  }

  async #sendRequest<T>(request: FastifyRequest, { url }: { url: string }): Promise<T | undefined> {
    const { statusCode, body } = await this.#forwarder.sendGet(request, url, AbortSignal.timeout(TIMEOUT_MS))
    const value = await json(body)
    return statusCode === 200 ? (value as T) : undefined
  }

  /** Copies the lines of one node. Never rejects. */
  async #copy(
    request: FastifyRequest,
    { id, url }: { id: number; url: string },
    lines: NdjsonReply,
    left: AbortSignal,
  ): Promise<void> {
    try {
      const signal = AbortSignal.any([left, this.#shared.getLossSignal(id)])
      const { statusCode, body } = await this.#forwarder.sendGet(request, url, signal)
      if (statusCode !== 200) return void (await body.dump())
      for await (const line of splitLines(body.setEncoding('utf8'), { completeOnly: true }))
        if (!line.includes('"type":"ping"')) lines.sendLine(line)
    } catch {
      // The node or the client is gone. The next poll detects which.
    }
  }
}
