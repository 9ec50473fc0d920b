/** Reads (reader) and changes (writer) rows of `sessions`. */
import type Database from 'better-sqlite3'
import type { SessionReads } from '../common/reader.ts'
import {
  type AggregatePart,
  type AggregateRow,
  buildAggregatePart,
  buildListPart,
  checkReward,
  createListParameters,
  type ListParameters,
  type ListPart,
  NO_CHANGE,
  SESSION_COLUMNS,
  SESSIONS_AT_ONCE,
  type SessionCounterChange,
  type SessionRow,
  toRecord,
} from '../common/session-rows.ts'
import { buildAggregateQuery, buildCountQuery, buildExpiredCondition } from '../common/session-sql.ts'
import { SessionWriter } from '../common/session-writer.ts'
import { getOrder, type ListOrder } from '../port/session-list.ts'
import type {
  SessionCount,
  SessionFilter,
  SessionQuery,
  SessionRecord,
  SessionSort,
} from '../port/turn-store.ts'

/**
 * Selects sessions with their next turn index. It is computed from the turns, since indices may have gaps and
 * `turn_count` only counts them.
 */
export const SELECT_SESSIONS = `
  SELECT *, (SELECT coalesce(max(call_index) + 1, 0) FROM turns WHERE turns.tree = sessions.tree) AS next_index
  FROM sessions`

const IS_EXPIRED = buildExpiredCondition('', '@nowMs')

const ROW_FILTER = `
  (@status IS NULL OR status = @status)
  AND (@rewardMin IS NULL OR reward >= @rewardMin) AND (@rewardMax IS NULL OR reward <= @rewardMax)
  AND (@inexact IS NULL OR (inexact_turns > 0) = @inexact) AND (@failed IS NULL OR (failed_turns > 0) = @failed)
  AND (@idPrefix IS NULL OR substr(session_id, 1, length(@idPrefix)) = @idPrefix)`

/** `@none` is the sort value of sessions without a reward. */
const SORT_COLUMNS: Record<SessionSort, string> = {
  created: 'created_at_ms',
  changed: 'updated_at_ms',
  reward: 'ifnull(reward, @none)',
  turns: 'turn_count',
  tokens: 'sampled_tokens',
}

export class SessionReader {
  readonly #db: Database.Database
  readonly #find: Database.Statement<[string], SessionRow>
  readonly #ofTree: Database.Statement<[number], SessionRow>
  readonly #tree: Database.Statement<[string], number>
  readonly #rowsAfter: Database.Statement<[number], AggregateRow>
  readonly #count: Database.Statement<[{ nowMs: number }], SessionCount>
  /** The prepared statements by sort and order. */
  readonly #lists = new Map<string, Database.Statement<[ListParameters], SessionRow>>()

  constructor(db: Database.Database) {
    this.#db = db
    this.#find = db.prepare(`${SELECT_SESSIONS} WHERE session_id = ?`)
    this.#ofTree = db.prepare(`${SELECT_SESSIONS} WHERE tree = ?`)
    this.#tree = db.prepare<[string], number>('SELECT tree FROM sessions WHERE session_id = ?').pluck()
    this.#rowsAfter = db.prepare(buildAggregateQuery('', '?'))
    this.#count = db.prepare(buildCountQuery('', IS_EXPIRED))
  }

  find(sessionId: string): SessionRow | undefined {
    return this.#find.get(sessionId)
  }

  /** Verifies the checksum of a session's reward, and returns the session. @throws ProxyError `data_damaged` */
  getVerified(sessionId: string): SessionRecord | undefined {
    const row = this.find(sessionId)
    if (row === undefined) return undefined
    checkReward(row)
    return toRecord(row)
  }

  /** Returns the session whose turns are in this tree. */
  getByTree(tree: number): SessionRecord | undefined {
    const row = this.#ofTree.get(tree)
    return row && toRecord(row)
  }

  /** Returns `trees.id` of the session's turns. */
  findTree(sessionId: string): number | undefined {
    return this.#tree.get(sessionId)
  }

