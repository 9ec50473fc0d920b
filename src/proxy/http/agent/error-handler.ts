import type { FastifyReply, FastifyRequest } from 'fastify'
import type { ProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { errorHeaders, logFailure, toRequestError } from '../transport/errors.ts'

interface ErrorShape {
  /** Names the request in the answer's head. */
  idHeader: 'request-id' | 'x-request-id'
  status?(error: ProxyError): number
  body(error: ProxyError, requestId: string): object
}

/** Answers what failed on a dialect's routes as its clients read it. */
export function errorHandler(logger: Logger, { idHeader, status, body }: ErrorShape) {
  return (thrown: unknown, request: FastifyRequest, reply: FastifyReply) => {
    const error = toRequestError(thrown)
    logFailure(logger, request, error)
    // A turn's own, if the call had become one.
    const requestId = String(reply.getHeader(idHeader) ?? request.id)
    void reply
      .code(status?.(error) ?? error.status)
      .headers({ ...errorHeaders(error), [idHeader]: requestId })
      .send(body(error, requestId))
  }
}
