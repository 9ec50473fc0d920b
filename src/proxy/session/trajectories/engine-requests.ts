/** Reads and shifts the recorded engine requests of turns that continued after their first one was cut. */
import type { EngineRequest } from '../../../protocol/schema/row.ts'

/** Returns the engine requests that a turn's annotations list; undefined: the turn had only one. */
export function readEngineRequests({
  annotations,
}: {
  annotations: string
}): readonly EngineRequest[] | undefined {
  // Few turns have this annotation, and parsing those of all turns would take longer than reading the turns.
  if (!annotations.includes('"engine_requests"')) return undefined
  return (JSON.parse(annotations) as { engine_requests?: readonly EngineRequest[] }).engine_requests
}

/**
 * Shifts the offsets of engine requests by `start` and limits them to `end`, for a completion that is truncated there.
 */
export function shiftEngineRequests(
  requests: readonly EngineRequest[],
  { start, end }: { start: number; end: number },
): EngineRequest[] {
  const place = (offset: number) => Math.min(start + offset, end)
  return requests.map((request) => ({ ...request, start: place(request.start), end: place(request.end) }))
}
