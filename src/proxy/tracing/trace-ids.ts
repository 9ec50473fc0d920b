import { createHash } from 'node:crypto'
import { type IdGenerator, RandomIdGenerator } from '@opentelemetry/sdk-trace-base'

const TRACE_ID_BYTES = 16

/**
 * Returns the trace id of a session, which all its requests without a trace context share. It is derived from the
 * session id, so that it is the same on every node and after a restart.
 */
export function getTraceId(sessionId: string): string {
  return createHash('sha256').update(sessionId).digest().subarray(0, TRACE_ID_BYTES).toString('hex')
}

/**
 * An id generator that gives root spans the trace id of their session. The generator is the only place where the SDK
 * lets a trace id be set without a parent; an invented remote parent would be displayed as a missing span.
 */
export class TraceIdGenerator implements IdGenerator {
  readonly #random = new RandomIdGenerator()
  #sessionId: string | undefined

  /** Runs `make`, whose root span receives the trace id of the session. @param make must be synchronous */
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
