/** The span of a call, from its arrival to the last byte of its answer. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { toProxyError } from '../../../base/errors.ts'
import type { ArrivedCall, CallSpan, CallTracer } from '../../../protocol/canonical/spans.ts'
import { whenClosed } from '../transport/when-closed.ts'

export function beginSpan(
  tracer: CallTracer,
  call: Pick<ArrivedCall, 'sessionId' | 'dialect'>,
  request: FastifyRequest,
  reply: FastifyReply,
): CallSpan {
  const { traceparent, tracestate } = request.headers
  const [path = ''] = request.url.split('?')
  const span = tracer.begin({
    ...call,
    method: request.method,
    route: request.routeOptions.url ?? path,
    path,
    scheme: request.protocol,
    traceparent: traceparent?.toString(),
    tracestate: tracestate?.toString(),
    ageMs: reply.elapsedTime,
  })
  const { raw } = reply
  whenClosed(raw, () => span.over({ status: raw.statusCode, isWhole: raw.writableFinished }))
  return span
}

/** @returns the answer; what it fails with is told */
export async function toldOf<T>(answer: Promise<T>, span: CallSpan): Promise<T> {
  try {
    return await answer
  } catch (thrown) {
    span.failed(toProxyError(thrown).code)
    throw thrown
  }
}
