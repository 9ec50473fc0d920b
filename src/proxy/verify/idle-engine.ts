import type { EngineEntry } from '../engines/dispatch/engine-pool.ts'
import type { BackendStatus } from '../engines/port/backend.ts'
import type { TurnRecord } from '../store/port/turn-store.ts'
import type { DriftEngine } from './drift-meter.ts'

/**
 * Finds an idle engine: preferably the one that sampled the turn, and one that has the turn's weights if there is such
 * an engine, because engines update at different times and turns of other weights are not compared.
 * @returns `busy` if requests are queued or all engines are serving
 */
export function findIdle(
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
