import type { FastifyReply, FastifyRequest } from 'fastify'
import type { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { isSessionMovedError } from '../../store/port/node-coordination.ts'
import { buildErrorHeaders, logFailure, toRequestError } from '../transport/errors.ts'

/** The format of the errors of a dialect. */
interface ErrorShape {
  /** The response header for the request id. */
  idHeader: 'request-id' | 'x-request-id'
  /** Default: the status of the error. */
  getStatus?(error: ProxyError): number
  buildBody(error: ProxyError, requestId: string): object
}

/**
 * Creates a handler that sends errors in the format of a dialect. If a request has not become a turn because another
 * node has created its session, the request is forwarded to that node.
 */
export function createErrorHandler(
  logger: Logger,
  { idHeader, getStatus: status, buildBody: body }: ErrorShape,
) {
  return async (thrown: unknown, request: FastifyRequest, reply: FastifyReply) => {
    const error = toRequestError(thrown)
    const isTurn = reply.hasHeader(idHeader)
    if (isSessionMovedError(error) && !isTurn && (await request.ownerForwarder?.forward(reply))) return reply
    logFailure(logger, request, error)
    // If the request has become a turn, the header contains the turn's id.
    const requestId = String(reply.getHeader(idHeader) ?? request.id)
    return reply
      .code(status?.(error) ?? error.status)
      .headers({ ...buildErrorHeaders(error), [idHeader]: requestId })
      .send(body(error, requestId))
  }
}
