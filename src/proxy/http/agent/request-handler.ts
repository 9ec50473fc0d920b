/** Handles an agent's request in the HTTP layer, in the same steps for all dialects. */
import type { FastifyReply, FastifyRequest } from 'fastify'
import { toProxyError } from '../../../base/errors.ts'
import type { BodyContent, PartMemo } from '../../../protocol/canonical/request-reader.ts'
import type { RequestSpan, RequestTracer } from '../../../protocol/canonical/spans.ts'
import { rejectTooManyChoices } from '../../dialects/common/choices.ts'
import type { DialectRequest, ResponseIdentity } from '../../dialects/common/dialect-request.ts'
import { toJsonText } from '../../dialects/common/json-text.ts'
import { removeVolatileMessage, type VolatileRule } from '../../dialects/common/volatile.ts'
import { findDeclaredRole } from '../../session/roles/declared-role.ts'
import type { Sessions } from '../../session/state/sessions.ts'
import type { RequestMetadata } from '../../session/turn/agent-request.ts'
import type { RequestLog, RequestLogger } from '../../session/turn/request-log.ts'
import { beginChoices } from '../../session/turn/run-choices.ts'
import type { ResponseHandle, TurnRunner } from '../../session/turn/run-turn.ts'
import { createDisconnectSignal, runOnClose } from '../transport/on-close.ts'
import type { AgentDialect } from './agent-dialect.ts'
import { type AgentPolicy, createAgentPolicy } from './agent-policy.ts'
import { getOrCreateSessionId, readRetryInfo } from './request-session.ts'
import { type DeliveryOptions, ResponseDelivery } from './response-delivery.ts'
import { acquireSession, getSessionBody } from './session-body.ts'

export interface RequestHandlerOptions extends DeliveryOptions, AgentPolicy {
  sessions: Sessions
  runner: TurnRunner
  /** The maximum number of choices (`n`) of one request. Default: 128, the limit of OpenAI. */
  choiceLimit?: number | undefined
  /** The rules that remove prompt text which changes from request to request. Default: all known rules. */
  volatileRules?: readonly VolatileRule[] | undefined
  /** The tracer. Default: requests are not traced. */
  tracer?: RequestTracer | undefined
  /** Logs requests on arrival. Default: requests are not logged. */
  logRequest?: RequestLogger | undefined
}

/**
 * A function that creates the dialect for one request, after it has read recorded turns of the session. The signal aborts
 * when the agent disconnects.
 */
type DialectFactory = (
  body: unknown,
  sessionId: string,
  memo: PartMemo,
  signal: AbortSignal,
) => Promise<AgentDialect>

/** A function that returns the id of the turn that a request continues, if its body declares one. */
type ContinuationFinder = (body: unknown) => string | undefined

const CHOICE_LIMIT = 128

/**
 * Returns a function that creates the handler of a route from its dialect. A handler finds the session, runs the
 * request as a turn, or as one turn per choice, and sends the response.
 */
export function createRequestHandler(options: RequestHandlerOptions) {
  const { sessions, runner, choiceLimit = CHOICE_LIMIT, tracer, logRequest } = options
  const restrict = createAgentPolicy(options)
  return (
    dialectOrFactory: AgentDialect | DialectFactory,
    continuedTurnOf: ContinuationFinder = () => undefined,
  ) =>
    async (request: FastifyRequest, reply: FastifyReply): Promise<unknown> => {
      // 1. Find the session. It is acquired already if the body was parsed with the session's cache.
      const { read, memo, session: acquired, waitForSlice } = getSessionBody(request)
      const sessionId =
        acquired?.live.sessionId ??
        (await getOrCreateSessionId(request, reply, sessions, continuedTurnOf(read.value)))
      const session = acquired ?? acquireSession(sessionId, sessions, reply.raw)
      const conversionStep = waitForSlice()
      if (conversionStep) await conversionStep
      const dialect =
        typeof dialectOrFactory === 'function'
          ? await dialectOrFactory(read.value, sessionId, memo, createDisconnectSignal(reply))
          : dialectOrFactory
      const log = logRequest?.({ session_id: sessionId, request_id: request.id }, dialect.name)
      const span = tracer && beginSpan(tracer, { sessionId, dialect: dialect.name }, request, reply)
      try {
        // 2. Convert the request to canonical form, and restrict it to what its caller may request.
        const converted = removeVolatileMessage(dialect.lower(read.value, memo), options.volatileRules)
        const isAgent = request.caller.is === 'agent'
        const canonical = isAgent ? restrictRequest(converted, restrict) : converted
        const { stream, responseOptions, annotations, choices: count = 1 } = canonical
        // 3. Charge all choices to the caller.
        rejectTooManyChoices(count, choiceLimit)
        request.charge.addCompletions(count - 1)
        const turnStep = waitForSlice()
        if (turnStep) await turnStep
        // 4. Begin its turn, or one turn for each choice.
        const agentRequest = {
          session,
          dialect: dialect.name,
          request: canonical,
          messagesJson: getMessagesJson(canonical, read),
          stream,
          metadata: readMetadata(request, canonical),
          annotations,
          log,
          span,
        }
        const delivery = new ResponseDelivery(dialect, request, reply, options)
        const identify = (turn: TurnIdentity): ResponseIdentity => {
          reply.headers(dialect.getHeaders(turn.turnId))
          span?.reportTurn(turn.turnId)
          if (log) logDelivery(log, turn.turnId, reply)
          return getIdentity(turn, canonical.body.model ?? '')
        }
        // 5. Deliver the response.
        if (count > 1 && dialect.createChoicesWriter) {
          const turns = await beginChoices(runner, agentRequest, count, delivery.gone.signal)
          const identity = identify(turns)
          return stream
            ? await delivery.stream(turns, dialect.createChoicesWriter(identity, responseOptions, count))
            : await delivery.complete(turns, () =>
                dialect.buildResponse(identity, responseOptions, ...turns.completions),
              )
        }
        const turn = await runner.begin(agentRequest, delivery.gone.signal)
        const identity = identify(turn)
        return stream
          ? await delivery.stream(turn, dialect.createStreamWriter(identity, responseOptions))
          : await delivery.complete(turn, () =>
              dialect.buildResponse(identity, responseOptions, turn.completion),
            )
      } catch (thrown) {
        span?.reportFailure(toProxyError(thrown).code)
        throw thrown
      }
    }
}

