import type { FastifyReply, FastifyRequest } from 'fastify'
import { toProxyError } from '../../../base/errors.ts'
import type { PartMemo } from '../../../protocol/canonical/request-reader.ts'
import type { IncomingRequest, RequestSpan, RequestTracer } from '../../../protocol/canonical/spans.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import { onClose } from '../transport/on-close.ts'
import { type AgentPolicy, agentPolicy } from './agent-policy.ts'
import { sessionForCall } from './request-session.ts'
import { type AgentDialect, answerCall, type ResponseContext } from './send-response.ts'
import { acquireSession, getSessionBody } from './session-body.ts'

export interface CallHandlerOptions
  extends Pick<
      ResponseContext,
      'runner' | 'logger' | 'keepAliveMs' | 'answerKeepAliveMs' | 'choiceLimit' | 'volatileRules'
    >,
    AgentPolicy {
  sessions: Sessions
  /** The tracer. Default: requests are not traced. */
  tracer?: RequestTracer | undefined
}

/** Creates a dialect that must query the session before it can convert a request. */
type DialectReader = (body: unknown, sessionId: string, repeats: PartMemo) => Promise<AgentDialect>

/** Returns the turn that a request continues, if its body declares one. */
type FindContinuation = (body: unknown) => string | undefined

/**
 * Creates the handlers of a dialect's routes, which find the session, run the request as a turn and send the response.
 */
export function callHandler(options: CallHandlerOptions) {
  const { sessions, runner, logger, keepAliveMs, answerKeepAliveMs, choiceLimit, volatileRules, tracer } =
    options
  const common = { runner, logger, keepAliveMs, answerKeepAliveMs, choiceLimit, volatileRules }
  const restrict = agentPolicy(options)
  return (of: AgentDialect | DialectReader, continuedTurnOf: FindContinuation = () => undefined) =>
    async (request: FastifyRequest, reply: FastifyReply) => {
      const { read, repeats, session: known, nextStep } = getSessionBody(request)
      const sessionId = await sessionForCall(request, reply, sessions, continuedTurnOf(read.value))
      const session = known ?? acquireSession(sessionId, sessions, reply.raw)
      await nextStep()
      const dialect = typeof of === 'function' ? await of(read.value, sessionId, repeats) : of
      const span = tracer && beginSpan(tracer, { sessionId, dialect: dialect.name }, request, reply)
      const call = {
        ...common,
        dialect,
        session,
        body: read,
        repeats,
        nextStep,
        restrict: request.caller.is === 'agent' ? restrict : undefined,
        admitChoices: (count: number) => request.charge.addCalls(count - 1),
        span,
      }
      const answer = answerCall(call, request, reply)
      return span ? failureOnSpan(answer, span) : answer
    }
}

/** Begins the span of a request, which lasts from its arrival to the last byte of its response. */
function beginSpan(
  tracer: RequestTracer,
  call: Pick<IncomingRequest, 'sessionId' | 'dialect'>,
  request: FastifyRequest,
  reply: FastifyReply,
): RequestSpan {
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
  onClose(raw, () => span.over({ status: raw.statusCode, isWhole: raw.writableFinished }))
  return span
}

/** Records the error of a response on its span. @returns the response */
async function failureOnSpan<T>(answer: Promise<T>, span: RequestSpan): Promise<T> {
  try {
    return await answer
  } catch (thrown) {
    span.failed(toProxyError(thrown).code)
    throw thrown
  }
}
