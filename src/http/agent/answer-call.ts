import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Completion } from '../../canonical/completion.ts'
import type { GenerationEvent } from '../../canonical/events.ts'
import type { ReadRequest, Repeats } from '../../canonical/request-reader.ts'
import type { AnswerIdentity, AnswerWishes, LoweredRequest } from '../../dialects/lowered.ts'
import { type ProxyError, toProxyError } from '../../errors.ts'
import type { Logger } from '../../logger.ts'
import { toldLine } from '../../session/lines/told-line.ts'
import type { Turn, TurnRunner } from '../../session/run-turn.ts'
import { clientGone } from '../client-gone.ts'
import { logFailure } from '../errors.ts'
import { retryCountOf } from './session-of-call.ts'
import { SseReply } from './sse-reply.ts'

/** What a dialect brings to the agent routes: pure functions from its wire format to canonical form and back. */
export interface AgentDialect {
  /** Name for the record. */
  name: string
  lower(body: unknown, repeats: Repeats): LoweredRequest
  whole(identity: AnswerIdentity, wishes: AnswerWishes, completion: Completion): object
  streamWriter(identity: AnswerIdentity, wishes: AnswerWishes): StreamWriter
  /** An error that comes after the stream began, as the text of its event. */
  streamError(error: ProxyError): string
  /** What a stream says while it has nothing to say. */
  keepAlive: string
  /** Headers by which an answer names its turn. */
  headers(turnId: string): Record<string, string>
}

/** Turns events into the text to send for them. */
export interface StreamWriter {
  write(events: readonly GenerationEvent[]): string
}

export interface AnsweredCall {
  dialect: AgentDialect
  sessionId: string
  body: ReadRequest
  /** What was made of the parts of the session's earlier requests. */
  repeats: Repeats
  runner: TurnRunner
  logger: Logger
  /** How long a stream may be silent; default: 15 s, well below the idle limits of clients and load balancers. */
  keepAliveMs?: number
  /** Throws for what this caller may not ask of an engine. Default: it may ask for anything. */
  mayAsk?(body: LoweredRequest['body']): void
}

const KEEP_ALIVE_MS = 15_000

/** Runs one agent call as a turn and answers it, streamed or whole as the agent asked. */
export async function answerCall(
  { dialect, sessionId, body, repeats, runner, logger, keepAliveMs = KEEP_ALIVE_MS, mayAsk }: AnsweredCall,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<unknown> {
  const lowered = dialect.lower(body.value, repeats)
  mayAsk?.(lowered.body)
  const { stream, wishes } = lowered
  const line = toldLine({ headers: request.headers, request: lowered })
  const call = {
    sessionId,
    dialect: dialect.name,
    request: lowered,
    ...jsonOfMessages(lowered, body),
    stream,
    word: {
      retryCount: retryCountOf(request),
      hasAgentKey: request.caller.is === 'agent',
      ...(line && { line }),
    },
    ...(lowered.annotations && { annotations: lowered.annotations }),
  }
  const turn = await runner.begin(call, clientGone(reply))
  reply.headers(dialect.headers(turn.turnId))
  const createdS = Math.floor(turn.startedAtMs / 1000)
  const identity = { turnId: turn.turnId, createdS, model: lowered.body.model ?? '' }
  if (!stream) return wholeAnswer(turn, reply, () => dialect.whole(identity, wishes, turn.completion))
  const writer = dialect.streamWriter(identity, wishes)
  const failed = await streamAnswer(turn, reply, { writer, dialect, keepAliveMs })
  if (failed) logFailure(logger, request, failed)
  return reply
}

/** Of a dialect that has canonical messages, their own bytes: nobody need write them again. */
function jsonOfMessages(
  { body }: LoweredRequest,
  { list }: ReadRequest,
): { messagesJson?: readonly Buffer[] } {
  return list !== undefined && body.messages === list.elements ? { messagesJson: [list.json] } : {}
}

/** The answer is committed; if the connection closes before it was handed over, the turn must say so. */
function reportDelivery(turn: Turn, reply: FastifyReply): void {
  const { raw } = reply
  const report = () => {
    if (!raw.writableFinished) void turn.undelivered()
  }
  if (raw.closed) report()
  else raw.once('close', report)
}

async function wholeAnswer(turn: Turn, reply: FastifyReply, answer: () => object): Promise<object> {
  for await (const _ of turn.events);
  reportDelivery(turn, reply)
  return answer()
}

interface StreamedAnswer {
  writer: StreamWriter
  dialect: AgentDialect
  keepAliveMs: number
}

/**
 * Until the engine has accepted the call, a failure is thrown and becomes an HTTP error; the status line goes out
 * with the first event or keep-alive, and what fails after it is told in the stream.
 * @returns what failed after the status line
 */
async function streamAnswer(
  turn: Turn,
  reply: FastifyReply,
  { writer, dialect, keepAliveMs }: StreamedAnswer,
): Promise<ProxyError | undefined> {
  let sse: SseReply | undefined
  let failed: ProxyError | undefined
  const silence = setInterval(() => {
    if (reply.raw.destroyed) return
    sse ??= new SseReply(reply)
    sse.keepAlive(dialect.keepAlive)
  }, keepAliveMs)
  try {
    for await (const batch of turn.events) {
      sse ??= new SseReply(reply)
      if (turn.completion.end) reportDelivery(turn, reply)
      const text = writer.write(batch)
      if (text !== '') silence.refresh()
      await sse.send(text, turn.signal)
    }
  } catch (thrown) {
    failed = toProxyError(thrown)
    if (!sse) throw failed
    await sse.send(dialect.streamError(failed), turn.signal)
  } finally {
    clearInterval(silence)
  }
  sse?.end()
  return failed
}
