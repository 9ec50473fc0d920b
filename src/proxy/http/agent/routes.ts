/** The agent routes: each dialect below each form of a session's base URL. */
import '@fastify/swagger'
import type { FastifyInstance, FastifyPluginCallback } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { ChatCompletionRequest, lowerChatRequest } from '../../dialects/chat/request.ts'
import { buildChatCompletion, ChatStreamWriter } from '../../dialects/chat/response.ts'
import { ChoicesWriter } from '../../dialects/common/choices.ts'
import { buildOpenAiError } from '../../dialects/common/openai-error.ts'
import { CompletionRequest, lowerCompletionRequest } from '../../dialects/completions/request.ts'
import { buildTextCompletion, CompletionStreamWriter } from '../../dialects/completions/response.ts'
import type { Backend } from '../../engines/port/backend.ts'
import type { EngineModel } from '../../engines/port/engine-client.ts'
import type { AgentDialect } from './agent-dialect.ts'
import { createErrorHandler } from './error-handler.ts'
import { geminiRoutes } from './gemini-routes.ts'
import { type MessagesRoutesOptions, messagesRoutes } from './messages-routes.ts'
import { OPENAI } from './openai-common.ts'
import { createRequestHandler } from './request-handler.ts'
import { BASE_PATHS, rejectEndedKeys } from './request-session.ts'
import { type ResponsesRoutesOptions, responsesRoutes } from './responses-routes.ts'
import {
  ChatResponse,
  CompletionResponse,
  createReadDocs,
  createRouteDocs,
  Model,
  ModelList,
} from './route-docs.ts'
import { readBodiesOfSessions } from './session-body.ts'
import { tokenizerRoutes } from './tokenizer-routes.ts'

export interface AgentRoutesOptions extends ResponsesRoutesOptions, MessagesRoutesOptions {
  backend: Backend
}

const CHAT: AgentDialect = {
  name: 'chat',
  lower: lowerChatRequest,
  buildResponse: buildChatCompletion,
  createStreamWriter: (identity, responseOptions) => new ChatStreamWriter(identity, responseOptions),
  createChoicesWriter: (identity, responseOptions, count) =>
    new ChoicesWriter(count, (choice) => new ChatStreamWriter({ ...identity, choice }, responseOptions)),
  ...OPENAI,
}

const COMPLETIONS: AgentDialect = {
  name: 'completions',
  lower: lowerCompletionRequest,
  buildResponse: buildTextCompletion,
  createStreamWriter: (identity, responseOptions) => new CompletionStreamWriter(identity, responseOptions),
  createChoicesWriter: (identity, responseOptions, count) =>
    new ChoicesWriter(
      count,
      (choice) => new CompletionStreamWriter({ ...identity, choice }, responseOptions),
    ),
  ...OPENAI,
}

export const agentRoutes: FastifyPluginCallback<AgentRoutesOptions> = (app, options, done) => {
  app.setErrorHandler(
    createErrorHandler(options.logger, { idHeader: 'x-request-id', buildBody: buildOpenAiError }),
  )
  app.addHook('preHandler', rejectEndedKeys(options.sessions))
  readBodiesOfSessions(app, options.sessions)
  app.addHook('onRequest', ({ charge }, _reply, next) => {
    charge.addCompletions(1)
    next()
  })
  const handle = createRequestHandler(options)
  const chat = {
    ...createRouteDocs('Chat Completions', ChatCompletionRequest, ChatResponse),
    config: { forwardsMessages: true },
  }
  for (const base of BASE_PATHS) {
    app.post(`${base}/chat/completions`, chat, handle(CHAT))
    app.post(
      `${base}/completions`,
      createRouteDocs('Completions', CompletionRequest, CompletionResponse),
      handle(COMPLETIONS),
    )
    modelRoutes(app, base, options.backend)
  }
  app.post('/v1/chat/completions/:sessionId', chat, handle(CHAT))
  app.register(messagesRoutes, options)
  app.register(responsesRoutes, options)
  app.register(geminiRoutes, options)
  app.register(tokenizerRoutes, options)
  done()
}

function modelRoutes(app: FastifyInstance, base: string, backend: Backend): void {
  app.get(`${base}/models`, createReadDocs('Models that the engines serve', ModelList), async () => ({
    object: 'list',
    data: (await backend.listModels()).map(toModelObject),
  }))
  app.get(`${base}/models/*`, createReadDocs('A model that the engines serve', Model), async (request) => {
    const id = (request.params as { '*': string })['*']
    const model = (await backend.listModels()).find((candidate) => candidate.id === id)
    if (!model)
      throw new ProxyError('route_not_found', `No engine serves a model '${id}'`, { param: 'model' })
    return toModelObject(model)
  })
}

function toModelObject({ id, maxModelLen }: EngineModel): object {
  const length = maxModelLen === undefined ? {} : { max_model_len: maxModelLen }
  return { id, object: 'model', created: 0, owned_by: 'llm-proxy', ...length }
}
