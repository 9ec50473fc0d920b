import type { LocalBackend } from '../engines/dispatch/local-backend.ts'
import type { TurnRecord } from '../store/port/turn-store.ts'
import type { DriftEngine } from './drift-meter.ts'

/**
 * The engine that sampled the turn, or else any that can say; of these one that has the turn's weights, if there is one:
 * weights go from engine to engine, and a turn of others is not compared.
 * @returns `busy` while calls wait, or it is full
 */
export function idleEngine(
  backend: Pick<LocalBackend, 'engines' | 'status'>,
  turn: Pick<TurnRecord, 'engine' | 'weightVersionEnd'>,
): DriftEngine | 'busy' | undefined {
  const able = backend.engines
    .all()
    .filter(({ client, watch }) => client.score && watch.healthy && !watch.unavailable)
  const sameWeights = able.filter(({ watch }) => watch.weightVersion === (turn.weightVersionEnd ?? undefined))
  const asked = sameWeights.length > 0 ? sameWeights : able
  const engine = asked.find(({ client }) => client.name === turn.engine) ?? asked[0]
  if (engine === undefined) return undefined
  const { queued, members } = backend.status()
  const member = members.find((each) => each.name === engine.client.name)
  if (queued > 0 || (member && member.inFlight >= member.capacity)) return 'busy'
  const { models, weightVersion } = engine.watch
  return { client: engine.client, health: { models, ...(weightVersion !== undefined && { weightVersion }) } }
}
