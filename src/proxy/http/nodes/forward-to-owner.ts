/**
 * Routing by owner. Each session has one owner among the nodes of a database, which has its state; a request for the
 * session that arrives at another node is forwarded to the owner. Requests that end or reset a session are forwarded,
 * too, because they cancel the requests in flight.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyRequest, onRequestAsyncHookHandler } from 'fastify'
import type { Sessions } from '../../session/state/sessions.ts'
import { type SharedRecord, type SharingProxy, sessionMoved } from '../../store/port/shared-record.ts'
import { namedSession } from '../agent/session-of-call.ts'
import type { Deliveries } from './deliveries.ts'
import { type Forwarder, getHops, MAX_HOPS } from './forwarder.ts'
import type { NodeIdentity } from './node-identity.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /**
     * Marks a route that the session's owner serves: `change` modifies the session, `watch` reads its state. The owner
     * always serves agents' requests.
     */
    ofOwner?: 'change' | 'watch'
  }
}

interface Options {
  sessions: Sessions
  shared: SharedRecord
  identity: NodeIdentity
  deliveries: Deliveries
  forwarder: Forwarder
  /** Whether this node accepts no new requests. */
  isDraining(): boolean
}

/** How long a request waits for a crashed owner's lease to end, or for a draining owner to finish its requests. */
const MAX_WAIT_MS = 60_000
const POLL_MS = 200

export function forwardToOwner(options: Options): onRequestAsyncHookHandler {
  const { sessions, shared, identity, deliveries, forwarder, isDraining } = options
  return async (request, reply) => {
    const kind = getKind(request)
    const sessionId = kind && (await namedSession(request, sessions))
    if (kind === undefined || sessionId === undefined) return
    const untilMs = performance.now() + MAX_WAIT_MS
    while (performance.now() < untilMs && !request.raw.destroyed) {
      const node = await findServingNode(sessionId)
      if (node === undefined) {
        // Two nodes may find a session without an owner at the same time; one of them acquires it.
        if (kind === 'request' && !(await sessions.acquire(sessionId))) {
          await sleep(POLL_MS)
          continue
        }
        if (kind === 'request') {
          await deliveries.settle(sessionId)
          const message = identity.verify(request)
          if (message !== undefined)
            deliveries.watch(reply.raw, message, sessionId, (outcome) => {
              if (outcome === 'lost') sessions.markDeliveryUnknown(sessionId)
            })
        }
        return
      }
      if (getHops(request) >= MAX_HOPS) throw sessionMoved(sessionId)
      const acceptsRequests = kind !== 'request' || !node.isDraining
      if (node.url !== undefined && acceptsRequests) {
        if (await forwarder.forward(request, reply, { id: node.id, url: node.url })) return reply
        // A change is made on this node: an owner that still runs detects by the epoch that it was replaced.
        if (kind === 'change') return
      }
      await sleep(POLL_MS)
    }
    throw sessionMoved(sessionId)
  }

  /** @returns undefined: this node */
  async function findServingNode(sessionId: string): Promise<SharingProxy | undefined> {
    const owner = await sessions.ownerElsewhere(sessionId)
    if (owner !== undefined || !isDraining()) return owner
    const others = shared.proxies.filter(({ id, url, isDraining }) => {
      return id !== shared.self?.id && url !== undefined && !isDraining
    })
    return others[Math.floor(Math.random() * others.length)]
  }
}

function getKind({ method, routeOptions }: FastifyRequest): 'request' | 'change' | 'watch' | undefined {
  const { scope, ofOwner } = routeOptions.config
  return scope === 'agent' && method === 'POST' ? 'request' : ofOwner
}
