import type { FastifyReply } from 'fastify'
import { hijack } from './hijack.ts'
import { runOnClose } from './on-close.ts'

export const NDJSON = 'application/x-ndjson'

/** The unread bytes of a client after which it is disconnected. */
const MAX_UNREAD_BYTES = 1024 * 1024

/** A response of lines, each written at once; a client that leaves too much of it unread is disconnected. */
export class NdjsonReply {
  readonly #reply: FastifyReply

  /** Takes the reply over from Fastify and writes its head. */
  constructor(reply: FastifyReply) {
    this.#reply = reply
    hijack(reply, { contentType: NDJSON, cacheControl: 'no-store' })
    // The client takes the head for the whole response, and sends its next request over the connection.
    if (reply.request.method === 'HEAD') reply.raw.end()
  }

  /** Sends an event, with the time. */
  send(event: object): void {
    this.sendLine(JSON.stringify({ ...event, at: Date.now() / 1000 }))
  }

  /** Sends JSON without a line break. */
  sendLine(line: string): void {
    const { raw } = this.#reply
    if (raw.destroyed || raw.writableEnded) return
    raw.write(`${line}\n`)
    if (raw.writableLength > MAX_UNREAD_BYTES) raw.destroy()
  }

  end(): void {
    this.#reply.raw.end()
  }

  /** Runs `look` repeatedly until the client has left. */
  runEvery(ms: number, look: () => void): void {
    const timer = setInterval(look, ms)
    this.runWhenLeft(() => clearInterval(timer))
  }

  /** Runs `stop` when the client has left. */
  runWhenLeft(stop: () => void): void {
    runOnClose(this.#reply.raw, stop)
  }
}
