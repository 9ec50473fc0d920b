/** The engine requests of turns that continued after their engine request was cut. */
import type { EngineRequest } from '../../../protocol/schema/row.ts'

/** Returns the engine requests that the annotations list; undefined: the turn had one. */
export function readEngineRequests({
  annotations,
}: {
  annotations: string
}): readonly EngineRequest[] | undefined {
  // Few turns have them, and parsing all annotations costs more than reading the turns.
  if (!annotations.includes('"engine_requests"')) return undefined
  return (JSON.parse(annotations) as { engine_requests?: readonly EngineRequest[] }).engine_requests
}

/** Shifts the offsets of engine requests by `start`, and limits them to `end`, which removes tokens at the end. */
export function shiftEngineRequests(
  requests: readonly EngineRequest[],
  { start, end }: { start: number; end: number },
): EngineRequest[] {
  const place = (offset: number) => Math.min(start + offset, end)
  return requests.map((request) => ({ ...request, start: place(request.start), end: place(request.end) }))
}
