/** Reads from the database. It runs on the reader thread and contains no thread code. */
import type Database from 'better-sqlite3'
import { bindMethods } from '../common/calls.ts'
import { Reader, TURN_PAGES } from '../common/reader.ts'
import type { DatabaseReader } from '../common/reader-loop.ts'
import { prepareConsumerReads } from './consumers.ts'
import { prepareImportReads } from './imports.ts'
import { type IndexLocation, SqliteSearch } from './search.ts'
import { prepareSessionReads, SessionReader } from './sessions.ts'
import { prepareReaderTables } from './tables.ts'

/**
 * Creates the methods of the reader.
 * @param index the location of the search index; without it a search reads every turn
 */
export function createReader(db: Database.Database, cacheBytes: number, index?: IndexLocation) {
  const sessions = new SessionReader(db)
  return {
    ...bindMethods(new Reader(prepareReaderTables(db), cacheBytes), TURN_PAGES),
    ...prepareSessionReads(sessions),
    ...prepareConsumerReads(db),
    ...prepareImportReads(db),
    ...bindMethods(new SqliteSearch(db, sessions, index), ['search', 'hasIndex', 'indexSome', 'close']),
  } satisfies DatabaseReader
}
