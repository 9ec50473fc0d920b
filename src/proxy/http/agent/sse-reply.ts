import { Socket } from 'node:net'
import type { FastifyReply } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { hijack } from '../transport/hijack.ts'

/** The time after which an agent that does not read its response is disconnected, because it occupies an engine. */
const STALL_MS = 120_000

const EVENTS = 'text/event-stream; charset=utf-8'

/**
 * A reply of server-sent events with back-pressure. Each text is framed here as one chunk (RFC 9112, section 7.1) and
 * written to the socket in one write: Node's response would make four writes, in twice the CPU time.
 */
export class SseReply {
  readonly #reply: FastifyReply
  readonly #stallMs: number
  /** The socket for chunks that are framed here; undefined: Node's response writes the body. */
  readonly #socket: Socket | undefined

  /**
   * Takes the reply over from Fastify and sends its headers.
   * @param contentType content type of the stream
   * @param stallMs time after which an agent that reads nothing is disconnected
   */
  constructor(reply: FastifyReply, contentType = EVENTS, stallMs = STALL_MS) {
    this.#reply = reply
    this.#stallMs = stallMs
    hijack(reply, { contentType })
    // A pipelined response has no socket yet and buffers its writes; a response to HTTP/1.0 is not chunked.
    const { chunkedEncoding, socket } = reply.raw
    this.#socket = chunkedEncoding && socket instanceof Socket ? socket : undefined
  }

  /**
   * Writes a text. On a closed socket it does nothing, because the request is aborted elsewhere. A socket whose buffer
   * stays full for too long is closed with a ProxyError `agent_too_slow`.
   * @param cancelled ends the wait when the request has been cancelled
   * @returns undefined, or a promise that resolves when the socket accepts more
   */
  send(text: string, cancelled?: AbortSignal): Promise<void> | undefined {
    const { raw } = this.#reply
    const isAccepted = text === '' || raw.destroyed || this.#write(text) || cancelled?.aborted
    return isAccepted ? undefined : this.#waitForDrain(cancelled)
  }

  async #waitForDrain(cancelled: AbortSignal | undefined): Promise<void> {
    const { raw } = this.#reply
    const writable = this.#socket ?? raw
    const { promise: woken, resolve } = Promise.withResolvers<void>()
    const wake = () => resolve()
    const stopWatching = this.#closeWhenStalled()
    writable.once('drain', wake)
    raw.once('close', wake)
    cancelled?.addEventListener('abort', wake, { once: true })
    await woken
    stopWatching()
    writable.off('drain', wake)
    raw.off('close', wake)
    cancelled?.removeEventListener('abort', wake)
  }

  /** Writes a keep-alive, unless the socket's buffer is full. @param makeText called only if it is written */
  keepAlive(makeText: () => string): void {
    const { raw } = this.#reply
    if (!raw.destroyed && !(this.#socket ?? raw).writableNeedDrain) this.#write(makeText())
  }

  end(): void {
    const { raw } = this.#reply
    raw.end()
    if (raw.destroyed) return
    raw.once('close', this.#closeWhenStalled())
  }

  /** Writes a text. @returns false if the buffer of the socket is full */
  #write(text: string): boolean {
    if (this.#socket === undefined) return this.#reply.raw.write(text)
    return this.#socket.write(`${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`)
  }

  #closeWhenStalled(): () => void {
    const { raw } = this.#reply
    const stalled = setTimeout(() => raw.destroy(createTooSlowError(this.#stallMs)), this.#stallMs)
    return () => clearTimeout(stalled)
  }
}

function createTooSlowError(stallMs: number): ProxyError {
  return new ProxyError('agent_too_slow', `The agent read nothing of its response in ${stallMs / 1000} s`)
}
