import type { RequestTracer } from '../../protocol/canonical/spans.ts'
import type { TurnStore } from '../store/port/turn-store.ts'

/** The destination of spans, and the limit of their text. */
export interface TracingTarget {
  readonly endpoint: string
  /** Longest prompt or completion text of a span, in characters; undefined: spans contain neither. */
  readonly contentChars: number | undefined
}

/** Writes and exports spans of requests. */
export interface Tracing extends RequestTracer {
  /** @returns the store to use in place of `store`; tracing reads the outcome and the commit of turns there */
  watchStore(store: TurnStore): TurnStore
  /** Exports the remaining spans within some seconds; never throws. */
  close(): Promise<void>
}
