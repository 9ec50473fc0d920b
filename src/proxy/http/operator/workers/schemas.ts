/** Schemas of the routes for engines and workers; names are the wire's, which rLLM's gateway client reads. */
import Type from 'typebox'
import { nullable, STRICT } from '../../schemas/described.ts'

export const NewEngineBody = Type.Object(
  {
    url: Type.String({ minLength: 1, description: 'Where the engine is; may end in `api_path` already' }),
    api_path: Type.String({ default: '/v1', description: 'What comes between the URL and the routes' }),
    model_name: Type.Optional(nullable(Type.String({ description: 'For the list only: engines tell' }))),
    weight: Type.Integer({
      minimum: 1,
      maximum: 1_000,
      default: 1,
      description: 'How many calls it gets for each call of an engine of weight 1',
    }),
  },
  STRICT,
)

export const WorkerParams = Type.Object({ workerId: Type.String() })

export const Worker = Type.Object({
  worker_id: Type.String({ description: "A worker's own; of an engine made from its URL" }),
  kind: Type.Enum(['engine', 'worker'], { description: 'Called by the proxy, or dialled in' }),
  url: Type.String({ description: 'Empty for the embedded engine and for a worker' }),
  api_path: Type.String({ description: 'Empty where `url` is' }),
  engine: nullable(Type.String({ description: 'What it speaks: `vllm`, `sglang` …; null for a worker' })),
  model_name: nullable(Type.String({ description: 'As registered' })),
  weight: Type.Integer({ description: 'As registered' }),
  version: nullable(Type.Integer({ description: 'Of the worker protocol; null for an engine' })),
  load: Type.Integer({ description: 'Calls that it serves' }),
  active_requests: Type.Integer({ description: 'The same as `load`' }),
  max_concurrency: Type.Integer(),
  models: Type.Array(Type.String()),
  weight_version: nullable(Type.String()),
  healthy: Type.Boolean({ description: 'Whether it gets calls' }),
  error: nullable(Type.String({ description: 'Why it is not healthy' })),
  draining: Type.Boolean({ description: 'It finishes what it has and takes nothing new' }),
  connected_since: Type.Number({ description: 'Since when it is here; seconds since the epoch' }),
})

export const Workers = Type.Array(Worker)
export const RemovedWorker = Type.Object({ removed: Type.String() })
export const WorkersHealth = Type.Object({
  workers: Type.Array(Worker),
  healthy: Type.Integer({ description: 'How many are healthy' }),
  total: Type.Integer(),
})
