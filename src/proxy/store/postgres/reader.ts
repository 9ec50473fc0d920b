/** Serves reads from the database. Runs on the reader thread, but does not depend on threads. */
import type { Client } from 'pg'
import type { MaybeAsyncMethods } from '../common/calls.ts'
import { Reader, type TurnPages } from '../common/reader.ts'
import type { DatabaseReader } from '../common/reader-loop.ts'
import { bindQueries } from './connection.ts'
import { consumerReads } from './consumers.ts'
import { importReads } from './imports.ts'
import { PageFetch, PageTables } from './page-rows.ts'
import { ReaderPool } from './reader-pool.ts'
import { searchReads } from './search.ts'
import { sessionReads } from './select-sessions.ts'

const QUERIES = { ...sessionReads, ...consumerReads, ...importReads, ...searchReads }

/** Creates the methods of the reader. @param most maximum number of connections */
export function createReader(connect: () => Promise<Client>, cacheBytes: number, most: number) {
  const pool = new ReaderPool(connect, most)
  return {
    ...bindQueries(QUERIES, (query) => pool.run(query)),
    ...createTurnPages(pool, cacheBytes),
    close: () => pool.close(),
  } satisfies DatabaseReader & { close(): Promise<void> }
}

/** Returns reads that fetch rows from one snapshot, and build the page from them synchronously. */
function createTurnPages(pool: ReaderPool, cacheBytes: number): MaybeAsyncMethods<TurnPages> {
  const tables = new PageTables()
  const reader = new Reader(tables, cacheBytes)
  const read = async <T>(fetch: (page: PageFetch) => Promise<PageTables['rows']>, build: () => T) => {
    tables.rows = await pool.runInSnapshot((client) => fetch(new PageFetch(client, reader)))
    return build()
  }
  return {
    readPage: (reading, sessionId) =>
      read(
        (page) => page.fetchPage(sessionId, reader.getProgress(reading), 'turns'),
        () => reader.readPage(reading, sessionId),
      ),
    readStepPage: (reading, sessionId) =>
      read(
        (page) => page.fetchPage(sessionId, reader.getProgress(reading), 'steps'),
        () => reader.readStepPage(reading, sessionId),
      ),
    readOutlinePage: (reading, sessionId) =>
      read(
        (page) => page.fetchPage(sessionId, reader.getProgress(reading), 'none'),
        () => reader.readOutlinePage(reading, sessionId),
      ),
    endReading: (reading) => reader.endReading(reading),
    readTurn: (sessionId, turnId) =>
      read(
        (page) => page.fetchTurn(sessionId, turnId),
        () => reader.readTurn(sessionId, turnId),
      ),
    readDetails: (sessionId, turnIds, kinds) =>
      read(
        (page) => page.fetchDetails(sessionId, turnIds, kinds),
        () => reader.readDetails(sessionId, turnIds, kinds),
      ),
  }
}