/** Begins the span of a request, which ends with the last byte of its response. */
function beginSpan(
  tracer: RequestTracer,
  attributes: { sessionId: string; dialect: string },
  request: FastifyRequest,
  reply: FastifyReply,
): RequestSpan {
  const { traceparent, tracestate } = request.headers
  const [path = ''] = request.url.split('?')
  const span = tracer.begin({
    ...attributes,
    method: request.method,
    route: request.routeOptions.url ?? path,
    path,
    scheme: request.protocol,
    traceparent: traceparent?.toString(),
    tracestate: tracestate?.toString(),
    ageMs: reply.elapsedTime,
  })
  const { raw } = reply
  runOnClose(raw, () => span.reportEnd({ status: raw.statusCode, isComplete: raw.writableFinished }))
  return span
}

/** Logs the end of the response, or that its connection closed before. */
function logDelivery(log: RequestLog, turnId: string, { raw }: FastifyReply): void {
  runOnClose(raw, () => log.logDelivered(turnId, raw.statusCode, raw.writableFinished))
}

/** Restricts a request to what an agent may set. The annotation `request_fields` records the dropped fields. */
function restrictRequest(
  request: DialectRequest,
  restrict: ReturnType<typeof createAgentPolicy>,
): DialectRequest {
  const { body, dropped } = restrict(request.body)
  if (body === request.body) return request
  const { annotations } = request
  const fields = { ...(annotations?.request_fields as object | undefined), ...dropped }
  // Fails early if the fields cannot be serialized: the annotation is serialized when the response is complete.
  toJsonText(fields)
  const restricted = { ...request, body } as DialectRequest
  return Object.keys(dropped).length === 0
    ? restricted
    : { ...restricted, annotations: { ...annotations, request_fields: fields } }
}

/** Returns the metadata that the agent declares, and what its key proves. */
function readMetadata(request: FastifyRequest, canonical: DialectRequest): RequestMetadata {
  const { caller, headers } = request
  const isAgent = caller.is === 'agent'
  return {
    ...readRetryInfo(request),
    hasAgentKey: isAgent,
    keyTag: isAgent ? caller.keyTag : undefined,
    agentRole: findDeclaredRole({ headers, request: canonical }),
  }
}

/** The fields of a turn that identify its response. */
type TurnIdentity = Pick<ResponseHandle, 'turnId' | 'startedAtMs' | 'endedAtMs'>

function getIdentity(turn: TurnIdentity, model: string): ResponseIdentity {
  return {
    turnId: turn.turnId,
    createdS: Math.floor(turn.startedAtMs / 1000),
    get endedS() {
      return turn.endedAtMs === undefined ? undefined : Math.floor(turn.endedAtMs / 1000)
    },
    model,
  }
}

/**
 * Returns the original bytes of the messages, if the dialect uses them unchanged, so that they need not be serialized
 * again; otherwise undefined.
 */
function getMessagesJson({ body }: DialectRequest, { list }: BodyContent): readonly Buffer[] | undefined {
  return list?.json !== undefined && body.messages === list.elements ? [list.json] : undefined
}
