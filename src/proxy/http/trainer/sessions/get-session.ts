import { ProxyError } from '../../../../base/errors.ts'
import type { SessionRecord, TurnReader } from '../../../store/port/turn-store.ts'

/** Returns a session. @throws ProxyError `session_not_found` */
export async function getSessionOrThrow(reader: TurnReader, sessionId: string): Promise<SessionRecord> {
  const session = await reader.getSession(sessionId)
  if (session !== undefined) return session
  throw new ProxyError('session_not_found', `Session not found${await findRouteHint(reader, sessionId)}`)
}

/** Returns a hint for a misspelled route: the router reads `/sessions/a/trajectorie` as the session `a/trajectorie`. */
async function findRouteHint(reader: TurnReader, sessionId: string): Promise<string> {
  const end = sessionId.lastIndexOf('/')
  const parent = end > 0 ? await reader.getSession(sessionId.slice(0, end)) : undefined
  return parent === undefined
    ? ''
    : `: '${sessionId}'. Session '${parent.sessionId}' exists, but has no route '${sessionId.slice(end + 1)}'`
}
