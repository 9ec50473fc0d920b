import type { onRequestHookHandler } from 'fastify'
import { type NodePlace, refuseForeign } from '../../session/state/nodes.ts'
import { parseTraceId } from '../../session/trajectories/traces.ts'

interface NamingParams {
  sessionId?: string
  traceId?: string
}

/** Refuses every request for a session of another node, whatever it asks: an answer would be about another session. */
export function ownSessionsOnly(node: NodePlace): onRequestHookHandler {
  return ({ caller, params }, _reply, done) => {
    const { sessionId, traceId } = params as NamingParams
    const inPath = sessionId ?? (traceId && parseTraceId(traceId).sessionId)
    const named = inPath ?? (caller.is === 'agent' ? caller.sessionId : undefined)
    if (named !== undefined) refuseForeign(named, node)
    done()
  }
}
