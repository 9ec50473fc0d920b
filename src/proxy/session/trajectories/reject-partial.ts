/** Detects that a session was removed or reset while its turns were read, so that readers receive all turns or none. */
import { ProxyError } from '../../../base/errors.ts'
import type { SessionRecord, TurnReader } from '../../store/port/turn-store.ts'

/**
 * Reads a session again after its turns or their details were read: a reader of turns ends early, and finds no details,
 * if the session is removed or reset meanwhile.
 * @param before the session, read before its turns
 * @throws ProxyError `session_not_found` for a session that was removed or reset since then
 */
export async function rejectPartial(
  reader: Pick<TurnReader, 'getSession'>,
  before: SessionRecord,
): Promise<void> {
  const after = await reader.getSession(before.sessionId)
  if (after === undefined || !isSameSession(before, after))
    throw new ProxyError('session_not_found', 'The session was removed or reset while it was read')
}

/** Returns whether the session still has the turns that it had; its turns and their tokens are only added. */
function isSameSession(before: SessionRecord, after: SessionRecord): boolean {
  return (
    after.createdAtMs === before.createdAtMs &&
    after.turnCount >= before.turnCount &&
    after.nextIndex >= before.nextIndex &&
    after.sampledTokens >= before.sampledTokens &&
    (before.endedAtMs === null || after.endedAtMs === before.endedAtMs)
  )
}
