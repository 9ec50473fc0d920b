import type { SessionQuery, SessionRecord, TurnReader } from './turn-store.ts'

/** Yields all matching sessions, reading page by page. */
export async function* listEverySession(
  reader: Pick<TurnReader, 'listSessions'>,
  query: Omit<SessionQuery, 'limit' | 'cursor'>,
): AsyncGenerator<SessionRecord> {
  let cursor: string | undefined
  do {
    const page = await reader.listSessions({ ...query, limit: 1_000, cursor })
    yield* page.sessions
    cursor = page.nextCursor
  } while (cursor !== undefined)
}
