/** Converts values for turns that trainers and people name by index or by id. */
import { ProxyError } from '../../../base/errors.ts'
import type { SessionRecord, TurnReader } from '../../store/port/turn-store.ts'

/** Matches an index: an integer without leading zeros, as in JSON. */
const INDEX = /^(?:0|[1-9]\d{0,8})$/

/**
 * Returns `values` with the keys of `turns` converted to indices.
 * @throws ProxyError `session_not_found`, `turn_not_found`, `invalid_request`
 */
export async function withTurnsByIndex<Given extends { turns?: Record<string, unknown> }>(
  store: Pick<TurnReader, 'getTurn' | 'readOutlines'>,
  session: () => Promise<SessionRecord>,
  values: Given,
): Promise<Given> {
  if (values.turns === undefined) return values
  const { sessionId, nextIndex } = await session()
  const ids = Object.keys(values.turns).filter((name) => !INDEX.test(name))
  const indices = await findIndices(store, sessionId, ids)
  const byIndex: Record<string, unknown> = {}
  for (const [name, value] of Object.entries(values.turns)) {
    const index = INDEX.test(name) ? Number(name) : indices.get(name)
    if (index === undefined || index >= nextIndex) {
      throw new ProxyError('turn_not_found', `The session has no turn '${name}'`, { param: 'turns' })
    }
    if (Object.hasOwn(byIndex, index)) {
      const message = `'turns' has turn ${index} twice: by its index and by its id`
      throw new ProxyError('invalid_request', message, { param: 'turns' })
    }
    byIndex[index] = value
  }
  return { ...values, turns: byIndex }
}

/**
 * Returns the indices of the turns by their ids; unknown ids are omitted. Several turns are found in one pass over the
 * session's outlines: a complete turn may have megabytes of token ids.
 */
async function findIndices(
  store: Pick<TurnReader, 'getTurn' | 'readOutlines'>,
  sessionId: string,
  ids: readonly string[],
): Promise<ReadonlyMap<string, number>> {
  const indices = new Map<string, number>()
  const missing = new Set(ids)
  const add = ({ turnId, index }: { turnId: string; index: number }) => {
    if (missing.delete(turnId)) indices.set(turnId, index)
  }
  if (ids.length === 1) {
    const turn = await store.getTurn(sessionId, ids[0]!)
    if (turn) add(turn)
  } else if (ids.length > 1) {
    for await (const outline of store.readOutlines(sessionId)) {
      add(outline)
      if (missing.size === 0) break
    }
  }
  return indices
}
