/** Schemas of the routes for engines and workers. Names are those that rLLM's gateway client reads. */
import Type from 'typebox'
import { nullable } from '../../../../protocol/schema/field.ts'
import { STRICT } from '../../schemas/described.ts'

export const NewEngineBody = Type.Object(
  {
    url: Type.String({
      minLength: 1,
      description: 'The URL of the engine; it may already end in `api_path`',
    }),
    api_path: Type.String({ default: '/v1', description: 'The path between the URL and the routes' }),
    model_name: Type.Optional(
      nullable(
        Type.String({ description: 'Only shown in the list; engines report their models themselves' }),
      ),
    ),
    weight: Type.Integer({
      minimum: 1,
      maximum: 1_000,
      default: 1,
      description:
        'The number of requests that it receives for each request that an engine of weight 1 receives',
    }),
  },
  STRICT,
)

export const WorkerParams = Type.Object({ workerId: Type.String() })

export const Worker = Type.Object({
  worker_id: Type.String({
    description: 'The id that a worker declares; for an engine, an id derived from its URL',
  }),
  kind: Type.Enum(['engine', 'worker'], {
    description: '`engine`: the proxy connects to it; `worker`: it connects to the proxy',
  }),
  url: Type.String({ description: 'Empty for the embedded engine and for a worker' }),
  api_path: Type.String({ description: 'Empty if `url` is' }),
  engine: nullable(
    Type.String({ description: 'The kind of its API: `vllm`, `sglang` …; null for a worker' }),
  ),
  model_name: nullable(Type.String({ description: 'As registered' })),
  weight: Type.Integer({ description: 'As registered' }),
  version: nullable(Type.Integer({ description: 'The version of the worker protocol; null for an engine' })),
  load: Type.Integer({ description: 'Requests in flight' }),
  active_requests: Type.Integer({ description: 'The same as `load`' }),
  max_concurrency: Type.Integer(),
  models: Type.Array(Type.String()),
  weight_version: nullable(Type.String()),
  healthy: Type.Boolean({ description: 'Whether it receives requests' }),
  error: nullable(Type.String({ description: 'Why it is not healthy' })),
  draining: Type.Boolean({ description: 'Whether it only completes its requests in flight' }),
  connected_since: Type.Number({
    description: 'The time of its connection or registration; seconds since the epoch',
  }),
})

export const Workers = Type.Array(Worker)
export const RemovedWorker = Type.Object({ removed: Type.String() })
export const WorkersHealth = Type.Object({
  workers: Type.Array(Worker),
  healthy: Type.Integer({ description: 'The number of healthy engines and workers' }),
  total: Type.Integer(),
})
