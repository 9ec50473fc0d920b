import type { ServerResponse } from 'node:http'
import { getHeapStatistics } from 'node:v8'
import type { FastifyRequest } from 'fastify'
import { ProxyError } from '../../../base/errors.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** What is counted for its body; 0: nothing yet. */
    heldBytes: number
  }
}

/** Of the budget, the part that the calls of one agent's key may take. */
const SHARE_OF_ONE_AGENT = 0.25

/** Half of what the heap may grow to. */
export function defaultWaitingBytes(): number {
  return Math.floor(getHeapStatistics().heap_size_limit / 2)
}

/**
 * Bounds the memory of bodies whose calls wait or run: a body stays until its call has been answered. Over the budget a
 * call is turned away when its body has come, and its SDK tries it again.
 */
export class WaitingBodies {
  readonly #totalBytes: number
  #held = 0
  /** By session. */
  readonly #heldBy = new Map<string, number>()

  /** @param totalBytes of all bodies together, by what they take in memory */
  constructor(totalBytes: number) {
    this.#totalBytes = totalBytes
  }

  /**
   * Counts what the body of a call takes, until its response is out. It is more, once it has been read.
   * @throws ProxyError `too_many_calls`, `queue_full`; what was counted before still is
   */
  take(request: FastifyRequest, response: ServerResponse, bytes: number): void {
    // Who has gone already will not say so again.
    if (bytes === 0 || response.destroyed) return
    const { caller, heldBytes: own } = request
    const agent = caller.is === 'agent' ? caller.sessionId : undefined
    const others = this.#held - own
    const othersOfAgent = agent === undefined ? 0 : (this.#heldBy.get(agent) ?? 0) - own
    if (othersOfAgent > 0 && othersOfAgent + bytes > this.#totalBytes * SHARE_OF_ONE_AGENT)
      throw ofThisAgent()
    if (others > 0 && others + bytes > this.#totalBytes) throw ofAll()
    this.#add(agent, bytes - own)
    request.heldBytes = bytes
    if (own === 0) response.once('close', () => this.#add(agent, -request.heldBytes))
  }

  #add(agent: string | undefined, bytes: number): void {
    this.#held += bytes
    if (agent === undefined) return
    const held = (this.#heldBy.get(agent) ?? 0) + bytes
    if (held === 0) this.#heldBy.delete(agent)
    else this.#heldBy.set(agent, held)
  }
}

function ofThisAgent(): ProxyError {
  const message = 'The calls of this agent that are under way hold too much memory; try again later'
  return new ProxyError('too_many_calls', message, { retryAfterS: 1 })
}

function ofAll(): ProxyError {
  const message = 'The calls that are under way hold too much memory; try again later'
  return new ProxyError('queue_full', message, { retryAfterS: 1 })
}
