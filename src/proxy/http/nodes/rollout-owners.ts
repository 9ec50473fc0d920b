/**
 * Ownership of rollouts. If several nodes of one database run rollouts, each rollout belongs to one node, to which the
 * others forward the requests for it.
 */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import type { NodeStatus } from '../../store/port/node-coordination.ts'
import { getHops, MAX_HOPS } from './forwarder.ts'
import type { Nodes } from './nodes.ts'

/** The response headers that are forwarded to the client. */
const FORWARDED_HEADERS = ['content-type', 'retry-after', 'x-rollout-id']

/**
 * A function that forwards a request to the node that runs the rollout, and streams the response to the client.
 * @param body the JSON text of the body, which has been read
 * @throws ProxyError `proxy_away` if that node does not respond
 */
type ForwardRollout = (request: FastifyRequest, reply: FastifyReply, body?: string) => Promise<FastifyReply>

/** The ownership of rollouts in the database. */
export class RolloutOwners {
  readonly #nodes: Nodes
  /** The number of claims in progress by rollout id. */
  readonly #claims = new Map<string, number>()

  constructor(nodes: Nodes) {
    this.#nodes = nodes
  }

  /**
   * Claims a rollout for this node, and calls `start` if this node owns it now.
   * @returns the result of `start`, or a function that forwards to the owner
   */
  async claim<T>(rolloutId: string, start: () => T): Promise<{ started: T } | { forward: ForwardRollout }> {
    this.#claims.set(rolloutId, (this.#claims.get(rolloutId) ?? 0) + 1)
    try {
      const forward = this.#toForward(await this.#nodes.shared.claimRollout(rolloutId))
      return forward === undefined ? { started: start() } : { forward }
    } finally {
      const others = this.#claims.get(rolloutId)! - 1
      if (others > 0) this.#claims.set(rolloutId, others)
      else this.#claims.delete(rolloutId)
    }
  }

  /**
   * Finds the owner of a rollout.
   * @returns a function that forwards to it; undefined: no other node owns the rollout
   */
  async find(rolloutId: string): Promise<ForwardRollout | undefined> {
    return this.#toForward(await this.#nodes.shared.findRollout(rolloutId))
  }

  /**
   * Releases a rollout of this node, unless a new request claims it, which would start it without its row. A failure is
   * ignored, because a row without a rollout has no effect.
   */
  release(rolloutId: string): void {
    if (this.#claims.has(rolloutId)) return
    this.#nodes.shared.releaseRollout(rolloutId).catch(() => {})
  }

  /** Returns the rollouts of the other nodes; an empty list if another node sent the request. */
  async listOthers<T>(request: FastifyRequest): Promise<T[]> {
    const lists = await this.#nodes.others.ask<{ rollouts: T[] }>(request)
    return lists.flatMap(({ rollouts }) => rollouts)
  }

  #toForward(node: NodeStatus | undefined): ForwardRollout | undefined {
    return node && ((request, reply, body) => this.#forward(request, reply, node, body))
  }

  async #forward(
    request: FastifyRequest,
    reply: FastifyReply,
    { url }: NodeStatus,
    body?: string,
  ): Promise<FastifyReply> {
    if (url === undefined || getHops(request) >= MAX_HOPS) throw createOwnerLostError()
    const left = new AbortController()
    reply.raw.once('close', () => left.abort())
    const method = request.method as 'GET' | 'POST' | 'DELETE'
    const sent = { method, signal: left.signal, ...(body !== undefined && { body }) }
    const response = await this.#nodes.forwarder.send(request, url, sent).catch((cause: unknown) => {
      throw createOwnerLostError(cause)
    })
    const headers = FORWARDED_HEADERS.flatMap((name) =>
      response.headers[name] === undefined ? [] : [[name, response.headers[name]]],
    )
    return reply.code(response.statusCode).headers(Object.fromEntries(headers)).send(response.body)
  }
}

function createOwnerLostError(cause?: unknown): ProxyError {
  const message = 'The node that runs this rollout does not respond'
  return new ProxyError('proxy_away', message, { cause, retryAfterS: 1 })
}
