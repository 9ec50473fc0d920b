/**
 * The routes of `/rollouts`, for a rollout server and for a proxy that runs rollouts itself; docs/rollouts.md lists
 * them.
 */
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import { keepIntegers } from '../../protocol/canonical/number-texts.ts'
import type { RolloutOwners } from './owners.ts'
import { parseRequest } from './request.ts'
import type { RolloutSummary, Rollouts } from './rollouts.ts'

export interface RolloutRoutesOptions {
  rollouts: Rollouts
  /** The owners of rollouts, if there are several nodes. Absent: this process owns all rollouts. */
  owners?: RolloutOwners | undefined
  /** The heartbeat interval of a pending response: it may take hours, and intermediaries close idle connections. */
  heartbeatMs?: number | undefined
}

/** The limit of a request body, in which a row may contain images. */
const BODY_LIMIT_BYTES = 100_000_000
const HEARTBEAT_MS = 15_000

interface RolloutRoute {
  Params: { id: string }
}

/** Creates the routes. Register them in a scope for admins only: their users can run agents. */
export function rolloutRoutes(options: RolloutRoutesOptions): FastifyPluginCallback {
  const { rollouts, owners } = options
  return (app: FastifyInstance, _options, done) => {
    // Accepts JSON only: a web page of another origin cannot send it without a preflight request.
    app.removeAllContentTypeParsers()
    const json = app.getDefaultJsonParser('error', 'error')
    app.addContentTypeParser(
      'application/json',
      { parseAs: 'string', bodyLimit: BODY_LIMIT_BYTES },
      (request, body, parsed) =>
        json(request, String(body), (error, value) => {
          keepIntegers(value, String(body))
          parsed(error, value)
        }),
    )
    const schema = { hide: true }
    app.post('/rollouts', { schema, config: { awaitedOnClose: false } }, (request, reply) =>
      handleRollout(options, request, reply),
    )
    app.get('/rollouts', { schema }, async (request) => {
      const others = (await owners?.listOthers<RolloutSummary>(request)) ?? []
      const all = [...rollouts.list(), ...others]
      return { rollouts: all.sort((a, b) => b.created_at - a.created_at) }
    })
    const byId = (serve: (id: string) => unknown) =>
      async function serveOrForward(request: FastifyRequest<RolloutRoute>, reply: FastifyReply) {
        const forward = await owners?.find(request.params.id)
        return forward === undefined ? serve(request.params.id) : forward(request, reply)
      }
    app.get<RolloutRoute>(
      '/rollouts/:id',
      { schema },
      byId((id) => rollouts.get(id)),
    )
    app.delete<RolloutRoute>(
      '/rollouts/:id',
      { schema },
      byId((id) => rollouts.remove(id)),
    )
    done()
  }
}

/** Responds to `POST /rollouts`. Until the rollout has ended it sends spaces, which JSON permits before a value. */
async function handleRollout(
  { rollouts, owners, heartbeatMs = HEARTBEAT_MS }: RolloutRoutesOptions,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  const { rollout_id = randomUUID(), ...rest } = parseRequest(request.body)
  const rollout = { ...rest, rollout_id }
  const response = reply.raw
  const disconnected = new AbortController()
  response.once('close', () => disconnected.abort())
  const start = () => rollouts.requestRollout(rollout, disconnected.signal)
  const claim = owners ? await owners.claim(rollout_id, start) : { started: start() }
  if ('forward' in claim) return claim.forward(request, reply, JSON.stringify(rollout))
  const waited = claim.started
  reply.hijack()
  response.writeHead(200, {
    'content-type': 'application/json',
    'x-rollout-id': encodeURIComponent(waited.rolloutId),
  })
  response.flushHeaders()
  const heartbeat = setInterval(() => response.write(' '), heartbeatMs)
  const text = await waited.response
  clearInterval(heartbeat)
  if (response.destroyed) return undefined
  response.end(text)
  await once(response, 'close').catch(() => {})
  return undefined
}
