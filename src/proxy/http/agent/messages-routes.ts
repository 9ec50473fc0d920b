/** The agent routes of Anthropic: Messages and token counting. */
import type { FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import {
  buildAnthropicError,
  formatAnthropicErrorEvent,
  getAnthropicStatus,
} from '../../dialects/messages/error.ts'
import { lowerCountTokensRequest, lowerMessagesRequest } from '../../dialects/messages/request.ts'
import { buildMessage } from '../../dialects/messages/response.ts'
import { CountTokensRequest, MessagesRequest } from '../../dialects/messages/schema.ts'
import { MessagesStreamWriter, PING } from '../../dialects/messages/stream.ts'
import type { AgentDialect } from './agent-dialect.ts'
import { createTokenCounter } from './count-tokens.ts'
import { createErrorHandler } from './error-handler.ts'
import { createRequestHandler, type RequestHandlerOptions } from './request-handler.ts'
import { BASE_PATHS } from './request-session.ts'
import { AnthropicErrorReply, CountResponse, createRouteDocs, MessagesResponse } from './route-docs.ts'

export type MessagesRoutesOptions = RequestHandlerOptions

function createMessagesDialect({ volatileRules }: MessagesRoutesOptions): AgentDialect {
  return {
    name: 'messages',
    lower: (body, memo) => lowerMessagesRequest(body, volatileRules, memo),
    buildResponse: buildMessage,
    createStreamWriter: (identity, responseOptions) => new MessagesStreamWriter(identity, responseOptions),
    formatStreamError: formatAnthropicErrorEvent,
    buildErrorBody: (error) => buildAnthropicError(error),
    keepAlive: () => PING,
    getHeaders: (turnId) => ({ 'request-id': `req_${turnId}`, 'x-request-id': turnId }),
  }
}

export const messagesRoutes: FastifyPluginCallback<MessagesRoutesOptions> = (app, options, done) => {
  app.setErrorHandler(
    createErrorHandler(options.logger, {
      idHeader: 'request-id',
      getStatus: getAnthropicStatus,
      buildBody: buildAnthropicError,
    }),
  )
  const create = createRequestHandler(options)(createMessagesDialect(options))
  const count = createCountHandler(options)
  for (const base of BASE_PATHS) {
    app.post(
      `${base}/messages`,
      createRouteDocs('Messages', MessagesRequest, MessagesResponse, AnthropicErrorReply),
      create,
    )
    const countDocs = createRouteDocs(
      'Tokens of a Messages prompt',
      CountTokensRequest,
      CountResponse,
      AnthropicErrorReply,
    )
    app.post(`${base}/messages/count_tokens`, countDocs, count)
  }
  done()
}

function createCountHandler(options: MessagesRoutesOptions) {
  const count = createTokenCounter(options)
  return async (request: FastifyRequest, reply: FastifyReply) => ({
    input_tokens: await count(request, reply, (body, memo) =>
      lowerCountTokensRequest(body, options.volatileRules, memo),
    ),
  })
}
