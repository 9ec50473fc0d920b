import type { FastifyReply } from 'fastify'
import { hijack } from './hijack.ts'
import { runOnClose } from './on-close.ts'

export const NDJSON = 'application/x-ndjson'

/** The number of unread bytes above which a client is disconnected. */
const MAX_UNREAD_BYTES = 1024 * 1024

/** A response of JSON lines, each written immediately. A client that does not read them is disconnected. */
export class NdjsonReply {
  readonly #reply: FastifyReply

  /** Takes the reply over from Fastify and sends its headers. */
  constructor(reply: FastifyReply) {
    this.#reply = reply
    hijack(reply, { contentType: NDJSON, cacheControl: 'no-store' })
    // The response to HEAD is complete for the client, which may send its next request over the connection.
    if (reply.request.method === 'HEAD') reply.raw.end()
  }

  /** Sends an event with the current time in `at`, in seconds since the epoch. */
  send(event: object): void {
    this.sendLine(JSON.stringify({ ...event, at: Date.now() / 1000 }))
  }

  /** Sends one line. @param line JSON text without a line break */
  sendLine(line: string): void {
    const { raw } = this.#reply
    if (raw.destroyed || raw.writableEnded) return
    raw.write(`${line}\n`)
    if (raw.writableLength > MAX_UNREAD_BYTES) raw.destroy()
  }

  end(): void {
    this.#reply.raw.end()
  }

  /** Runs `task` at an interval until the response is closed. */
  runEvery(ms: number, task: () => void): void {
    const timer = setInterval(task, ms)
    this.runWhenClosed(() => clearInterval(timer))
  }

  /** Runs `stop` when the response is closed, usually by the client. */
  runWhenClosed(stop: () => void): void {
    runOnClose(this.#reply.raw, stop)
  }
}
