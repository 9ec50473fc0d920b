/**
 * Responses that are not streamed: nothing is sent until the response is complete, except keep-alives if that takes
 * long.
 */
import type { FastifyReply } from 'fastify'
import { type ProxyError, toProxyError } from '../../../base/errors.ts'
import { errorHeaders } from '../transport/errors.ts'
import { hijack } from '../transport/hijack.ts'
import { onClose } from '../transport/on-close.ts'

/** The turn whose response is awaited. */
interface PendingResponse {
  deliver(sink: { write(): undefined }): Promise<void>
  undelivered(): Promise<void>
}

interface WholeAnswerOptions {
  /** Builds the complete response. */
  answer(): object
  /** Returns the body of an error after the status line. */
  errorBody(error: ProxyError): object
  /** Receives such an error. */
  onLateError(error: ProxyError): void
  /** The interval at which a space is sent before the response. Absent: none is sent. */
  answerKeepAliveMs: number | undefined
}

/**
 * Sends a complete response. Gateways and tunnels close a connection that is silent for a minute or two. Spaces before
 * JSON are ignored and keep it open, but the first one commits the status 200.
 * @returns the value for Fastify to send
 */
export async function wholeAnswer(
  turn: PendingResponse,
  reply: FastifyReply,
  { answer, errorBody, onLateError, answerKeepAliveMs }: WholeAnswerOptions,
): Promise<object> {
  const heart = answerKeepAliveMs === undefined ? undefined : startHeartbeat(reply, answerKeepAliveMs)
  try {
    await turn.deliver({ write: () => undefined })
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

/** Marks the turn as undelivered if the connection closes before the committed response has been sent. */
export function reportDelivery(turn: Pick<PendingResponse, 'undelivered'>, reply: FastifyReply): void {
  const { raw } = reply
  onClose(raw, () => {
    if (!raw.writableFinished) void turn.undelivered()
  })
}

/**
 * Returns whether an SDK would retry this error's status: it also retries a broken connection, but not an error in a
 * 200.
 */
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
    /** Whether the status line has been sent. */
    get hasBegun() {
      return hasBegun
    },
    stop: () => clearInterval(timer),
  }
}
