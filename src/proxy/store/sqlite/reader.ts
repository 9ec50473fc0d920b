/** Reads from the database. It runs on the reader thread and contains no thread code. */
import type Database from 'better-sqlite3'
import { type ConsumerReads, Reader } from '../common/reader.ts'
import type { Reads } from '../common/reader-loop.ts'
import type { SearchPart, SearchRequest } from '../common/search.ts'
import type { AggregatePart, ListPart } from '../common/session-rows.ts'
import type {
  AvailableQuery,
  AvailableSession,
  Consumer,
  ConsumerCounts,
  ConsumerSession,
  GroupQuery,
  GroupsPage,
} from '../port/consumers.ts'
import type { ImportEntry } from '../port/imports.ts'
import type { SessionCount, SessionFilter, SessionQuery, SessionRecord } from '../port/turn-store.ts'
import { consumerReads } from './consumers.ts'
import { importReads } from './imports.ts'
import { type IndexLocation, SqliteSearch } from './search.ts'
import { SessionReader } from './sessions.ts'
import { readerTables } from './tables.ts'

export class SqliteReader extends Reader implements Reads {
  readonly #sessions: SessionReader
  readonly #consumers: ConsumerReads
  readonly #imports: ReturnType<typeof importReads>
  readonly #search: SqliteSearch

  /** @param index the location of the search index; without one a search reads every turn */
  constructor(db: Database.Database, cacheBytes: number, index?: IndexLocation) {
    super(readerTables(db), cacheBytes)
    this.#sessions = new SessionReader(db)
    this.#consumers = consumerReads(db)
    this.#imports = importReads(db)
    this.#search = new SqliteSearch(db, this.#sessions, index)
  }

  getSession(sessionId: string): SessionRecord | undefined {
    return this.#sessions.getSound(sessionId)
  }

  listSessions(query: SessionQuery): ListPart {
    return this.#sessions.list(query)
  }

  tallySessions(filter: SessionFilter, by: string | undefined, after: number): AggregatePart {
    return this.#sessions.tally(filter, by, after)
  }

  countSessions(nowMs: number): SessionCount {
    return this.#sessions.countSessions(nowMs)
  }

  getConsumer(name: string): Consumer | undefined {
    return this.#consumers.getConsumer(name)
  }

  listConsumers(idPrefix: string): Consumer[] {
    return this.#consumers.listConsumers(idPrefix)
  }

  availableSessions(query: AvailableQuery): AvailableSession[] {
    return this.#consumers.availableSessions(query)
  }

  countForConsumer(name: string, nowMs: number): ConsumerCounts | undefined {
    return this.#consumers.countForConsumer(name, nowMs)
  }

  findGroups(query: GroupQuery): GroupsPage {
    return this.#consumers.findGroups(query)
  }

  givenSessions(sessionId: string): ConsumerSession[] {
    return this.#consumers.givenSessions(sessionId)
  }

  wasImported(item: ImportEntry): boolean {
    return this.#imports.wasImported(item)
  }

  search(part: SearchRequest): Promise<SearchPart> {
    return this.#search.search(part)
  }

  hasIndex(): boolean {
    return this.#search.hasIndex()
  }

  indexSome(): boolean {
    return this.#search.indexSome()
  }

  /** Closes the index. The owner of the database closes that. */
  close(): void {
    this.#search.close()
  }
}
