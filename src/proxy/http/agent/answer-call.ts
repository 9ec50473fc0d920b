import { STATUS_CODES } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import type { Completion } from '../../../protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../protocol/canonical/events.ts'
import type { PartMemo, RequestContent } from '../../../protocol/canonical/request-reader.ts'
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
import { beginChoices } from '../../session/turn/run-choices.ts'
import type { AwaitedTurn, TurnRunner } from '../../session/turn/run-turn.ts'
import { abortOnDisconnect } from '../transport/disconnect-signal.ts'
import { logFailure } from '../transport/errors.ts'
import type { agentPolicy } from './agent-policy.ts'
import { triesOf } from './session-of-call.ts'
import { SseReply } from './sse-reply.ts'
import { reportDelivery, wholeAnswer } from './whole-answer.ts'

/** What a dialect brings to the agent routes: pure functions from its wire format to canonical form and back. */
export interface AgentDialect {
  /** Name for the record. */
  name: string
  lower(body: unknown, repeats: PartMemo): DialectRequest
  /** @param completions one, or as many as the request asked for */
  whole(
    identity: ResponseIdentity,
    answerOptions: ResponseOptions,
    ...completions: readonly [Completion, ...Completion[]]
  ): object
  streamWriter(identity: ResponseIdentity, answerOptions: ResponseOptions): StreamWriter
  /** Of a stream of several choices; only a dialect that lowers to them has it. */
  choicesWriter?(
    identity: ResponseIdentity,
    answerOptions: ResponseOptions,
    count: number,
  ): StreamWriter<ChoiceEvents>
  /** An error that comes after the stream began, as the text of its event. */
  streamError(error: ProxyError): string
  /** The body of an error. */
  errorBody(error: ProxyError): object
  /** Returns the text of a silent stream's sign of life. Clients' idle timers must count it. */
  keepAlive(): string
  /** The content type of a stream; default: that of server-sent events. */
  streamType?: string
  /** Headers by which an answer names its turn. */
  headers(turnId: string): Record<string, string>
}

/** Turns events into the text to send for them. */
interface StreamWriter<Batch = readonly GenerationEvent[]> {
  write(batch: Batch): string
}

/** What is being answered: a turn, or several of one call. */
interface AnsweringTurn<Batch> {
  readonly turnId: string
  readonly startedAtMs: number
  readonly events: AsyncIterable<Batch>
  readonly signal: AbortSignal
  readonly isWhole: boolean
  undelivered(): Promise<void>
}

export interface AnsweredCall {
  dialect: AgentDialect
  sessionId: string
  body: RequestContent
  /** What was made of the parts of the session's earlier requests. */
  repeats: PartMemo
  /** Before each step that takes time. @returns undefined: now; else when it may be done */
  nextStep(): Promise<void> | undefined
  runner: TurnRunner
  logger: Logger
  /** How long a stream may be silent; default: 15 s, well below the idle limits of clients and load balancers. */
  keepAliveMs?: number | undefined
  /** How often an answer that is not streamed shows a sign of life; absent: never. */
  answerKeepAliveMs?: number | undefined
  /** Restricts the body to what this caller may request of an engine; undefined: it may request anything. */
  restrict: ReturnType<typeof agentPolicy> | undefined
  /** Throws when its agent has too many calls under way to ask for so many answers at once. */
  admitChoices(count: number): void
  /** Answers that one call may ask for; default: 128, as at OpenAI. */
  choiceLimit?: number | undefined
  /** What to take out of prompts, because it changes from call to call; default: all that is known. */
  volatileRules?: readonly VolatileRule[] | undefined
  /** Absent: nobody traces the call. */
  span?: RequestSpan | undefined
}

const KEEP_ALIVE_MS = 15_000
const CHOICE_LIMIT = 128

