import { STATUS_CODES } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { BodyContent, PartMemo } from '../../../protocol/canonical/request-reader.ts'
import type { RequestSpan } from '../../../protocol/canonical/spans.ts'
import { type ChoiceEvents, rejectTooManyChoices } from '../../dialects/common/choices.ts'
import type {
  DialectRequest,
  ResponseIdentity,
  ResponseOptions,
} from '../../dialects/common/dialect-request.ts'
import { toJsonText } from '../../dialects/common/json-text.ts'
import { removeVolatileMessage, type VolatileRule } from '../../dialects/common/volatile.ts'
import { findDeclaredRole } from '../../session/roles/declared-role.ts'
import type { SessionReference } from '../../session/state/live-sessions.ts'
import { beginChoices } from '../../session/turn/run-choices.ts'
import type { ResponseHandle, TurnRunner } from '../../session/turn/run-turn.ts'
import { abortOnDisconnect } from '../transport/disconnect-signal.ts'
import { logFailure } from '../transport/errors.ts'
import type { agentPolicy } from './agent-policy.ts'
import { reportDelivery, wholeAnswer } from './complete-response.ts'
import { readRetryInfo } from './request-session.ts'
import { SseReply } from './sse-reply.ts'

/** A dialect for the agent routes: pure functions that convert its wire format to canonical form and back. */
export interface AgentDialect {
  /** The dialect's name in the store. */
  name: string
  lower(body: unknown, repeats: PartMemo): DialectRequest
  /** @param completions one, or as many as the request asked for */
  whole(
    identity: ResponseIdentity,
    answerOptions: ResponseOptions,
    ...completions: readonly [Completion, ...Completion[]]
  ): object
  streamWriter(identity: ResponseIdentity, answerOptions: ResponseOptions): StreamWriter
  /** Returns the writer of a stream of several choices. Present if the dialect supports them. */
  choicesWriter?(
    identity: ResponseIdentity,
    answerOptions: ResponseOptions,
    count: number,
  ): StreamWriter<ChoiceEvents>
  /** Returns the text of the event for an error after the beginning of a stream. */
  streamError(error: ProxyError): string
  /** Returns the body of an error. */
  errorBody(error: ProxyError): object
  /** Returns the text of a keep-alive for a silent stream, which clients' idle timers must count. */
  keepAlive(): string
  /** The content type of a stream; default: that of server-sent events. */
  streamType?: string
  /** Returns the headers that identify a response's turn. */
  headers(turnId: string): Record<string, string>
}

/** Converts events to the text to send. */
interface StreamWriter<Batch = readonly GenerationEvent[]> {
  write(batch: Batch): string
}

/** The turn of a request, or the turns of one request with several choices. */
interface TurnResponse<Batch> {
  readonly turnId: string
  readonly startedAtMs: number
  deliver(sink: { write(batch: Batch): Promise<void> | undefined }): Promise<void>
  readonly signal: AbortSignal
  readonly isWhole: boolean
  undelivered(): Promise<void>
}

export interface ResponseContext {
  dialect: AgentDialect
  session: SessionReference
  body: BodyContent
  /** The parse results of the parts of the session's earlier requests. */
  repeats: PartMemo
  /** Schedules each CPU-heavy step. @returns undefined: it may run now; else a promise of when it may */
  nextStep(): Promise<void> | undefined
  runner: TurnRunner
  logger: Logger
  /** The longest silence of a stream; default: 15 s, well below the idle limits of clients and load balancers. */
  keepAliveMs?: number | undefined
  /** The interval of keep-alives in a response that is not streamed; absent: none. */
  answerKeepAliveMs?: number | undefined
  /** Restricts the body to what this caller may request of an engine; undefined: no restriction. */
  restrict: ReturnType<typeof agentPolicy> | undefined
  /** Throws if this number of responses exceeds the agent's limit on concurrent requests. */
  admitChoices(count: number): void
  /** The maximum number of choices (`n`) of one request; default: 128, as at OpenAI. */
  choiceLimit?: number | undefined
  /** The rules for removing prompt text that changes from request to request; default: all known rules. */
  volatileRules?: readonly VolatileRule[] | undefined
  /** The request's span. Absent: the request is not traced. */
  span?: RequestSpan | undefined
}

const KEEP_ALIVE_MS = 15_000
const CHOICE_LIMIT = 128

/** Restricts a request. The turn's annotation `request_fields` contains the dropped fields. */
function restrictRequest(request: DialectRequest, restrict: ResponseContext['restrict']): DialectRequest {
  if (restrict === undefined) return request
  const { body, dropped } = restrict(request.body)
  if (body === request.body) return request
  const { annotations } = request
  const fields = { ...(annotations?.request_fields as object | undefined), ...dropped }
  // The annotation is serialized when the response is complete, and must not fail then.
  toJsonText(fields)
  const restricted = { ...request, body } as DialectRequest
  return Object.keys(dropped).length === 0
    ? restricted
    : { ...restricted, annotations: { ...annotations, request_fields: fields } }
}

