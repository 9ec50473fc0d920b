import { createHash } from 'node:crypto'
import { type IdGenerator, RandomIdGenerator } from '@opentelemetry/sdk-trace-base'

const TRACE_ID_BYTES = 16

/**
 * Returns the trace id of a session. Requests that send no trace context share it, on every node and after a restart.
 */
export function getTraceId(sessionId: string): string {
  return createHash('sha256').update(sessionId).digest().subarray(0, TRACE_ID_BYTES).toString('hex')
}

/**
 * Puts the next root span into its session's trace. Only the generator can set the id of a span; a remote parent that
 * does not exist would be displayed as a missing span.
 */
export class SessionIds implements IdGenerator {
  readonly #random = new RandomIdGenerator()
  #sessionId: string | undefined

  /** @param make synchronously starts a root span */
  runInTrace<T>(sessionId: string, make: () => T): T {
    this.#sessionId = sessionId
    try {
      return make()
    } finally {
      this.#sessionId = undefined
    }
  }

  generateTraceId(): string {
    return this.#sessionId === undefined ? this.#random.generateTraceId() : getTraceId(this.#sessionId)
  }

  generateSpanId(): string {
    return this.#random.generateSpanId()
  }
}
