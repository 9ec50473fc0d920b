/** The routes of `/rollouts`, of a rollout server and of a proxy that runs rollouts itself; docs/rollouts.md has them. */
import { once } from 'node:events'
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import { parseRequest } from './request.ts'
import type { Rollouts } from './rollouts.ts'

export interface RolloutRoutesOptions {
  rollouts: Rollouts
  /** Between two signs of life of an answer that is waited for: hours may pass, and whatever is on the way hangs up. */
  heartbeatMs?: number | undefined
}

/** A row may have images in it. */
const BODY_LIMIT_BYTES = 100_000_000
const HEARTBEAT_MS = 15_000

interface ById {
  Params: { id: string }
}

/** To be registered in a scope of admins: whoever may use them runs agents. */
export function rolloutRoutes(options: RolloutRoutesOptions): FastifyPluginCallback {
  const { rollouts } = options
  return (app: FastifyInstance, _options, done) => {
    // JSON alone: not what a page of another site could send without being asked.
    app.removeAllContentTypeParsers()
    const json = app.getDefaultJsonParser('error', 'error')
    app.addContentTypeParser(
      'application/json',
      { parseAs: 'string', bodyLimit: BODY_LIMIT_BYTES },
      (request, body, parsed) => json(request, String(body), parsed),
    )
    const schema = { hide: true }
    app.post('/rollouts', { schema }, (request, reply) => answer(options, request, reply))
    app.get('/rollouts', { schema }, () => ({ rollouts: rollouts.list() }))
    app.get<ById>('/rollouts/:id', { schema }, ({ params }) => rollouts.get(params.id))
    app.delete<ById>('/rollouts/:id', { schema }, ({ params }) => rollouts.remove(params.id))
    done()
  }
}

/** Spaces, which JSON may begin with, until the rollout has ended. */
async function answer(
  { rollouts, heartbeatMs = HEARTBEAT_MS }: RolloutRoutesOptions,
  { body }: FastifyRequest,
  reply: FastifyReply,
): Promise<void> {
  const response = reply.raw
  const left = new AbortController()
  const waited = rollouts.ask(parseRequest(body), left.signal)
  response.once('close', () => left.abort())
  reply.hijack()
  response.writeHead(200, {
    'content-type': 'application/json',
    'x-rollout-id': encodeURIComponent(waited.rolloutId),
  })
  response.flushHeaders()
  const heartbeat = setInterval(() => response.write(' '), heartbeatMs)
  const text = await waited.answer
  clearInterval(heartbeat)
  if (response.destroyed) return
  response.end(text)
  await once(response, 'close').catch(() => {})
}