/** Runs an agent's request as a turn and sends the response, streamed or complete as requested. */
export async function answerCall(
  answered: ResponseContext,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  const { dialect, session, body, repeats, nextStep, runner, span, choiceLimit = CHOICE_LIMIT } = answered
  const dialectRequest = removeVolatileMessage(dialect.lower(body.value, repeats), answered.volatileRules)
  const lowered = restrictRequest(dialectRequest, answered.restrict)
  const { stream, answerOptions, choices: count = 1 } = lowered
  rejectTooManyChoices(count, choiceLimit)
  answered.admitChoices(count)
  await nextStep()
  const { caller, headers } = request
  const line = findDeclaredRole({ headers, request: lowered })
  const call = {
    session,
    dialect: dialect.name,
    request: lowered,
    ...jsonOfMessages(lowered, body),
    stream,
    word: {
      ...readRetryInfo(request),
      hasAgentKey: caller.is === 'agent',
      keyTag: caller.is === 'agent' ? caller.keyTag : undefined,
      line,
    },
    annotations: lowered.annotations,
    span,
  }
  const gone = abortOnDisconnect(reply)
  const exchange = { answered, request, reply, gone }
  const named = (turn: TurnIdentity) => {
    reply.headers(dialect.headers(turn.turnId))
    span?.answeredBy(turn.turnId)
    return getIdentity(turn, lowered.body.model ?? '')
  }
  if (count > 1 && dialect.choicesWriter) {
    const choices = await beginChoices(runner, call, count, gone.signal)
    const identity = named(choices)
    if (stream) return streamed(choices, dialect.choicesWriter(identity, answerOptions, count), exchange)
    return whole(choices, exchange, () => dialect.whole(identity, answerOptions, ...choices.completions))
  }
  const turn = await runner.begin(call, gone.signal)
  const identity = named(turn)
  if (stream) return streamed(turn, dialect.streamWriter(identity, answerOptions), exchange)
  return whole(turn, exchange, () => dialect.whole(identity, answerOptions, turn.completion))
}

interface Exchange {
  answered: ResponseContext
  request: FastifyRequest
  reply: FastifyReply
  /** Cancels the request when the agent disconnects, or if an event cannot be converted to its dialect. */
  gone: AbortController
}

async function streamed<Batch>(
  turn: TurnResponse<Batch>,
  writer: StreamWriter<Batch>,
  { answered: { dialect, logger, keepAliveMs = KEEP_ALIVE_MS }, request, reply, gone }: Exchange,
): Promise<FastifyReply> {
  const failed = await streamAnswer(turn, reply, { writer, dialect, keepAliveMs, gone })
  if (failed) logFailure(logger, request, failed)
  return reply
}

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
 * Returns the original bytes of the messages, in a dialect with canonical messages, so that they need not be serialized
 * again.
 */
function jsonOfMessages(
  { body }: DialectRequest,
  { list }: BodyContent,
): { messagesJson?: readonly Buffer[] } {
  const json = body.messages === list?.elements ? list?.json : undefined
  return json ? { messagesJson: [json] } : {}
}

function whole(
  turn: TurnResponse<unknown>,
  { answered: { dialect, logger, answerKeepAliveMs }, request, reply }: Exchange,
  answer: () => object,
): Promise<object> {
  return wholeAnswer(turn, reply, {
    answer,
    errorBody: dialect.errorBody,
    onLateError: (error) => logFailure(logger, request, error),
    answerKeepAliveMs,
  })
}

interface StreamContext<Batch> {
  writer: StreamWriter<Batch>
  dialect: AgentDialect
  keepAliveMs: number
  gone: AbortController
}

/**
 * Streams a response. Until the engine has accepted the request, a failure is thrown and becomes an HTTP error. The
 * status line is sent with the first event or keep-alive, and a later failure becomes an event of the stream.
 * @returns the error after the status line, if any
 */
async function streamAnswer<Batch>(
  turn: TurnResponse<Batch>,
  reply: FastifyReply,
  { writer, dialect, keepAliveMs, gone }: StreamContext<Batch>,
): Promise<ProxyError | undefined> {
  let sse: SseReply | undefined
  let failed: ProxyError | undefined
  const silence = setInterval(() => {
    if (reply.raw.destroyed) return
    sse ??= new SseReply(reply, dialect.streamType)
    sse.keepAlive(() => dialect.keepAlive())
  }, keepAliveMs)
  const write = (batch: Batch) => {
    sse ??= new SseReply(reply, dialect.streamType)
    if (turn.isWhole) reportDelivery(turn, reply)
    const text = written(batch, writer, gone)
    if (text !== '') silence.refresh()
    return sse.send(text, turn.signal)
  }
  try {
    await turn.deliver({ write })
  } catch (thrown) {
    failed = toProxyError(thrown)
    if (!sse) throw failed
    void sse.send(dialect.streamError(withStatus(failed)), turn.signal)
  } finally {
    clearInterval(silence)
  }
  sse?.end()
  return failed
}

/**
 * Returns the error with its status in the message, as in clients' HTTP errors: agents decide by this text whether to
 * retry (pi), and a stream that has begun has no status line.
 */
function withStatus(error: ProxyError): ProxyError {
  const { code, status, message } = error
  if (status < 500) return error
  return new ProxyError(code, `${status} ${STATUS_CODES[status] ?? 'Server Error'}: ${message}`, { status })
}

/**
 * Converts events to text. An event that the dialect cannot represent is recorded as an error of the engine, because
 * the agent has not disconnected.
 */
function written<Batch>(batch: Batch, writer: StreamWriter<Batch>, gone: AbortController): string {
  try {
    return writer.write(batch)
  } catch (thrown) {
    gone.abort(toProxyError(thrown))
    throw thrown
  }
}
