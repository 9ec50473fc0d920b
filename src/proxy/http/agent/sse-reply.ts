import { Socket } from 'node:net'
import type { FastifyReply } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { hijack } from '../transport/hijack.ts'

/** The time limit for an agent that does not read its response, and needlessly occupies an engine or a worker. */
const STALL_MS = 120_000

const EVENTS = 'text/event-stream; charset=utf-8'

/**
 * A reply of server-sent events with back-pressure from the agent. Each text is one chunk of the body (RFC 9112, 7.1),
 * framed here and written to the socket at once: Node's response would make four writes, at twice the CPU time.
 */
export class SseReply {
  readonly #reply: FastifyReply
  readonly #stallMs: number
  /** The socket for framed chunks; undefined: the response writes the body itself, unframed for HTTP/1.0. */
  readonly #socket: Socket | undefined

  /**
   * Takes the reply over from Fastify and writes its head.
   * @param contentType content type of the stream
   * @param stallMs time limit for an agent that reads nothing
   */
  constructor(reply: FastifyReply, contentType = EVENTS, stallMs = STALL_MS) {
    this.#reply = reply
    this.#stallMs = stallMs
    hijack(reply, { contentType })
    // A response that is queued after another one of its connection has no socket yet, and buffers its writes.
    const { chunkedEncoding, socket } = reply.raw
    this.#socket = chunkedEncoding && socket instanceof Socket ? socket : undefined
  }

  /**
   * Writes a text. A closed socket accepts everything, because its request is aborted elsewhere. A socket that accepts
   * nothing for too long is closed with the error ProxyError `agent_too_slow`.
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

  /** @returns whether the socket accepts more */
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
