/** A session's calls as a trainer of rLLM's kind reads them: turn by turn, and put together by itself. */
import { NO_ENGINE } from '../../../protocol/canonical/events.ts'
import type { TurnRecord, TurnStore } from '../../store/port/turn-store.ts'
import { type Lineage, Lineages } from './lineages.ts'

export interface TraceQuery {
  /** Only calls that ended then or later; milliseconds since the epoch. */
  sinceMs?: number
  /** Only the first n. */
  limit?: number
}

/** An answered call, and which one it goes on from. */
export interface LinkedTurn {
  readonly turn: TurnRecord
  readonly lineage: Lineage
}

/**
 * The answered calls of a session in call order, each with the call that it goes on from. Without those that never
 * reached the agent, because its client tried the call again: whoever trains on each trace would train on them.
 */
export async function* tracesOf(
  store: Pick<TurnStore, 'readTurns' | 'readSteps'>,
  sessionId: string,
  { sinceMs = 0, limit = Number.POSITIVE_INFINITY }: TraceQuery,
): AsyncGenerator<LinkedTurn> {
  // Read twice, because only a later turn says which earlier one was tried again.
  const lineages = new Lineages()
  for await (const turn of store.readSteps(sessionId)) lineages.add(turn)
  const superseded = lineages.superseded()
  let given = 0
  for await (const turn of store.readTurns(sessionId)) {
    if (given >= limit) return
    if (!isTrace(turn) || superseded.has(turn.turnId) || (turn.endedAtMs ?? 0) < sinceMs) continue
    yield { turn, lineage: lineages.of(turn.turnId) }
    given += 1
  }
}

/** The end that an agent gets at a limit of its session is no answer of a model. */
export function isTrace({
  status,
  engine,
  finishReason,
}: Pick<TurnRecord, 'status' | 'engine' | 'finishReason'>): boolean {
  return status === 'completed' && !(engine === NO_ENGINE && finishReason === 'stop')
}

/** Names its session, so that a turn is found by its trace alone. */
export function traceIdOf({ sessionId, turnId }: Pick<TurnRecord, 'sessionId' | 'turnId'>): string {
  return `${sessionId}:${turnId}`
}

/** A turn's id has no colon, whatever its session's has. */
export function parseTraceId(traceId: string): { sessionId: string; turnId: string } {
  const colon = traceId.lastIndexOf(':')
  return { sessionId: traceId.slice(0, Math.max(colon, 0)), turnId: traceId.slice(colon + 1) }
}
