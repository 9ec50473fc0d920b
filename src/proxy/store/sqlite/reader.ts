/** Answers reads from the database. Runs on the reader thread; knows nothing of threads. */
import type Database from 'better-sqlite3'
import type { SessionCount, SessionFilter, SessionQuery, SessionRecord } from '../port/turn-store.ts'
import { Reader, type ReadMethods } from '../record/reader.ts'
import type { ListPart, TallyPart } from '../record/session-rows.ts'
import { SessionReader } from './sessions.ts'
import { ReaderTables } from './tables.ts'

export class SqliteReader extends Reader implements ReadMethods {
  readonly #sessions: SessionReader

  constructor(db: Database.Database, cacheBytes: number) {
    super(new ReaderTables(db), cacheBytes)
    this.#sessions = new SessionReader(db)
  }

  getSession(sessionId: string): SessionRecord | undefined {
    return this.#sessions.getSound(sessionId)
  }

  listSessions(query: SessionQuery): ListPart {
    return this.#sessions.list(query)
  }

  tallySessions(filter: SessionFilter, by: string | undefined, after: number): TallyPart {
    return this.#sessions.tally(filter, by, after)
  }

  countSessions(nowMs: number): SessionCount {
    return this.#sessions.countSessions(nowMs)
  }
}
