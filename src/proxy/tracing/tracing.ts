import type { RequestTracer } from '../../protocol/canonical/spans.ts'
import type { TurnStore } from '../store/port/turn-store.ts'

/** Where spans go, and how much is in them. */
export interface TracingTarget {
  readonly endpoint: string
  /** How many characters of what was said spans have at most; undefined: they have nothing of it. */
  readonly contentChars: number | undefined
}

/** Writes spans of calls and exports them. */
export interface Tracing extends RequestTracer {
  /** @returns the store to be used in place of `store`: what a turn came to, and its commit, is told there */
  watchStore(store: TurnStore): TurnStore
  /** Exports what is left, within some seconds; never throws. */
  close(): Promise<void>
}
