/** Delivers the response of a turn to the agent's connection. */
import { STATUS_CODES } from 'node:http'
import type { FastifyReply, FastifyRequest } from 'fastify'
import { ProxyError, toProxyError } from '../../../base/errors.ts'
import type { Logger } from '../../../base/logger.ts'
import { buildErrorHeaders, logFailure } from '../transport/errors.ts'
import { hijack } from '../transport/hijack.ts'
import { createDisconnectController, runOnClose } from '../transport/on-close.ts'
import type { AgentDialect, StreamWriter } from './agent-dialect.ts'
import { SseReply } from './sse-reply.ts'

export interface DeliveryOptions {
  logger: Logger
  /** The maximum silence of a stream. Default: 15 s, well below the idle limits of clients and load balancers. */
  keepAliveMs?: number | undefined
  /** The interval of keep-alives in a response that is not streamed; absent: none. */
  answerKeepAliveMs?: number | undefined
}

/** The response of a turn, or of all turns of a request with several choices. */
interface DeliverableTurn<Batch> {
  deliver(sink: { write(batch: Batch): Promise<void> | undefined }): Promise<void>
  readonly signal: AbortSignal
  readonly isComplete: boolean
  markUndelivered(): Promise<void>
}

const KEEP_ALIVE_MS = 15_000

/** The delivery of one response: as a stream, or complete. */
export class ResponseDelivery {
  /**
   * Aborts when the agent disconnects, or if an event cannot be converted to the dialect; the turn is cancelled then.
   */
  readonly gone: AbortController
  readonly #dialect: AgentDialect
  readonly #request: FastifyRequest
  readonly #reply: FastifyReply
  readonly #options: DeliveryOptions

  constructor(dialect: AgentDialect, request: FastifyRequest, reply: FastifyReply, options: DeliveryOptions) {
    this.gone = createDisconnectController(reply)
    this.#dialect = dialect
    this.#request = request
    this.#reply = reply
    this.#options = options
  }

  /**
   * Streams a response. The status line is sent with the first event or keep-alive. An earlier failure is thrown and
   * becomes an HTTP error; a later one becomes an event of the stream.
   */
  async stream<Batch>(turn: DeliverableTurn<Batch>, writer: StreamWriter<Batch>): Promise<FastifyReply> {
    const dialect = this.#dialect
    const reply = this.#reply
    let sse: SseReply | undefined
    const silence = setInterval(() => {
      if (reply.raw.destroyed) return
      sse ??= new SseReply(reply, dialect.streamType)
      sse.keepAlive(() => dialect.keepAlive())
    }, this.#options.keepAliveMs ?? KEEP_ALIVE_MS)
    const write = (batch: Batch) => {
      sse ??= new SseReply(reply, dialect.streamType)
      if (turn.isComplete) this.#watchDelivery(turn)
      const text = this.#convert(batch, writer)
      if (text !== '') silence.refresh()
      return sse.send(text, turn.signal)
    }
    try {
      await turn.deliver({ write })
    } catch (thrown) {
      const error = toProxyError(thrown)
      if (!sse) throw error
      void sse.send(dialect.formatStreamError(withStatus(error)), turn.signal)
      logFailure(this.#options.logger, this.#request, error)
    } finally {
      clearInterval(silence)
    }
    sse?.end()
    return reply
  }

  /**
   * Sends a response when it is complete. Gateways and tunnels close a connection that is silent for a minute or two,
   * so spaces can be sent meanwhile (`answerKeepAliveMs`): they keep the connection open, and clients ignore them
   * before JSON. The first one commits the status 200.
   * @param toBody builds the body of the complete response
   * @returns the value for Fastify to send
   */
  async complete(turn: DeliverableTurn<unknown>, toBody: () => object): Promise<object> {
    const { answerKeepAliveMs, logger } = this.#options
    const reply = this.#reply
    const { raw } = reply
    const heart = answerKeepAliveMs === undefined ? undefined : startHeartbeat(reply, answerKeepAliveMs)
    try {
      await turn.deliver({ write: () => undefined })
      this.#watchDelivery(turn)
      const body = toBody()
      if (!heart?.hasBegun) return body
      raw.end(JSON.stringify(body))
    } catch (thrown) {
      if (!heart?.hasBegun) throw thrown
      const error = toProxyError(thrown)
      logFailure(logger, this.#request, error)
      if (isRetryable(error)) raw.destroy()
      else raw.end(JSON.stringify(this.#dialect.buildErrorBody(error)))
    } finally {
      heart?.stop()
    }
    return reply
  }

  /** Marks the turn as undelivered if the connection closes before the committed response has been sent. */
  #watchDelivery(turn: { markUndelivered(): Promise<void> }): void {
    const { raw } = this.#reply
    runOnClose(raw, () => {
      if (!raw.writableFinished) void turn.markUndelivered()
    })
  }

  /**
   * Converts events to text. If the dialect cannot represent an event, the turn is cancelled with this error instead of
   * `agent_gone`, because the agent has not disconnected.
   */
  #convert<Batch>(batch: Batch, writer: StreamWriter<Batch>): string {
    try {
      return writer.write(batch)
    } catch (thrown) {
      this.gone.abort(toProxyError(thrown))
      throw thrown
    }
  }
}

/**
 * Returns an error from 500 on with its status in the message. A stream that has begun has no status line, and some
 * agents (pi) decide by this text whether to retry.
 */
function withStatus(error: ProxyError): ProxyError {
  const { code, status, message } = error
  if (status < 500) return error
  return new ProxyError(code, `${status} ${STATUS_CODES[status] ?? 'Server Error'}: ${message}`, { status })
}

/**
 * Returns whether SDKs retry an error of this status. After the status 200 the connection is closed for such an error,
 * because SDKs also retry a broken connection, but not an error in the body of a 200.
 */
function isRetryable(error: ProxyError): boolean {
  const isTransient =
    error.status >= 500 || error.status === 408 || error.status === 409 || error.status === 429
  return isTransient && buildErrorHeaders(error)['x-should-retry'] !== 'false'
}

/** Sends a space at each interval, the first one with the status line. */
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
