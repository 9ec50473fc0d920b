/** The agent routes of Gemini: generation, complete and streamed, token counting and models. */
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { buildGoogleError } from '../../dialects/gemini/error.ts'
import { type GeminiPathParams, lowerGeminiCount, lowerGeminiRequest } from '../../dialects/gemini/request.ts'
import {
  ArrayFrame,
  buildGeminiResponse,
  EVENT_FRAME,
  GeminiStreamWriter,
  type StreamFrame,
} from '../../dialects/gemini/response.ts'
import { GeminiRequest } from '../../dialects/gemini/schema.ts'
import type { Backend } from '../../engines/port/backend.ts'
import type { EngineModel } from '../../engines/port/engine-client.ts'
import type { AgentDialect } from './agent-dialect.ts'
import { createTokenCounter } from './count-tokens.ts'
import { createErrorHandler } from './error-handler.ts'
import type { MessagesRoutesOptions } from './messages-routes.ts'
import { createRequestHandler } from './request-handler.ts'
import { BASE_PATHS } from './request-session.ts'
import {
  createReadDocs,
  createRouteDocs,
  GeminiModel,
  GeminiModels,
  GeminiResponse,
  GoogleErrorReply,
} from './route-docs.ts'

type GeminiRoutesOptions = MessagesRoutesOptions & { backend: Backend }

/**
 * Returns the dialect for one request, because the URL determines the model, streaming and the framing of the stream.
 */
function createGeminiDialect(
  path: GeminiPathParams,
  isSse: boolean,
  options: GeminiRoutesOptions,
): AgentDialect {
  const frame = isSse ? EVENT_FRAME : new ArrayFrame()
  return {
    name: 'gemini',
    lower: (body, memo) => lowerGeminiRequest(body, path, options.volatileRules, memo),
    buildResponse: buildGeminiResponse,
    createStreamWriter: (identity, responseOptions) =>
      new GeminiStreamWriter(identity, responseOptions, frame),
    formatStreamError: (error) => formatStreamError(error, frame, isSse),
    buildErrorBody: buildGoogleError,
    // Google's SDK for Python would parse a comment as JSON.
    keepAlive: () => '\n\n',
    ...(!isSse && { streamType: 'application/json; charset=utf-8' }),
    getHeaders: (turnId) => ({ 'x-request-id': turnId }),
  }
}

/**
 * Returns the text of an error in a stream. Google's service ends an event stream with the error as bare JSON, and the
 * SDK of Gemini CLI 0.61 recognizes only this form: a chunk, or the rest of the stream, that is JSON. The error is also
 * sent as an event, for clients that only parse events.
 */
function formatStreamError(error: ProxyError, frame: StreamFrame, isSse: boolean): string {
  const body = buildGoogleError(error)
  return frame.formatElement(body) + (isSse ? JSON.stringify(body) : frame.formatEnd())
}

export const geminiRoutes: FastifyPluginCallback<GeminiRoutesOptions> = (app, options, done) => {
  app.setErrorHandler(
    createErrorHandler(options.logger, { idHeader: 'x-request-id', buildBody: buildGoogleError }),
  )
  const handle = createRequestHandler(options)
  const count = createTokenCounter(options)
  const handleMethod = (request: FastifyRequest, reply: FastifyReply) => {
    const { model, method } = parseTarget(request)
    if (method === 'countTokens') return countPrompt(request, reply, model)
    const isSse = (request.query as { alt?: unknown }).alt === 'sse'
    const path = { model, stream: method === 'streamGenerateContent' }
    return handle(createGeminiDialect(path, isSse, options))(request, reply)
  }
  const countPrompt = async (request: FastifyRequest, reply: FastifyReply, model: string) => ({
    totalTokens: await count(request, reply, (body, memo) =>
      lowerGeminiCount(body, model, options.volatileRules, memo),
    ),
  })
  const routeDocs = createRouteDocs(
    'Gemini: {model}:generateContent, :streamGenerateContent (with ?alt=sse as events) and :countTokens',
    GeminiRequest,
    GeminiResponse,
    GoogleErrorReply,
  )
  for (const base of BASE_PATHS) {
    app.post(`${base}/models/*`, routeDocs, handleMethod)
    app.post(`${base}beta/models/*`, routeDocs, handleMethod)
    modelRoutes(app, `${base}beta`, options.backend)
  }
  done()
}

const METHODS = ['generateContent', 'streamGenerateContent', 'countTokens'] as const

/** Splits the path into model and method. Model names may contain colons and slashes. */
function parseTarget({ params, url }: FastifyRequest): { model: string; method: (typeof METHODS)[number] } {
  const target = (params as { '*': string })['*']
  const method = METHODS.find((name) => target.endsWith(`:${name}`))
  const model = method && target.slice(0, -method.length - 1)
  if (model) return { model, method }
  throw new ProxyError(
    'route_not_found',
    `There is no POST ${url.split('?')[0]}: a model supports ${METHODS.join(', ')}`,
  )
}

function modelRoutes(app: FastifyInstance, base: string, backend: Backend): void {
  app.get(
    `${base}/models`,
    createReadDocs('Models that the engines serve, as Gemini lists them', GeminiModels, GoogleErrorReply),
    async () => ({
      models: (await backend.listModels()).map(toModelObject),
    }),
  )
  app.get(
    `${base}/models/*`,
    createReadDocs('A model, as Gemini shows it', GeminiModel, GoogleErrorReply),
    async ({ params }) => {
      const id = (params as { '*': string })['*']
      const model = (await backend.listModels()).find((candidate) => candidate.id === id)
      if (model) return toModelObject(model)
      throw new ProxyError('route_not_found', `No engine serves a model '${id}'`, { param: 'model' })
    },
  )
}

function toModelObject({ id, maxModelLen }: EngineModel): object {
  return {
    name: `models/${id}`,
    inputTokenLimit: maxModelLen,
    supportedGenerationMethods: [...METHODS],
  }
}
