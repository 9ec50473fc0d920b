import { ProxyError } from '../../../../base/errors.ts'
import type { SessionRecord, TurnReader } from '../../../store/port/turn-store.ts'

/** @throws ProxyError `session_not_found` */
export async function foundSession(reader: TurnReader, sessionId: string): Promise<SessionRecord> {
  const session = await reader.getSession(sessionId)
  if (session === undefined) throw new ProxyError('session_not_found', 'Session not found')
  return session
}
