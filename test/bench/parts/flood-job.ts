/** The job of a flood and its result. Both are sent between processes. */

/**
 * `silence`: connections that send nothing. `headers`: endless headers. `hellos`: worker sockets with a bad hello, or
 * without a key. `bodies`: endless bodies.
 */
export const FLOOD_KINDS = ['silence', 'headers', 'hellos', 'bodies'] as const
export type FloodKind = (typeof FLOOD_KINDS)[number]

export interface FloodJob {
  kind: FloodKind
  /** The URL of the proxy. */
  url: string
  /** The number of open connections. */
  connections: number
  /** The maximum rate of new connections. */
  perSecond: number
  durationMs: number
}

export interface FloodResult {
  opened: number
  closedByProxy: number
  mostOpen: number
}