  /**
   * Lists sessions, in batches if an index provides the order. Without an index, each batch would sort all sessions.
   */
  list(query: SessionQuery): ListPart {
    const order = getOrder(query)
    const most = order.sort === 'created' ? SESSIONS_AT_ONCE : Number.POSITIVE_INFINITY
    return buildListPart(this.#inOrder(order).iterate(createListParameters(query)), query, most)
  }

  /**
   * Aggregates a batch of sessions.
   * @param after the row id of the last session of the previous batch; 0: there is none
   */
  tally(filter: SessionFilter, by: string | undefined, after: number): AggregatePart {
    return buildAggregatePart(this.#rowsAfter.all(after), filter, by)
  }

  countSessions(nowMs: number): SessionCount {
    return this.#count.get({ nowMs })!
  }

  #inOrder({ sort, order }: ListOrder): Database.Statement<[ListParameters], SessionRow> {
    const name = `${sort} ${order}`
    const known = this.#lists.get(name)
    if (known !== undefined) return known
    const column = SORT_COLUMNS[sort]
    const list = this.#db.prepare<[ListParameters], SessionRow>(`
      ${SELECT_SESSIONS}
      WHERE (${column}, id) ${order === 'desc' ? '<' : '>'} (@value, @key) AND ${ROW_FILTER}
      ORDER BY ${column} ${order}, id ${order}`)
    this.#lists.set(name, list)
    return list
  }
}

/** Returns the reader's methods for sessions. */
export function prepareSessionReads(reader: SessionReader): SessionReads {
  return {
    getSession: (sessionId) => reader.getVerified(sessionId),
    listSessions: (query) => reader.list(query),
    tallySessions: (...part) => reader.tally(...part),
    countSessions: (nowMs) => reader.countSessions(nowMs),
  }
}

/** The columns that an insertion writes; SQLite assigns `id`. */
const INSERTED_COLUMNS = SESSION_COLUMNS.filter((column) => column !== 'id')

/** The sessions of the writer, changed by SQL statements. */
export class SqliteSessionWriter extends SessionWriter {
  readonly #db: Database.Database
  readonly #reader: SessionReader
  readonly #insert: Database.Statement<[Omit<SessionRow, 'id'>]>
  readonly #remove: Database.Statement<[number]>
  readonly #touch: Database.Statement<[Required<SessionCounterChange> & { sessionId: string; atMs: number }]>
  readonly #findExpired: Database.Statement<[{ nowMs: number; sinceMs: number; limit: number }], string>
  readonly #createTree: Database.Statement<[]>
  readonly #dropTree: Database.Statement<[number]>

  constructor(db: Database.Database) {
    super()
    this.#db = db
    this.#reader = new SessionReader(db)
    this.#insert = db.prepare(`
      INSERT INTO sessions (${INSERTED_COLUMNS.join(', ')})
      VALUES (${INSERTED_COLUMNS.map((column) => `@${column}`).join(', ')})`)
    this.#remove = db.prepare('DELETE FROM sessions WHERE id = ?')
    this.#touch = db.prepare(`
      UPDATE sessions SET turn_count = turn_count + @newTurns, open_turns = open_turns + @openTurns,
        failed_turns = failed_turns + @failedTurns, inexact_turns = inexact_turns + @inexactTurns,
        sampled_tokens = sampled_tokens + @sampledTokens, updated_at_ms = max(updated_at_ms, @atMs)
      WHERE session_id = @sessionId`)
    this.#findExpired = db
      .prepare<[{ nowMs: number; sinceMs: number; limit: number }], string>(`
        SELECT session_id FROM sessions WHERE ${IS_EXPIRED} AND updated_at_ms + ttl_ms > @sinceMs LIMIT @limit`)
      .pluck()
    this.#createTree = db.prepare('INSERT INTO trees DEFAULT VALUES')
    this.#dropTree = db.prepare('UPDATE trees SET dropped = 1 WHERE id = ?')
  }

  find(sessionId: string): SessionRow | undefined {
    return this.#reader.find(sessionId)
  }

  findTree(sessionId: string): number | undefined {
    return this.#reader.findTree(sessionId)
  }

  /** Accepts every epoch: this process has the database exclusively. */
  checkEpoch(): void {}

  /** Updates the counters by a statement that need not read the row, since it runs for every turn. */
  touch(sessionId: string, change: SessionCounterChange, atMs: number): void {
    this.#touch.run({ ...NO_CHANGE, ...change, sessionId, atMs })
  }

  /** Removes sessions whose time to live has expired after `sinceMs`. @returns their ids */
  sweep(nowMs: number, sinceMs: number, limit: number): string[] {
    const expired = this.#findExpired.all({ nowMs, sinceMs, limit })
    for (const sessionId of expired) this.delete(sessionId)
    return expired
  }

  protected insert(row: Omit<SessionRow, 'id'>): SessionRow {
    return { ...row, id: Number(this.#insert.run(row).lastInsertRowid) }
  }

  protected update(row: SessionRow, change: Partial<SessionRow>): SessionRow {
    // `next_index` is not a column.
    const columns = Object.keys(change).filter((column) => column !== 'next_index')
    const assignments = columns.map((column) => `${column} = @${column}`).join(', ')
    const changed = { ...row, ...change }
    this.#db.prepare(`UPDATE sessions SET ${assignments} WHERE id = @id`).run(changed)
    return changed
  }

  protected remove({ id }: SessionRow): void {
    this.#remove.run(id)
  }

  protected createTree(): number {
    return Number(this.#createTree.run().lastInsertRowid)
  }

  protected dropTree(tree: number): void {
    this.#dropTree.run(tree)
  }
}
