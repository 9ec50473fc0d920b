/** Rewards of turns, which trainers know by index or by id. */
import { ProxyError } from '../../../base/errors.ts'
import type { Reward, SessionRecord, TurnReader } from '../../store/port/turn-store.ts'

/** As JSON writes whole numbers. */
const INDEX = /^(?:0|[1-9]\d{0,8})$/

/** @returns the reward with its turns by index @throws ProxyError `turn_not_found`, `invalid_request` */
export async function rewardByIndex(
  store: Pick<TurnReader, 'getTurn'>,
  { sessionId, nextIndex }: SessionRecord,
  { turns = {}, ...reward }: Reward,
): Promise<Reward> {
  const placed: Record<string, number> = {}
  for (const [name, value] of Object.entries(turns)) {
    const index = INDEX.test(name) ? Number(name) : (await store.getTurn(sessionId, name))?.index
    if (index === undefined || index >= nextIndex) {
      throw new ProxyError('turn_not_found', `The session has no turn '${name}'`, { param: 'turns' })
    }
    if (Object.hasOwn(placed, index)) {
      const message = `'turns' has turn ${index} twice: by its index and by its id`
      throw new ProxyError('invalid_request', message, { param: 'turns' })
    }
    placed[index] = value
  }
  return { ...reward, turns: placed }
}
