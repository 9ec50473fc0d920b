import { createHash } from 'node:crypto'
import { type IdGenerator, RandomIdGenerator } from '@opentelemetry/sdk-trace-base'

const TRACE_ID_BYTES = 16

/** Calls of one session that bring no trace of their own belong to one trace, on any node and after a restart. */
export function getTraceId(sessionId: string): string {
  return createHash('sha256').update(sessionId).digest().subarray(0, TRACE_ID_BYTES).toString('hex')
}

/**
 * Makes the next root span one of a session's trace. An id can be given to a span in no other way than by the
 * generator, and a remote parent that nobody ever sent would show as a lost span.
 */
export class SessionIds implements IdGenerator {
  readonly #random = new RandomIdGenerator()
  #sessionId: string | undefined

  /** @param make starts a root span, at once */
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
