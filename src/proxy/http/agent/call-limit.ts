import type { ServerResponse } from 'node:http'
import type { FastifyRequest, onRequestHookHandler } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'

/**
 * Bounds the calls that the holder of an agent's key has under way, so that one agent cannot fill the queue, or the memory, for all.
 * Refused before the body is read; admins, and proxies without keys, have no such limit.
 */
export class CallLimit {
  readonly #limit: number
  /** By session. */
  readonly #running = new Map<string, number>()

  constructor(limit: number) {
    this.#limit = limit
  }

  readonly hook: onRequestHookHandler = (request, { raw }, done) => {
    try {
      this.takeMore(request, raw, 1)
      done()
    } catch (error) {
      done(error as ProxyError)
    }
  }

  /**
   * Counts more calls, until the response is out: each answer of one that asks for several.
   * @throws ProxyError `too_many_calls`; none of them is counted then
   */
  takeMore({ caller }: FastifyRequest, response: ServerResponse, count: number): void {
    if (caller.is !== 'agent' || count === 0 || response.closed) return
    const { sessionId } = caller
    const running = (this.#running.get(sessionId) ?? 0) + count
    if (running > this.#limit) throw tooMany(this.#limit)
    this.#running.set(sessionId, running)
    response.once('close', () => {
      const left = this.#running.get(sessionId)! - count
      if (left === 0) this.#running.delete(sessionId)
      else this.#running.set(sessionId, left)
    })
  }
}

function tooMany(limit: number): ProxyError {
  const message = `This agent may have ${limit} calls under way, and has too many; try again later`
  return new ProxyError('too_many_calls', message, { retryAfterS: 1 })
}
