/** Answers that are not streamed: nothing of them is sent until all is there, but a sign of life where that takes long. */
import type { FastifyReply } from 'fastify'
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import { errorHeaders } from '../transport/errors.ts'
import { hijack } from '../transport/hijack.ts'
import { onClose } from '../transport/on-close.ts'

/** What is waited for. */
interface AwaitedAnswer {
  readonly events: AsyncIterable<unknown>
  undelivered(): Promise<void>
}

interface WholeAnswerOptions {
  /** Puts the answer together when all of it is there. */
  answer(): object
  /** The body of an error that comes when the status line is out already. */
  errorBody(error: ProxyError): object
  /** Called with such an error. */
  onLateError(error: ProxyError): void
  /** A space is sent each time that so long has passed without the answer. Absent: none is. */
  answerKeepAliveMs: number | undefined
}

/**
 * Gateways and tunnels cut a connection that is silent for a minute or two. Spaces before JSON mean nothing, and keep it;
 * they cost the status: with the first one it is a 200.
 * @returns what Fastify is to send
 */
export async function wholeAnswer(
  turn: AwaitedAnswer,
  reply: FastifyReply,
  { answer, errorBody, onLateError, answerKeepAliveMs }: WholeAnswerOptions,
): Promise<object> {
  const heart = answerKeepAliveMs === undefined ? undefined : startHeartbeat(reply, answerKeepAliveMs)
  try {
    for await (const _ of turn.events);
    reportDelivery(turn, reply)
    const whole = answer()
    if (!heart?.hasBegun) return whole
    reply.raw.end(JSON.stringify(whole))
  } catch (thrown) {
    if (!heart?.hasBegun) throw thrown
    const error = toProxyError(thrown)
    onLateError(error)
    if (worthRetrying(error)) reply.raw.destroy()
    else reply.raw.end(JSON.stringify(errorBody(error)))
  } finally {
    heart?.stop()
  }
  return reply
}

/** The answer is committed; if the connection closes before it was handed over, the turn must say so. */
export function reportDelivery(turn: Pick<AwaitedAnswer, 'undelivered'>, reply: FastifyReply): void {
  const { raw } = reply
  onClose(raw, () => {
    if (!raw.writableFinished) void turn.undelivered()
  })
}

/** What an SDK would try again by its status: it does so for a connection that broke, too, and not for an error in a 200. */
function worthRetrying(error: ProxyError): boolean {
  const isTransient =
    error.status >= 500 || error.status === 408 || error.status === 409 || error.status === 429
  return isTransient && errorHeaders(error)['x-should-retry'] !== 'false'
}

function startHeartbeat(reply: FastifyReply, everyMs: number) {
  let hasBegun = false
  const { raw } = reply
  const timer = setInterval(() => {
    if (raw.destroyed) return
    if (!hasBegun) hijack(reply, { contentType: 'application/json; charset=utf-8' })
    hasBegun = true
    raw.write(' ')
  }, everyMs)
  return {
    /** Whether the status line is out. */
    get hasBegun() {
      return hasBegun
    },
    stop: () => clearInterval(timer),
  }
}
