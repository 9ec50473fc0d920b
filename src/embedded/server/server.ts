/**
 * An engine behind vLLM's HTTP interface: the stand-in for an inference server in tests, benchmarks and on a laptop.
 * Paths, fields, nulls and errors are vLLM's (`vllm/entrypoints/openai/`).
 */
import Fastify, { type FastifyInstance } from 'fastify'
import { errorOf } from '../../proxy/http/transport/errors.ts'
import { completionRoutes } from './completion-routes.ts'
import type { EngineCounters } from './counters.ts'
import { vllmError } from './errors.ts'
import { infoRoutes } from './info-routes.ts'
import type { ServedEngine } from './served-engine.ts'
import { tokenizerRoutes } from './tokenizer-routes.ts'

export interface EngineServerOptions {
  /** What `/version` says. Default: `embedded`. */
  version?: string
  /** Largest request body. Default: 64 MiB, a conversation of many millions of tokens. */
  bodyLimitBytes?: number
}

export type EngineServer = FastifyInstance & { readonly counters: Readonly<EngineCounters> }

/** Builds the server; the caller listens. */
export function buildEngineServer(engine: ServedEngine, options: EngineServerOptions = {}): EngineServer {
  const counters: EngineCounters = { running: 0, served: 0, aborted: 0, failed: 0 }
  const app = Fastify({
    bodyLimit: options.bodyLimitBytes ?? 64 * 1024 * 1024,
    forceCloseConnections: true,
    onProtoPoisoning: 'ignore',
    onConstructorPoisoning: 'ignore',
  })
  app.setErrorHandler((thrown, _request, reply) => {
    const error = errorOf(thrown)
    void reply.code(error.status).send(vllmError(error))
  })
  app.setNotFoundHandler((_request, reply) => void reply.code(404).send({ detail: 'Not Found' }))
  app.register(completionRoutes, { engine, counters })
  app.register(tokenizerRoutes, { engine })
  app.register(infoRoutes, { engine, counters, version: options.version ?? 'embedded' })
  return Object.assign(app, { counters })
}
