/**
 * Forwards requests to the owners of their sessions. Each session has one owner among the nodes of a database, which
 * has its state in memory; a request that arrives at another node is forwarded to the owner. Requests that end or reset
 * a session are forwarded as well, because they cancel the session's requests in flight.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyReply, FastifyRequest, onRequestAsyncHookHandler } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import type { RetryInfo } from '../../session/state/live-turn.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import {
  createSessionMovedError,
  type NodeCoordination,
  type NodeStatus,
} from '../../store/port/node-coordination.ts'
import { getNamedSession } from '../agent/request-session.ts'
import type { Deliveries } from './deliveries.ts'
import { type Forwarder, getHops, getLostMessageId, MAX_HOPS } from './forwarder.ts'
import type { NodeIdentity } from './node-identity.ts'
import { RequestBody } from './request-body.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * Marks a route that the session's owner serves: `change` modifies the session, `watch` reads its state. LLM
     * requests need no mark, because the owner serves all of them.
     */
    ofOwner?: 'change' | 'watch'
  }
  interface FastifyRequest {
    /** The forwarder for this request, if another node may create its session first; otherwise null. */
    ownerForwarder: OwnerForwarder | null
    /** The ids of the messages between nodes that contained this request; null: it was not forwarded. */
    forwarding: Pick<RetryInfo, 'nodeMessageId' | 'lostMessageId'> | null
  }
}

/**
 * A forwarder of one request to the owner of its session, for the case that another node creates the session while this
 * node reads the body.
 */
interface OwnerForwarder {
  /** Starts to copy the body. It must be called before the body is read. */
  copyBody(): void
  /** Forwards the request to the owner. @returns false if there is no other owner, or the body was not copied */
  forward(reply: FastifyReply): Promise<boolean>
}

interface ForwardingOptions {
  sessions: Sessions
  shared: NodeCoordination
  identity: NodeIdentity
  deliveries: Deliveries
  forwarder: Forwarder
  /** Returns whether this node accepts no new requests. */
  isDraining(): boolean
}

/** The time that a request waits for the lease of a crashed owner to end, or for a draining owner to finish. */
const MAX_WAIT_MS = 60_000
const POLL_MS = 200
/** The time that a request whose owner crashed waits for a new owner: the duration of a lease and of a take-over. */
const LOST_WAIT_MS = 8_000

/** The maximum size of a copied body. First requests of a session are short; the client of a longer one must retry. */
const MAX_COPIED_BYTES = 1024 * 1024

/** The crash of the owner while it processed the request. */
interface OwnerCrash {
  /** The lease of the owner. */
  readonly id: number
  /** The error of the attempt to forward the request. */
  readonly error: unknown
}

/**
 * Returns a hook that forwards each request to the owner of its session, and returns normally if this node is the
 * owner.
 * @throws ProxyError `proxy_away` if the owner crashed and the request cannot be sent again, `session_moved`
 */
