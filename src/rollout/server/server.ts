/** A standalone rollout server: the routes of rollouts, protected by keys. */
import { createHash, timingSafeEqual } from 'node:crypto'
import Fastify, { type FastifyInstance } from 'fastify'
import { ProxyError, toProxyError } from '../../base/errors.ts'
import type { Rollouts } from './rollouts.ts'
import { type RolloutRoutesOptions, rolloutRoutes } from './routes.ts'

export interface RolloutServerOptions extends RolloutRoutesOptions {
  /** The keys that grant access; without any, every client that can connect has access. */
  keys: readonly string[]
}

/** Builds the server; the caller makes it listen. */
export function buildRolloutServer(options: RolloutServerOptions): FastifyInstance {
  const { rollouts, keys } = options
  const app = Fastify({ forceCloseConnections: true })
  app.setErrorHandler((thrown, _request, reply) => {
    const { status, code, message } = toRequestError(thrown)
    void reply.code(status).send({ detail: message, code })
  })
  app.setNotFoundHandler(() => {
    throw new ProxyError('route_not_found', 'A rollout server serves /rollouts, /health and /metrics')
  })
  app.get('/health', () => ({ status: 'ok', running: rollouts.running, waiting: rollouts.waiting }))
  app.register(async (guarded) => {
    guarded.addHook('onRequest', async ({ headers }) => authorize(headers.authorization, keys))
    await guarded.register(rolloutRoutes(options))
    guarded.get('/metrics', (_request, reply) =>
      reply.type('text/plain; version=0.0.4').send(formatMetrics(rollouts)),
    )
  })
  return app
}

/** Checks the key of a request. @throws ProxyError `unauthorized` */
function authorize(authorization: string | undefined, keys: readonly string[]): void {
  if (keys.length === 0) return
  const presented = digest(/^Bearer +(.+)$/i.exec(authorization ?? '')?.[1] ?? '')
  // Compares all keys, so that the duration does not reveal which of them matches.
  if (keys.filter((key) => timingSafeEqual(digest(key), presented)).length > 0) return
  throw new ProxyError('unauthorized', 'A rollout server requires an admin key, as a bearer token')
}

function digest(key: string): Buffer {
  return createHash('sha256').update(key).digest()
}

function formatMetrics({ running, waiting, ended, seconds, tries }: Rollouts): string {
  const lines = [
    '# TYPE llm_proxy_rollouts gauge',
    `llm_proxy_rollouts{state="running"} ${running}`,
    `llm_proxy_rollouts{state="waiting"} ${waiting}`,
    '# TYPE llm_proxy_rollouts_total counter',
    ...Object.entries(ended).map(([how, count]) => `llm_proxy_rollouts_total{outcome="${how}"} ${count}`),
    '# TYPE llm_proxy_rollout_seconds_total counter',
    `llm_proxy_rollout_seconds_total ${seconds}`,
    '# TYPE llm_proxy_rollout_tries_total counter',
    `llm_proxy_rollout_tries_total ${tries}`,
  ]
  return `${lines.join('\n')}\n`
}

/** Converts an error to a ProxyError. Fastify throws its own errors for invalid JSON and bodies that are too long. */
function toRequestError(thrown: unknown): ProxyError {
  const { statusCode, message } = thrown as { statusCode?: number; message?: string }
  if (thrown instanceof ProxyError || statusCode === undefined || statusCode >= 500)
    return toProxyError(thrown)
  const code = statusCode === 413 ? 'body_too_large' : 'invalid_request'
  return new ProxyError(code, message ?? 'The request cannot be read', { status: statusCode })
}
