/** The agent routes of OpenAI Responses. */
import type { FastifyPluginCallback } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import type { ResponseIdentity, ResponseOptions } from '../../dialects/common/dialect-request.ts'
import {
  buildRecordedResponse,
  findResponse,
  readHistory,
  type TurnFinder,
} from '../../dialects/responses/history.ts'
import {
  findReferencedTurn,
  resolveInputItems,
  type TurnSource,
} from '../../dialects/responses/item-references.ts'
import { lowerResponsesRequest } from '../../dialects/responses/request.ts'
import { createResponse, parseTurnId, type ResponseFrame } from '../../dialects/responses/response.ts'
import { checkResponsesRequest, ResponsesRequest } from '../../dialects/responses/schema.ts'
import { ResponsesStreamWriter } from '../../dialects/responses/stream.ts'
import type { TurnStore } from '../../store/port/turn-store.ts'
import type { AgentDialect } from './agent-dialect.ts'
import { OPENAI } from './openai-common.ts'
import { createRequestHandler, type RequestHandlerOptions } from './request-handler.ts'
import { BASE_PATHS, getNamedSession, getSessionId } from './request-session.ts'
import { createReadDocs, createRouteDocs, ResponsesResponse } from './route-docs.ts'

export interface ResponsesRoutesOptions extends RequestHandlerOptions {
  store: Pick<TurnStore, 'getTurn' | 'readOutlines'>
}

export const responsesRoutes: FastifyPluginCallback<ResponsesRoutesOptions> = (app, options, done) => {
  const { sessions, store } = options
  const finder =
    (sessionId: string): TurnFinder =>
    (turnId) =>
      store.getTurn(sessionId, turnId)
  const create = createRequestHandler(options)((body, sessionId, memo, signal) => {
    const readAll = () => store.readOutlines(sessionId)
    return createResponsesDialect(body, { find: finder(sessionId), readAll }, memo, signal)
  }, findContinuedTurn)
  const read = createReadDocs('A response of this session', ResponsesResponse)
  for (const base of BASE_PATHS) {
    app.post(`${base}/responses`, createRouteDocs('Responses', ResponsesRequest, ResponsesResponse), create)
    app.get(`${base}/responses/:responseId`, read, async (request) => {
      rejectReplay(request.query as { stream?: string })
      const { responseId } = request.params as { responseId: string }
      const mayBeBare = request.caller.is === 'anyone' && !sessions.strict
      const sessionId = await (mayBeBare ? getNamedSession : getSessionId)(request, sessions)
      const find = sessionId === undefined ? async () => undefined : finder(sessionId)
      return buildRecordedResponse(await findResponse(responseId, find, 'response_id'))
    })
  }
  done()
}

/** Returns the turn that a request continues. The AI SDK sends no response id, but references to its items. */
function findContinuedTurn(body: unknown): string | undefined {
  const { previous_response_id: id, input } = (body ?? {}) as Record<string, unknown>
  return typeof id === 'string' ? parseTurnId(id) : findReferencedTurn(input)
}

function rejectReplay({ stream }: { stream?: string }): void {
  if (stream !== 'true') return
  throw new ProxyError('unsupported', 'A recorded response cannot be streamed', { param: 'stream' })
}

/**
 * Creates the dialect for one request. It reads the recorded responses that the request continues, and keeps the
 * parameters of the request, which the response repeats.
 * @param signal aborts when the agent disconnects
 * @throws ProxyError `invalid_request`, `unsupported`, `response_not_found`, `agent_gone`
 */
async function createResponsesDialect(
  body: unknown,
  turns: TurnSource,
  memo: PartMemo,
  signal: AbortSignal,
): Promise<AgentDialect> {
  const request = checkResponsesRequest(body, memo)
  const history = await readHistory(request, turns.find)
  const { lowered, annotation, wireTools } = lowerResponsesRequest(
    request,
    history,
    await resolveInputItems(request, turns, signal),
    memo,
  )
  const frame = (identity: ResponseIdentity, responseOptions: ResponseOptions): ResponseFrame => ({
    identity,
    responseOptions,
    annotation,
    wireTools,
    params: lowered.body,
    instructions: request.instructions ?? null,
    tools: request.tools ?? [],
    toolChoice: request.tool_choice ?? 'auto',
  })
  let writer: ResponsesStreamWriter | undefined
  return {
    ...OPENAI,
    name: 'responses',
    lower: () => lowered,
    buildResponse: (identity, responseOptions, completion) =>
      createResponse(frame(identity, responseOptions), completion),
    createStreamWriter: (identity, responseOptions) => {
      writer = new ResponsesStreamWriter(frame(identity, responseOptions))
      return writer
    },
    keepAlive: () => writer?.keepAlive() ?? OPENAI.keepAlive(),
    formatStreamError: (error) => writer?.fail(error) ?? OPENAI.formatStreamError(error),
  }
}
