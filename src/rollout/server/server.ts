/** The routes of a rollout server; docs/rollouts.md has them. */
import { createHash, timingSafeEqual } from 'node:crypto'
import { once } from 'node:events'
import Fastify, { type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import { ProxyError, toProxyError } from '../../base/errors.ts'
import { parseRequest } from './request.ts'
import type { Rollouts } from './rollouts.ts'

export interface RolloutServerOptions {
  rollouts: Rollouts
  /** Whoever has one of these may use the server; with none, everybody who reaches it. */
  keys: readonly string[]
  /** Between two signs of life of an answer that is waited for: hours may pass, and whatever is on the way hangs up. */
  heartbeatMs?: number
}

/** A row may have images in it. */
const BODY_LIMIT_BYTES = 100_000_000
const HEARTBEAT_MS = 15_000

/** Builds the server; the caller listens. */
export function buildRolloutServer(options: RolloutServerOptions): FastifyInstance {
  const { rollouts, keys } = options
  const app = Fastify({ bodyLimit: BODY_LIMIT_BYTES, forceCloseConnections: true })
  // What a page of another site could send without being asked.
  app.removeContentTypeParser('text/plain')
  app.setErrorHandler((thrown, _request, reply) => {
    const { status, code, message } = errorOf(thrown)
    void reply.code(status).send({ detail: message, code })
  })
  app.setNotFoundHandler(() => {
    throw new ProxyError('route_not_found', 'A rollout server has /rollouts, /health and /metrics')
  })
  app.get('/health', () => ({ status: 'ok', running: rollouts.running, waiting: rollouts.waiting }))
  app.register(async (guarded) => {
    guarded.addHook('onRequest', async ({ headers }) => admit(headers.authorization, keys))
    guarded.post('/rollouts', (request, reply) => answer(options, request, reply))
    guarded.get('/rollouts', () => ({ rollouts: rollouts.list() }))
    guarded.get<ById>('/rollouts/:id', ({ params }) => rollouts.get(params.id))
    guarded.delete<ById>('/rollouts/:id', ({ params }) => rollouts.remove(params.id))
    guarded.get('/metrics', (_request, reply) =>
      reply.type('text/plain; version=0.0.4').send(metrics(rollouts)),
    )
  })
  return app
}

interface ById {
  Params: { id: string }
}

/** Spaces, which JSON may begin with, until the rollout has ended. */
async function answer(
  { rollouts, heartbeatMs = HEARTBEAT_MS }: RolloutServerOptions,
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

/** @throws ProxyError `unauthorized` */
function admit(authorization: string | undefined, keys: readonly string[]): void {
  if (keys.length === 0) return
  const given = digest(/^Bearer +(.+)$/i.exec(authorization ?? '')?.[1] ?? '')
  // Each is compared: how long it takes tells nothing.
  if (keys.filter((key) => timingSafeEqual(digest(key), given)).length > 0) return
  throw new ProxyError('unauthorized', 'A rollout server takes an admin key, as a bearer token')
}

function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}

function metrics({ running, waiting, ended }: Rollouts): string {
  const lines = [
    '# TYPE llm_proxy_rollouts gauge',
    `llm_proxy_rollouts{state="running"} ${running}`,
    `llm_proxy_rollouts{state="waiting"} ${waiting}`,
    '# TYPE llm_proxy_rollouts_total counter',
    ...Object.entries(ended).map(([how, count]) => `llm_proxy_rollouts_total{outcome="${how}"} ${count}`),
  ]
  return `${lines.join('\n')}\n`
}

/** Fastify has errors of its own for what is no JSON, or too long. */
function errorOf(thrown: unknown): ProxyError {
  const { statusCode, message } = thrown as { statusCode?: number; message?: string }
  if (thrown instanceof ProxyError || statusCode === undefined || statusCode >= 500)
    return toProxyError(thrown)
  const code = statusCode === 413 ? 'body_too_large' : 'invalid_request'
  return new ProxyError(code, message ?? 'The request cannot be read', { status: statusCode })
}
