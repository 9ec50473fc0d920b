/**
 * A server with vLLM's HTTP interface for the embedded engine, in place of an inference server in tests, in benchmarks
 * and on a laptop. Paths, fields, nulls and errors are those of vLLM (`vllm/entrypoints/openai/`).
 */
import Fastify, { type FastifyInstance } from 'fastify'
import { keepIntegers } from '../../protocol/canonical/number-texts.ts'
import type { ChatBody } from '../../protocol/canonical/request.ts'
import { toRequestError } from '../../proxy/http/transport/errors.ts'
import type { EmbeddedEngine } from '../engine/embedded-engine.ts'
import { completionRoutes, type EngineCounters } from './completion-routes.ts'
import { buildVllmError } from './errors.ts'
import { checkDetokenizeRequest, checkTokenizeRequest, checkWeightVersionRequest } from './request-schemas.ts'

/** The options of an {@link EngineServer}. */
interface EngineServerOptions {
  /** The version that `/version` reports. Default: `embedded`. */
  version?: string
  /**
   * The maximum size of a request body. Default: 64 MiB, which is enough for conversations of several million tokens.
   */
  bodyLimitBytes?: number
}

/** The server with its counters. */
export type EngineServer = FastifyInstance & { readonly counters: Readonly<EngineCounters> }

/** Creates the server. The caller must call `listen`. */
export function buildEngineServer(engine: EmbeddedEngine, options: EngineServerOptions = {}): EngineServer {
  const counters: EngineCounters = { running: 0, served: 0, aborted: 0, failed: 0 }
  const app = Fastify({
    bodyLimit: options.bodyLimitBytes ?? 64 * 1024 * 1024,
    forceCloseConnections: true,
    onProtoPoisoning: 'ignore',
    onConstructorPoisoning: 'ignore',
  })
  const parse = app.getDefaultJsonParser('ignore', 'ignore')
  app.addContentTypeParser('application/json', { parseAs: 'string' }, (request, body, parsed) =>
    parse(request, String(body), (error, value) => {
      keepIntegers(value, String(body))
      parsed(error, value)
    }),
  )
  app.setErrorHandler((thrown, _request, reply) => {
    const error = toRequestError(thrown)
    void reply.code(error.status).send(buildVllmError(error))
  })
  app.setNotFoundHandler((_request, reply) => void reply.code(404).send({ detail: 'Not Found' }))
  app.register(completionRoutes, { engine, counters })
  app.register(tokenizerRoutes, { engine })
  app.register(infoRoutes, { engine, counters, version: options.version ?? 'embedded' })
  return Object.assign(app, { counters })
}

interface InfoRoutesOptions {
  engine: EmbeddedEngine
  counters: Readonly<EngineCounters>
  version: string
}

/**
 * Adds routes for models, version, load, health and weight version (the latter as `serve/dev/rlhf/api_router.py` of
 * vLLM).
 */
async function infoRoutes(app: FastifyInstance, { engine, counters, version }: InfoRoutesOptions) {
  const createdS = Math.floor(Date.now() / 1000)
  app.get('/v1/models', () => ({ object: 'list', data: [buildModelCard(engine, createdS)] }))
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

function buildModelCard({ model, contextLength }: EmbeddedEngine, createdS: number): object {
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

/** Adds `POST /tokenize` for a text or messages, and `POST /detokenize` (`vllm/entrypoints/serve/tokenize/`). */
async function tokenizerRoutes(app: FastifyInstance, { engine }: { engine: EmbeddedEngine }) {
  app.post('/tokenize', async (request) => {
    const body = checkTokenizeRequest(request.body)
    const tokens = await ('prompt' in body
      ? engine.tokenizeText(body.prompt)
      : engine.tokenizeChat(body as ChatBody))
    return {
      count: tokens.length,
      max_model_len: engine.contextLength,
      tokens,
      token_strs: body.return_token_strs ? engine.getTokenStrings(tokens) : null,
    }
  })
  app.post('/detokenize', (request) => {
    const { tokens } = checkDetokenizeRequest(request.body)
    return { prompt: engine.detokenize(tokens) }
  })
}
