/**
 * Routing by owner. Each session has one owner among the nodes of a database, which has its state; a request for the
 * session that arrives at another node is forwarded to the owner. Requests that end or reset a session are forwarded,
 * too, because they cancel the requests in flight.
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
     * Marks a route that the session's owner serves: `change` modifies the session, `watch` reads its state. The owner
     * always serves agents' requests.
     */
    ofOwner?: 'change' | 'watch'
  }
  interface FastifyRequest {
    /** Set for a request whose session did not exist, because another node may create it first; otherwise null. */
    otherOwner: OtherOwner | null
    /** The messages between nodes in which this request was sent; null: there are no other nodes. */
    forwarding: Pick<RetryInfo, 'nodeMessageId' | 'lostMessageId'> | null
  }
}

/** Forwards a request, whose body this node has read, to the node that has created its session meanwhile. */
interface OtherOwner {
  /** Keeps the body, before it is read. */
  copyBody(): void
  /** @returns whether the request was forwarded */
  forward(reply: FastifyReply): Promise<boolean>
}

interface Options {
  sessions: Sessions
  shared: NodeCoordination
  identity: NodeIdentity
  deliveries: Deliveries
  forwarder: Forwarder
  /** Whether this node accepts no new requests. */
  isDraining(): boolean
}

/** How long a request waits for a crashed owner's lease to end, or for a draining owner to finish its requests. */
const MAX_WAIT_MS = 60_000
const POLL_MS = 200
/** How long a request whose owner crashed waits for the next one: the length of a lease and the time to take over. */
const LOST_WAIT_MS = 8_000

/** First requests are short. The client of a longer one retries. */
const MAX_COPIED_BYTES = 1024 * 1024

/** The crash of the owner while it processed the request. */
interface OwnerCrash {
  /** The lease of the owner. */
  readonly id: number
  /** The error of the attempt to forward the request. */
  readonly error: unknown
}

export function forwardToOwner(options: Options): onRequestAsyncHookHandler {
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
        // Two nodes may find a session without an owner at the same time; one of them acquires it.
        if (kind === 'request' && !(await sessions.acquireOwnership(sessionId))) {
          await sleep(POLL_MS)
          continue
        }
        if (kind === 'request') await prepare(request, reply, sessionId, body.lostMessageId)
        if (kind === 'request' && !sessions.isOwned(sessionId))
          request.otherOwner = createOtherOwner(request, sessionId)
        return
      }
      if (getHops(request) >= MAX_HOPS) throw createSessionMovedError(sessionId)
      const { id, url, isDraining = false } = node ?? {}
      const acceptsRequests = kind !== 'request' || !isDraining
      if (id !== undefined && id !== crash?.id && url !== undefined && acceptsRequests) {
        try {
          if (await forwarder.forward(request, reply, { id, url }, body)) return reply
          // A change is made on this node: an owner that still runs detects by the epoch that it was replaced.
          if (kind === 'change') return
        } catch (error) {
          // A second crash may be the fault of the request.
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
    // The lost node may have committed the turn: this request gets its response, or its turn supersedes it.
    if (lostMessageId !== undefined) sessions.markDeliveryUnknown(sessionId)
    const message = identity.verify(request)
    request.forwarding = { nodeMessageId: message?.id, lostMessageId }
    if (message === undefined) return
    deliveries.watch(raw, message, sessionId, (outcome) => {
      if (outcome === 'lost') sessions.markDeliveryUnknown(sessionId)
    })
  }

  function createOtherOwner(request: FastifyRequest, sessionId: string): OtherOwner {
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
          // The address of a node that has just started is known with the next renewal of the lease.
          if (url !== undefined && (await forwarder.forward(request, reply, { id, url }, body))) return true
          await sleep(POLL_MS)
        }
        return false
      },
    }
  }

  /** @returns undefined: this node */
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
