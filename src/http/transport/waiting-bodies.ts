import { getHeapStatistics } from 'node:v8'
import type { preHandlerHookHandler } from 'fastify'
import { ProxyError } from '../../errors.ts'

/** Of the budget, the part that the calls of one agent's key may take. */
const SHARE_OF_ONE_AGENT = 0.25

/** Half of what the heap may grow to. */
export function defaultWaitingBytes(): number {
  return Math.floor(getHeapStatistics().heap_size_limit / 2)
}

/**
 * Bounds the memory of bodies whose calls wait or run: a body stays until its call has been answered. Over the budget a
 * call is turned away when its body has been read, and its SDK tries it again.
 * @param totalBytes of all bodies together, by what they take in memory
 */
export function limitWaitingBodies(totalBytes: number): preHandlerHookHandler {
  const agentBytes = totalBytes * SHARE_OF_ONE_AGENT
  const heldBy = new Map<string, number>()
  let held = 0
  return ({ caller, bodyMemoryBytes: bytes }, { raw }, done) => {
    // Who has gone already will not say so again.
    if (bytes === 0 || raw.destroyed) return done()
    const agent = caller.is === 'agent' ? caller.sessionId : undefined
    const ofAgent = agent === undefined ? 0 : (heldBy.get(agent) ?? 0) + bytes
    if (ofAgent > agentBytes && ofAgent > bytes) return done(ofThisAgent())
    if (held > 0 && held + bytes > totalBytes) return done(ofAll())
    held += bytes
    if (agent !== undefined) heldBy.set(agent, ofAgent)
    raw.once('close', () => {
      held -= bytes
      if (agent === undefined) return
      const left = heldBy.get(agent)! - bytes
      if (left === 0) heldBy.delete(agent)
      else heldBy.set(agent, left)
    })
    done()
  }
}

function ofThisAgent(): ProxyError {
  const message = 'The calls of this agent that are under way hold too much memory; try again later'
  return new ProxyError('too_many_calls', message, { retryAfterS: 1 })
}

function ofAll(): ProxyError {
  const message = 'The calls that are under way hold too much memory; try again later'
  return new ProxyError('queue_full', message, { retryAfterS: 1 })
}
