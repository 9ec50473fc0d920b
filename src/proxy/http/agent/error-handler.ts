import type { FastifyReply, FastifyRequest } from 'fastify'
import type { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { isMoved } from '../../store/port/node-coordination.ts'
import { buildErrorHeaders, logFailure, toRequestError } from '../transport/errors.ts'

interface ErrorShape {
  /** The response header that contains the request id. */
  idHeader: 'request-id' | 'x-request-id'
  getStatus?(error: ProxyError): number
  buildBody(error: ProxyError, requestId: string): object
}

/**
 * Returns a handler that sends errors in the format of a dialect. A request that did not become a turn because another node
 * has created its session is forwarded there.
 */
export function createErrorHandler(
  logger: Logger,
  { idHeader, getStatus: status, buildBody: body }: ErrorShape,
) {
  return async (thrown: unknown, request: FastifyRequest, reply: FastifyReply) => {
    const error = toRequestError(thrown)
    const isTurn = reply.hasHeader(idHeader)
    if (isMoved(error) && !isTurn && (await request.otherOwner?.forward(reply))) return reply
    logFailure(logger, request, error)
    // The id is that of the turn, if the request has become one.
    const requestId = String(reply.getHeader(idHeader) ?? request.id)
    return reply
      .code(status?.(error) ?? error.status)
      .headers({ ...buildErrorHeaders(error), [idHeader]: requestId })
      .send(body(error, requestId))
  }
}
