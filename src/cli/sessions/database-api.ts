import { ProxyError } from '../../base/errors.ts'
import { metadataFilter } from '../../proxy/http/trainer/sessions/metadata-filter.ts'
import { sessionToWire, sessionWithTurns } from '../../proxy/http/trainer/sessions/serialise.ts'
import { queryTrajectories } from '../../proxy/http/trainer/sessions/trajectory-query.ts'
import { idPrefixOfRun } from '../../proxy/session/state/session-id.ts'
import type { SessionRecord, TurnReader } from '../../proxy/store/port/turn-store.ts'
import { openRecord } from '../open-record.ts'
import type { SessionsApi } from './api.ts'

/**
 * The sessions API over a database, which a proxy may be writing to meanwhile.
 * @throws ProxyError `start_failed`
 */
export async function databaseApi(path: string): Promise<SessionsApi> {
  const reader = await openRecord(path)
  return {
    list: async ({ status, run, sort, since, metadata = {}, limit, cursor }) => {
      const named = Object.entries(metadata).map(([name, value]) => [`metadata.${name}`, value])
      const query = {
        limit,
        metadata: metadataFilter(Object.fromEntries(named)),
        ...(status !== undefined && { status }),
        ...(run !== undefined && { idPrefix: idPrefixOfRun(run) }),
        ...(sort !== undefined && { sort }),
        ...(since !== undefined && { sinceMs: since * 1_000 }),
        ...(cursor !== undefined && { cursor }),
      }
      const { sessions, nextCursor } = await reader.listSessions(query)
      return { sessions: sessions.map(sessionToWire), next_cursor: nextCursor ?? null }
    },
    withTurns: async (sessionId) => {
      const session = await findSession(reader, sessionId)
      return parsePieces(sessionWithTurns(session, reader.readTurns(sessionId), 'all'))
    },
    withTrajectories: async (sessionId, query) => {
      const session = await findSession(reader, sessionId)
      return parsePieces(
        await queryTrajectories(reader, session, {
          per_turn: false,
          images: false,
          ...query,
        }),
      )
    },
    close: () => reader.close(),
  }
}

async function findSession(reader: TurnReader, sessionId: string): Promise<SessionRecord> {
  const session = await reader.getSession(sessionId)
  if (session === undefined) throw new ProxyError('session_not_found', `Session ${sessionId} not found`)
  return session
}

/** Our own serialiser wrote it: the type is what its schema says. */
async function parsePieces<T>(pieces: AsyncIterable<string>): Promise<T> {
  let text = ''
  for await (const piece of pieces) text += piece
  return JSON.parse(text) as T
}
