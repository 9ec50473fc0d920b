/** `POST /sessions/lost`: which of a trainer's sessions are on no node that answers, so that their samples are to be run again. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { nodeOfSession } from '../../session/state/nodes.ts'
import { naming, refuse, withAway } from './ask-all.ts'
import type { Nodes } from './nodes.ts'

/** `node_away`: its node does not answer. `not_found`: its node has no such session, as one with a new volume has none. */
type Why = 'node_away' | 'not_found'

/** Asked at the same time. */
const AT_ONCE = 16

export async function lostSessions(
  nodes: Nodes,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  const ids = idsIn(request.body)
  const away = new Map<string, string>()
  const waiting = [...ids.entries()]
  const found: { place: number; session_id: string; node: string; why: Why }[] = []
  let refusal: { status: number; text: string } | undefined
  const ask = async () => {
    for (let next = waiting.shift(); next !== undefined && refusal === undefined; next = waiting.shift()) {
      const [place, sessionId] = next
      const at = nodeOfSession(sessionId, nodes.count) - 1
      const node = nodes.nameOf(at)
      const path = `/sessions/${encodeURIComponent(sessionId)}/wait?timeout_s=0`
      // One that did not answer is not waited for a thousand times.
      const answer = away.has(node) ? undefined : await nodes.ask(at, request, path, { method: 'GET' })
      if (answer === undefined || 'error' in answer || answer.status >= 500) {
        if (answer) away.set(node, 'error' in answer ? answer.error : `HTTP ${answer.status}`)
        found.push({ place, session_id: sessionId, node, why: 'node_away' })
      } else if (answer.status === 404) found.push({ place, session_id: sessionId, node, why: 'not_found' })
      else if (answer.status >= 400) refusal = answer
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, ask))
  if (refusal) return refuse(reply, refusal)
  const lost = found.sort((a, b) => a.place - b.place).map(({ place: _place, ...each }) => each)
  const nodesOff = [...away].map(([node, error]) => ({ node, error }))
  return naming(reply, nodesOff).send(withAway({ lost, asked: ids.length }, nodesOff))
}

function idsIn(body: unknown): string[] {
  const ids = (body as { session_ids?: unknown } | null | undefined)?.session_ids
  if (Array.isArray(ids) && ids.every((id) => typeof id === 'string')) return ids
  throw new ProxyError('invalid_request', "'session_ids' must be a list of texts", { param: 'session_ids' })
}
