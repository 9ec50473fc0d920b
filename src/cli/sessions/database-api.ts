import { ProxyError } from '../../base/errors.ts'
import { exportSession } from '../../proxy/http/trainer/formats/export-session.ts'
import { hitsToWire } from '../../proxy/http/trainer/sessions/filter.ts'
import { parseMetadataFilter } from '../../proxy/http/trainer/sessions/metadata-filter.ts'
import { sessionToWire, writeSessionWithTurns } from '../../proxy/http/trainer/sessions/serialise.ts'
import { readTrajectories } from '../../proxy/http/trainer/sessions/trajectory-query.ts'
import { readTree } from '../../proxy/http/trainer/sessions/tree.ts'
import { getRunIdPrefix } from '../../proxy/session/state/session-id.ts'
import type { SessionRecord, TurnReader } from '../../proxy/store/port/turn-store.ts'
import { openDatabase } from '../open-database.ts'
import type { SessionsApi, TurnDisplayJson } from './api.ts'

/** Opens the sessions API over a database, to which a proxy may be writing. @throws ProxyError `start_failed` */
export async function openDatabaseApi(path: string): Promise<SessionsApi> {
  const reader = await openDatabase(path)
  return {
    list: async ({ status, run, sort, since, label, metadata = {}, limit, cursor }) => {
      const named = Object.entries(metadata).map(([name, value]) => [`metadata.${name}`, value])
      const query = {
        limit,
        metadata: parseMetadataFilter(Object.fromEntries(named)),
        status,
        idPrefix: run === undefined ? undefined : getRunIdPrefix(run),
        sort,
        sinceMs: since === undefined ? undefined : since * 1_000,
        label,
        cursor,
      }
      const { sessions, nextCursor } = await reader.listSessions(query)
      return { sessions: sessions.map(sessionToWire), next_cursor: nextCursor ?? null }
    },
    search: async ({ text: wanted, run, per_session: perSession, limit, cursor }) => {
      const within = run !== undefined && { idPrefix: getRunIdPrefix(run) }
      const page = { wanted, perSession, limit, cursor }
      return hitsToWire(await reader.searchTurns({ ...page, ...within }))
    },
    getWithTurns: async (sessionId) => {
      const session = await findSession(reader, sessionId)
      return parseChunks(writeSessionWithTurns(reader, session, reader.readTurns(sessionId), 'all'))
    },
    getTree: async (sessionId) => {
      const session = await findSession(reader, sessionId)
      return { ...sessionToWire(session), turns: await readTree(reader.readSteps(sessionId), session.marks) }
    },
    getConversation: async (sessionId) => {
      const session = await findSession(reader, sessionId)
      const chunks = writeSessionWithTurns(reader, session, reader.readOutlines(sessionId), 'new')
      return (await parseChunks<{ turns: TurnDisplayJson[] }>(chunks)).turns
    },
    getWithTrajectories: async (sessionId, query) => {
      const session = await findSession(reader, sessionId)
      const withDefaults = { per_turn: false, mask_stale_tokens: false, images: false, ...query }
      return parseChunks((await readTrajectories(reader, session, withDefaults)).toWire())
    },
    exportSession: async function* (sessionId, query) {
      yield* await exportSession(reader, await findSession(reader, sessionId), query)
    },
    close: () => reader.close(),
  }
}

async function findSession(reader: TurnReader, sessionId: string): Promise<SessionRecord> {
  const session = await reader.getSession(sessionId)
  if (session === undefined) throw new ProxyError('session_not_found', `Session ${sessionId} not found`)
  return session
}

/** Parses JSON in chunks. It is not validated, because the proxy's serializer wrote it. */
async function parseChunks<T>(chunks: AsyncIterable<string>): Promise<T> {
  let text = ''
  for await (const chunk of chunks) text += chunk
  return JSON.parse(text) as T
}
