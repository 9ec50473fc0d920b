/**
 * Routes that list engines and workers, and with which a trainer registers engines while the proxy runs. Paths and
 * fields are those of rLLM's model gateway (`rllm-model-gateway`: `server.py`, `WorkerInfo` in `models.py`).
 */
import type { FastifyPluginCallback } from 'fastify'
import type { Static } from 'typebox'
import { ProxyError } from '../../../../base/errors.ts'
import type { MemberRegistry, RegistryEntry } from '../../../engines/port/registry.ts'
import { describe, Nothing } from '../../schemas/described.ts'
import { toTypedApp } from '../../schemas/typed-app.ts'
import { readAnyBodyAsJson } from '../../transport/json-body.ts'
import * as schemas from './schemas.ts'

interface WorkersRoutesOptions {
  registry: MemberRegistry
}

export const workersRoutes: FastifyPluginCallback<WorkersRoutesOptions> = (plain, { registry }, done) => {
  const app = toTypedApp(plain)
  readAnyBodyAsJson(app)

  app.get(
    '/admin/workers',
    {
      config: { scope: 'view' },
      ...describe('admin', 'List engines and workers', schemas.Workers, {}),
    },
    async () => registry.list().map(workerToWire),
  )
  app.post(
    '/admin/workers',
    describe('admin', 'Register an engine', schemas.Worker, {
      description: 'If an engine with this URL is already registered, its weight is updated.',
      body: schemas.NewEngineBody,
    }),
    async ({ body }) => {
      const { weight, model_name: modelName = null } = body
      return workerToWire(await registry.register({ url: toEngineUrl(body), weight, modelName }))
    },
  )
  app.delete(
    '/admin/workers/:workerId',
    describe('admin', 'Take an engine out of service', schemas.RemovedWorker, {
      description: 'It receives no new requests, and is removed from the list when its requests have ended.',
      params: schemas.WorkerParams,
      body: Nothing,
    }),
    async ({ params: { workerId } }) => {
      await registry.remove(workerId)
      return { removed: workerId }
    },
  )
  app.get(
    '/health/workers',
    {
      config: { scope: 'view' },
      ...describe('health', 'Check the health of engines and workers', schemas.WorkersHealth, {}),
    },
    async () => {
      const workers = registry.list().map(workerToWire)
      return { workers, healthy: workers.filter(({ healthy }) => healthy).length, total: workers.length }
    },
  )
  done()
}

function workerToWire(entry: RegistryEntry): Static<typeof schemas.Worker> {
  return {
    worker_id: entry.id,
    kind: entry.kind,
    // Always a string: rLLM's client rejects the whole list for a null.
    url: entry.url ?? '',
    api_path: entry.url === null ? '' : '/v1',
    engine: entry.engineKind,
    model_name: entry.modelName,
    weight: entry.weight,
    version: entry.version,
    load: entry.load,
    active_requests: entry.load,
    max_concurrency: entry.maxConcurrency,
    models: entry.models,
    weight_version: entry.weightVersion,
    healthy: entry.healthy,
    error: entry.error,
    draining: entry.draining,
    connected_since: entry.sinceMs / 1_000,
  }
}

/**
 * Builds the URL of an engine from the two parts that a trainer sends. `api_path` is not appended to a URL that already
 * ends in it, as some trainers send it.
 * @throws ProxyError `invalid_request`; `unsupported` for a path that does not end in `/v1`
 */
function toEngineUrl({ url, api_path: apiPath }: { url: string; api_path: string }): string {
  const parsed = URL.parse(url)
  if (parsed === null || !/^https?:$/.test(parsed.protocol)) {
    // The URL is not repeated: it may contain a password.
    throw new ProxyError('invalid_request', "'url' must look like http://host:8000", { param: 'url' })
  }
  const path = parsed.pathname.replace(/\/+$/, '')
  const suffix = withoutSlashes(apiPath) === '' ? '' : `/${withoutSlashes(apiPath)}`
  parsed.pathname = path.endsWith(suffix) ? path : path + suffix
  if (parsed.pathname.endsWith('/v1')) return parsed.href
  const message = "'api_path' must end in /v1: the proxy uses …/v1/chat/completions"
  throw new ProxyError('unsupported', message, { param: 'api_path' })
}

function withoutSlashes(path: string): string {
  return path.replace(/^\/+/, '').replace(/\/+$/, '')
}
