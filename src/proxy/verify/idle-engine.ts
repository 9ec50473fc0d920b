import type { LocalBackend } from '../engines/dispatch/local-backend.ts'
import type { DriftEngine } from './drift-meter.ts'

/** The engine of this name if there is one, else any that can say. @returns `busy` while calls wait, or it is full */
export function idleEngine(
  backend: Pick<LocalBackend, 'engines' | 'status'>,
  name: string | null,
): DriftEngine | 'busy' | undefined {
  const able = backend.engines
    .all()
    .filter(({ client, watch }) => client.score && watch.healthy && !watch.unavailable)
  const engine = able.find(({ client }) => client.name === name) ?? able[0]
  if (engine === undefined) return undefined
  const { queued, members } = backend.status()
  const member = members.find((each) => each.name === engine.client.name)
  if (queued > 0 || (member && member.inFlight >= member.capacity)) return 'busy'
  const { models, weightVersion } = engine.watch
  return { client: engine.client, health: { models, ...(weightVersion !== undefined && { weightVersion }) } }
}
