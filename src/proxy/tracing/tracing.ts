import type { RequestTracer } from '../../protocol/canonical/spans.ts'
import type { TurnStore } from '../store/port/turn-store.ts'

/** The destination of spans, and the limit on their text. */
export interface TracingTarget {
  readonly endpoint: string
  /** The maximum length of prompt or completion text on a span, in characters; undefined: spans contain no text. */
  readonly contentChars: number | undefined
}

/** A tracer that exports the spans of requests. */
export interface Tracing extends RequestTracer {
  /** Wraps a store to observe how turns end and are committed. @returns the store to use in place of `store` */
  watchStore(store: TurnStore): TurnStore
  /** Exports the remaining spans within some seconds; never throws. */
  close(): Promise<void>
}
