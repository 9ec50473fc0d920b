import { Socket } from 'node:net'
import type { FastifyReply } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'
import { hijack } from '../transport/hijack.ts'

/** An agent that leaves its answer unread for this long holds an engine or a worker for nothing. */
const STALL_MS = 120_000

const EVENTS = 'text/event-stream; charset=utf-8'

/**
 * A reply of server-sent events with the agent's back-pressure. Each text is one chunk of the body (RFC 9112, 7.1), framed
 * here and written to the socket in one piece: Node's response would write four pieces, at twice the CPU time.
 */
export class SseReply {
  readonly #reply: FastifyReply
  readonly #stallMs: number
  /** Takes framed chunks; undefined: the response writes the body itself, unframed for HTTP/1.0. */
  readonly #socket: Socket | undefined

  /** Takes the reply over from Fastify and writes its head. @param contentType of the stream @param stallMs how long the agent may read nothing */
  constructor(reply: FastifyReply, contentType = EVENTS, stallMs = STALL_MS) {
    this.#reply = reply
    this.#stallMs = stallMs
    hijack(reply, { contentType })
    // A response behind another one of its connection has no socket yet, and keeps what is written.
    const { chunkedEncoding, socket } = reply.raw
    this.#socket = chunkedEncoding && socket instanceof Socket ? socket : undefined
  }

  /**
   * Resolves when the socket takes more. A socket that has closed takes everything: its call is aborted elsewhere. One
   * that takes nothing for too long is closed with ProxyError `agent_too_slow` as its error.
   * @param cancelled ends the wait: nobody waits for an agent whose call is over
   */
  async send(text: string, cancelled?: AbortSignal): Promise<void> {
    const { raw } = this.#reply
    if (text === '' || raw.destroyed || this.#write(text) || cancelled?.aborted) return
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

  /** Writes a sign of life, unless the socket is full: then there is enough to read. @param makeText is called only then */
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

  /** @returns whether the socket takes more */
  #write(text: string): boolean {
    if (this.#socket === undefined) return this.#reply.raw.write(text)
    return this.#socket.write(`${Buffer.byteLength(text).toString(16)}\r\n${text}\r\n`)
  }

  #closeWhenStalled(): () => void {
    const { raw } = this.#reply
    const stalled = setTimeout(() => raw.destroy(tooSlow(this.#stallMs)), this.#stallMs)
    return () => clearTimeout(stalled)
  }
}

function tooSlow(stallMs: number): ProxyError {
  return new ProxyError('agent_too_slow', `The agent read nothing of its answer in ${stallMs / 1000} s`)
}