export function forwardToOwner(options: ForwardingOptions): onRequestAsyncHookHandler {
  const { sessions, shared, identity, deliveries, forwarder, isDraining } = options
  return async (request, reply) => {
    const kind = getForwardingKind(request)
    const sessionId = kind && (await getNamedSession(request, sessions))
    if (kind === undefined || sessionId === undefined) return
    let untilMs = performance.now() + MAX_WAIT_MS
    let crash: OwnerCrash | undefined
    const body = new RequestBody(request.raw, {
      limitBytes: kind === 'request' ? request.routeOptions.bodyLimit : 0,
      setMemory: (bytes) => request.charge.setMemory(bytes),
      lostMessageId: getLostMessageId(request, identity),
    })
    while (performance.now() < untilMs && !reply.raw.destroyed) {
      const owner = await findServingNode(sessionId)
      // The body of a request whose owner crashed has been read, so this node sends it to itself.
      const node = owner ?? (crash && shared.self)
      if (node === undefined && crash === undefined) {
        // If two nodes find the session without an owner at the same time, only one of them acquires it.
        if (kind === 'request' && !(await sessions.acquireOwnership(sessionId))) {
          await sleep(POLL_MS)
          continue
        }
        if (kind === 'request') await prepare(request, reply, sessionId, body.lostMessageId)
        if (kind === 'request' && !sessions.isOwned(sessionId))
          request.ownerForwarder = createOwnerForwarder(request, sessionId)
        return
      }
      if (getHops(request) >= MAX_HOPS) throw createSessionMovedError(sessionId)
      const { id, url, isDraining = false } = node ?? {}
      const acceptsRequests = kind !== 'request' || !isDraining
      if (id !== undefined && id !== crash?.id && url !== undefined && acceptsRequests) {
        try {
          if (await forwarder.forward(request, reply, { id, url }, body)) return reply
          // This node makes a change itself if the owner cannot be reached. An owner that still runs is then fenced.
          if (kind === 'change') return
        } catch (error) {
          // A request that is in flight during two crashes may cause them, so it is not sent again.
          if (kind !== 'request' || body.lostMessageId || !isLost(error) || !(await body.complete(true)))
            throw error
          crash = { id, error }
          untilMs = performance.now() + LOST_WAIT_MS
        }
      }
      await sleep(POLL_MS)
    }
    throw crash?.error ?? createSessionMovedError(sessionId)
  }

  /** Prepares the session for a request that this node serves. */
  async function prepare(
    request: FastifyRequest,
    { raw }: FastifyReply,
    sessionId: string,
    lostMessageId: string | undefined,
  ): Promise<void> {
    await deliveries.settle(sessionId)
    // The crashed node may have committed the turn. This request then receives its response, or supersedes it.
    if (lostMessageId !== undefined) sessions.markDeliveryUnknown(sessionId)
    const message = identity.verify(request)
    request.forwarding = { nodeMessageId: message?.id, lostMessageId }
    if (message === undefined) return
    deliveries.watch(raw, message, sessionId, (outcome) => {
      if (outcome === 'lost') sessions.markDeliveryUnknown(sessionId)
    })
  }

  function createOwnerForwarder(request: FastifyRequest, sessionId: string): OwnerForwarder {
    const body = new RequestBody(request.raw, {
      limitBytes: MAX_COPIED_BYTES,
      setMemory: () => {},
      lostMessageId: getLostMessageId(request, identity),
    })
    return {
      copyBody: () => body.copy(),
      forward: async (reply) => {
        if (getHops(request) >= MAX_HOPS || !(await body.complete(false))) return false
        const untilMs = performance.now() + LOST_WAIT_MS
        while (performance.now() < untilMs && !reply.raw.destroyed) {
          const owner = await sessions.findOtherOwner(sessionId)
          if (owner === undefined) return false
          const { id, url } = owner
          // A node that has just started publishes its URL with the next renewal of its lease.
          if (url !== undefined && (await forwarder.forward(request, reply, { id, url }, body))) return true
          await sleep(POLL_MS)
        }
        return false
      },
    }
  }

  /**
   * Returns the node that is to serve a session: its owner, or, if this node drains, a random other one; undefined:
   * this node.
   */
  async function findServingNode(sessionId: string): Promise<NodeStatus | undefined> {
    const owner = await sessions.findOtherOwner(sessionId)
    if (owner !== undefined || !isDraining()) return owner
    const others = shared.proxies.filter(({ id, url, isDraining }) => {
      return id !== shared.self?.id && url !== undefined && !isDraining
    })
    return others[Math.floor(Math.random() * others.length)]
  }
}

function getForwardingKind({
  method,
  routeOptions,
}: FastifyRequest): 'request' | 'change' | 'watch' | undefined {
  const { scope, ofOwner } = routeOptions.config
  return scope === 'agent' && method === 'POST' ? 'request' : ofOwner
}

function isLost(error: unknown): boolean {
  return error instanceof ProxyError && error.code === 'proxy_away'
}
