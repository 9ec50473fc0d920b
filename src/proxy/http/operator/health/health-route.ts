import type { FastifyPluginCallback } from 'fastify'
import Type, { type Static } from 'typebox'
import type { Backend } from '../../../engines/port/backend.ts'
import type { TurnRunner } from '../../../session/turn/run-turn.ts'
import type { NodeCoordination } from '../../../store/port/node-coordination.ts'
import type { TurnStore } from '../../../store/port/turn-store.ts'
import type { Caller } from '../../access/scopes.ts'

/** The callers that receive all fields of `/health`. */
const SEES_ALL: ReadonlySet<Caller['is']> = new Set(['anyone', 'admin', 'view', 'metrics'])

const Health = Type.Object({
  status: Type.Enum(['ok', 'draining', 'store_failed']),
  mode: Type.Enum(['local', 'relay']),
  connected_workers: Type.Integer(),
})

const Liveness = Type.Object({ status: Type.Enum(['ok']) })

interface HealthOptions {
  backend: Backend
  /** Returns further fields: version, database, counts of prompts, notes such as on a fallback engine. */
  getFields: () => Record<string, unknown>
  runner: TurnRunner
  store: Pick<TurnStore, 'check' | 'shared'>
}

type ProxyHealth = Static<typeof Health>

/** The time limit of a check, below the 1 s that Kubernetes waits for a probe by default. */
const CHECK_LIMIT_MS = 800

/** Returns whether the store can commit. A check that takes too long counts as a failure. */
async function isRecording(store: Pick<TurnStore, 'check'>): Promise<boolean> {
  const limit = Promise.withResolvers<boolean>()
  const timer = setTimeout(() => limit.resolve(false), CHECK_LIMIT_MS)
  const checked = store.check().then(
    () => true,
    () => false,
  )
  try {
    return await Promise.race([checked, limit.promise])
  } finally {
    clearTimeout(timer)
  }
}

/** Returns the part of `/health` that every caller may read. */
export async function getHealth({
  backend,
  runner,
  store,
}: Pick<HealthOptions, 'backend' | 'runner'> & { store: Pick<TurnStore, 'check'> }): Promise<{
  code: 200 | 503
  health: ProxyHealth
}> {
  const canCommit = await isRecording(store)
  const status = runner.isDraining ? 'draining' : canCommit ? 'ok' : 'store_failed'
  const { members } = backend.getStatus()
  const workers = backend.mode === 'relay' ? members.filter((member) => member.connected).length : 0
  return {
    code: status === 'ok' ? 200 : 503,
    health: { status, mode: backend.mode, connected_workers: workers },
  }
}

/** Converts the nodes of the database to the wire format. */
function nodesToWire({ proxies, self }: NodeCoordination) {
  return proxies.map(({ id, name, url = null, isDraining: draining }) => ({
    name,
    url,
    draining,
    self: id === self?.id,
  }))
}

/**
 * Serves `GET /health`: 200 while the proxy accepts requests, 503 once it drains or cannot commit, so that a load
 * balancer uses another one. Without a key, the response contains only what a probe needs. `GET /health/live` is for
 * orchestrators that restart the process, which does not help while the proxy drains or the database is unavailable.
 */
export const healthRoute: FastifyPluginCallback<HealthOptions> = (
  app,
  { backend, getFields: facts, runner, store },
  done,
) => {
  app.get(
    '/health',
    {
      schema: {
        tags: ['health'],
        summary: 'Check whether the proxy accepts requests',
        response: { 200: Health, 503: Health },
      },
      serializerCompiler: () => JSON.stringify,
    },
    async ({ caller }, reply) => {
      const { code, health } = await getHealth({ backend, runner, store })
      reply.code(code)
      if (!SEES_ALL.has(caller.is)) return health
      const { members, queued, pausedSinceMs } = backend.getStatus()
      return {
        ...health,
        [backend.mode === 'relay' ? 'workers' : 'engines']: members.map(
          ({ inFlight, weightVersion, takesTokenIds, takesImages, ejectedForMs, ...member }) => ({
            ...member,
            ...(ejectedForMs !== undefined && { ejected_for_s: Math.ceil(ejectedForMs / 1_000) }),
            in_flight: inFlight,
            takes_token_ids: takesTokenIds,
            takes_images: takesImages === true,
            weight_version: weightVersion ?? null,
          }),
        ),
        queued,
        paused: pausedSinceMs !== undefined,
        paused_since: pausedSinceMs === undefined ? null : pausedSinceMs / 1_000,
        uptime_s: Math.round(process.uptime()),
        nodes: store.shared && nodesToWire(store.shared),
        ...facts(),
      }
    },
  )
  app.get(
    '/health/live',
    {
      schema: {
        tags: ['health'],
        summary: 'Check whether the process responds, whatever the state of its store',
        response: { 200: Liveness },
      },
    },
    async () => ({ status: 'ok' }),
  )
  done()
}