/** Restricts a request. The turn's annotation `request_fields` has the fields that were dropped. */
function restrictRequest(request: DialectRequest, restrict: AnsweredCall['restrict']): DialectRequest {
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

/** Runs one agent call as a turn and answers it, streamed or whole as the agent asked. */
export async function answerCall(
  answered: AnsweredCall,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  const { dialect, sessionId, body, repeats, nextStep, runner, span, choiceLimit = CHOICE_LIMIT } = answered
  const dialectRequest = removeVolatileMessage(dialect.lower(body.value, repeats), answered.volatileRules)
  const lowered = restrictRequest(dialectRequest, answered.restrict)
  const { stream, answerOptions, choices: count = 1 } = lowered
  rejectTooManyChoices(count, choiceLimit)
  answered.admitChoices(count)
  await nextStep()
  const { caller, headers } = request
  const line = findDeclaredRole({ headers, request: lowered })
  const call = {
    sessionId,
    dialect: dialect.name,
    request: lowered,
    ...jsonOfMessages(lowered, body),
    stream,
    word: {
      ...triesOf(request),
      hasAgentKey: caller.is === 'agent',
      keyTag: caller.is === 'agent' ? caller.keyTag : undefined,
      line,
    },
    annotations: lowered.annotations,
    span,
  }
  const gone = abortOnDisconnect(reply)
  const exchange = { answered, request, reply, gone }
  const named = (turn: NamedTurn) => {
    reply.headers(dialect.headers(turn.turnId))
    span?.answeredBy(turn.turnId)
    return identityOf(turn, lowered.body.model ?? '')
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
  answered: AnsweredCall
  request: FastifyRequest
  reply: FastifyReply
  /** Ends the call: when the agent has gone, or cannot be told what comes. */
  gone: AbortController
}

async function streamed<Batch>(
  turn: AnsweringTurn<Batch>,
  writer: StreamWriter<Batch>,
  { answered: { dialect, logger, keepAliveMs = KEEP_ALIVE_MS }, request, reply, gone }: Exchange,
): Promise<FastifyReply> {
  const failed = await streamAnswer(turn, reply, { writer, dialect, keepAliveMs, gone })
  if (failed) logFailure(logger, request, failed)
  return reply
}

type NamedTurn = Pick<AwaitedTurn, 'turnId' | 'startedAtMs' | 'endedAtMs'>

function identityOf(turn: NamedTurn, model: string): ResponseIdentity {
  return {
    turnId: turn.turnId,
    createdS: Math.floor(turn.startedAtMs / 1000),
    get endedS() {
      return turn.endedAtMs === undefined ? undefined : Math.floor(turn.endedAtMs / 1000)
    },
    model,
  }
}

/** Of a dialect that has canonical messages, their own bytes: nobody need write them again. */
function jsonOfMessages(
  { body }: DialectRequest,
  { list }: RequestContent,
): { messagesJson?: readonly Buffer[] } {
  const json = body.messages === list?.elements ? list?.json : undefined
  return json ? { messagesJson: [json] } : {}
}

function whole(
  turn: AnsweringTurn<unknown>,
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

interface StreamedAnswer<Batch> {
  writer: StreamWriter<Batch>
  dialect: AgentDialect
  keepAliveMs: number
  gone: AbortController
}

/**
 * Until the engine has accepted the call, a failure is thrown and becomes an HTTP error; the status line goes out
 * with the first event or keep-alive, and what fails after it is an event of the stream.
 * @returns what failed after the status line
 */
async function streamAnswer<Batch>(
  turn: AnsweringTurn<Batch>,
  reply: FastifyReply,
  { writer, dialect, keepAliveMs, gone }: StreamedAnswer<Batch>,
): Promise<ProxyError | undefined> {
  let sse: SseReply | undefined
  let failed: ProxyError | undefined
  const silence = setInterval(() => {
    if (reply.raw.destroyed) return
    sse ??= new SseReply(reply, dialect.streamType)
    sse.keepAlive(() => dialect.keepAlive())
  }, keepAliveMs)
  try {
    for await (const batch of turn.events) {
      sse ??= new SseReply(reply, dialect.streamType)
      if (turn.isWhole) reportDelivery(turn, reply)
      const text = written(batch, writer, gone)
      if (text !== '') silence.refresh()
      await sse.send(text, turn.signal)
    }
  } catch (thrown) {
    failed = toProxyError(thrown)
    if (!sse) throw failed
    await sse.send(dialect.streamError(withStatus(failed)), turn.signal)
  } finally {
    clearInterval(silence)
  }
  sse?.end()
  return failed
}

/**
 * Returns the error with its status in the message, where clients of HTTP errors have it: agents decide by these words
 * whether they try again (pi), and a stream that has begun has no status line left.
 */
function withStatus(error: ProxyError): ProxyError {
  const { code, status, message } = error
  if (status < 500) return error
  return new ProxyError(code, `${status} ${STATUS_CODES[status] ?? 'Server Error'}: ${message}`, { status })
}

/** What a dialect has no words for is the engine's fault, and on record as such: no agent has left. */
function written<Batch>(batch: Batch, writer: StreamWriter<Batch>, gone: AbortController): string {
  try {
    return writer.write(batch)
  } catch (thrown) {
    gone.abort(toProxyError(thrown))
    throw thrown
  }
}
