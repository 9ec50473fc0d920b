import type { EngineEntry } from '../engines/dispatch/engine-pool.ts'
import type { BackendStatus } from '../engines/port/backend.ts'
import type { TurnRecord } from '../store/port/turn-store.ts'
import type { DriftEngine } from './drift-meter.ts'

/**
 * Selects an idle engine for scoring a turn. Only engines with the turn's weights are considered if there are any,
 * because engines update at different times and turns of other weights are not compared. The engine that sampled the
 * turn is preferred.
 * @returns `busy` if requests are queued or no considered engine is idle; undefined if no healthy engine can score
 */
export function selectIdleEngine(
  engines: readonly EngineEntry[],
  { queued, members }: BackendStatus,
  turn: Pick<TurnRecord, 'engine' | 'weightVersionEnd'>,
): DriftEngine | 'busy' | undefined {
  const able = engines.filter(({ client, watch }) => client.score && watch.healthy && !watch.unavailable)
  const sameWeights = able.filter(({ watch }) => watch.weightVersion === (turn.weightVersionEnd ?? undefined))
  const candidates = sameWeights.length > 0 ? sameWeights : able
  if (candidates.length === 0) return undefined
  const serving = new Set(members.flatMap(({ name, inFlight }) => (inFlight > 0 ? [name] : [])))
  const idle = queued > 0 ? [] : candidates.filter(({ client }) => !serving.has(client.name))
  const engine = idle.find(({ client }) => client.name === turn.engine) ?? idle[0]
  if (engine === undefined) return 'busy'
  const { models, weightVersion } = engine.watch
  return { client: engine.client, health: { models, weightVersion } }
}
