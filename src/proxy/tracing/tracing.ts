import type { CallTracer } from '../../protocol/canonical/spans.ts'
import type { TurnStore } from '../store/port/turn-store.ts'

/** Writes spans of calls and exports them. */
export interface Tracing extends CallTracer {
  /** @returns the store to be used in place of `store`: what a turn came to, and its commit, is told there */
  watchStore(store: TurnStore): TurnStore
  /** Exports what is left, within some seconds; never throws. */
  close(): Promise<void>
}
