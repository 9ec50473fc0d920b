/**
 * Of several proxies that share a record each session has one, whose memory its calls go by. A call that comes to another one
 * is passed on to it; so is what ends or resets a session, as it cancels the calls in flight.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { FastifyRequest, onRequestAsyncHookHandler } from 'fastify'
import type { Sessions } from '../../session/state/sessions.ts'
import { type SharedRecord, type SharingProxy, sessionMoved } from '../../store/port/shared-record.ts'
import { heardAgain, hopsOf, MAX_HOPS, type PassOn, whenPasserIsLost } from '../transport/pass-on.ts'
import { namedSession } from './session-of-call.ts'

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Only the session's owner can do it well: `change` it, or `watch` what it does. Calls of agents are such always. */
    ofOwner?: 'change' | 'watch'
  }
}

interface Options {
  sessions: Sessions
  shared: SharedRecord
  passOn: PassOn
  /** This proxy takes no new calls. */
  isDraining(): boolean
}

/** An owner that has gone is waited for, until its lease has run out; one that drains, until its calls have ended. */
const PATIENCE_MS = 60_000
const LOOK_MS = 200

export function passToOwner(options: Options): onRequestAsyncHookHandler {
  const { sessions, shared, passOn, isDraining } = options
  return async (request, reply) => {
    heardAgain(request)
    const kind = kindOf(request)
    const sessionId = kind && (await namedSession(request, sessions))
    if (kind === undefined || sessionId === undefined) return
    const untilMs = performance.now() + PATIENCE_MS
    while (performance.now() < untilMs && !request.raw.destroyed) {
      const owner = await whoServes(sessionId)
      if (owner === undefined) {
        if (kind === 'call') whenPasserIsLost(request, reply, () => sessions.doubt(sessionId))
        return
      }
      if (hopsOf(request) >= MAX_HOPS) throw sessionMoved(sessionId)
      const isServing = kind !== 'call' || !owner.isDraining
      if (owner.url !== undefined && isServing) {
        const sent = await passOn.send(request, reply, owner.url, shared.goneOf(owner.id))
        if (sent) return reply
        // A change is made here: the owner, if it is there all the same, is told by the record that it is none any more.
        if (kind === 'change') return
      }
      await sleep(LOOK_MS)
    }
    throw sessionMoved(sessionId)
  }

  /** @returns undefined: this proxy */
  async function whoServes(sessionId: string): Promise<SharingProxy | undefined> {
    const owner = await sessions.ownerElsewhere(sessionId)
    if (owner !== undefined || !isDraining()) return owner
    const others = shared.proxies.filter(({ id, url, isDraining }) => {
      return id !== shared.self?.id && url !== undefined && !isDraining
    })
    return others[Math.floor(Math.random() * others.length)]
  }
}

function kindOf({ method, routeOptions }: FastifyRequest): 'call' | 'change' | 'watch' | undefined {
  const { scope, ofOwner } = routeOptions.config
  return scope === 'agent' && method === 'POST' ? 'call' : ofOwner
}
