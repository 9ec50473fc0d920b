import type { FastifyInstance } from 'fastify'
import type { EngineCounters } from './counters.ts'
import { checkWeightVersionRequest } from './request-schemas.ts'
import type { ServedEngine } from './served-engine.ts'

export interface InfoRoutesOptions {
  engine: ServedEngine
  counters: Readonly<EngineCounters>
  version: string
}

/** What the engine is and how it does; the weight version is vLLM's `serve/dev/rlhf/api_router.py`. */
export async function infoRoutes(app: FastifyInstance, { engine, counters, version }: InfoRoutesOptions) {
  const createdS = Math.floor(Date.now() / 1000)
  app.get('/v1/models', () => ({ object: 'list', data: [modelCard(engine, createdS)] }))
  app.get('/version', () => ({ version }))
  app.get('/load', () => ({ server_load: counters.running }))
  app.get('/health', (_request, reply) => reply.send())
  app.route({ method: ['GET', 'POST'], url: '/ping', handler: (_request, reply) => reply.send() })
  app.get('/weight_info', () => ({ weight_version: engine.weightVersion ?? null }))
  app.post('/update_weight_version', (request) => {
    const { new_version: newVersion } = checkWeightVersionRequest(request.body)
    engine.weightVersion = newVersion
    return { success: true, new_version: newVersion }
  })
}

function modelCard({ model, contextLength }: ServedEngine, createdS: number): object {
  return {
    id: model,
    object: 'model',
    created: createdS,
    owned_by: 'vllm',
    root: model,
    parent: null,
    max_model_len: contextLength,
    permission: [],
  }
}
