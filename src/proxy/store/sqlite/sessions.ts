/** Reads (reader) and changes (writer) rows of `sessions`. */
import type Database from 'better-sqlite3'
import type { SessionReads } from '../common/reader.ts'
import {
  type AggregatePart,
  type AggregateRow,
  checkReward,
  type ListParameters,
  type ListPart,
  listParameters,
  listPart,
  marksColumn,
  type NewSessionRow,
  NO_CHANGE,
  rewardColumns,
  SESSIONS_AT_ONCE,
  type SessionRow,
  TALLIED_COLUMNS,
  type TurnChange,
  tallyPart,
  toRecord,
} from '../common/session-rows.ts'
import type { SessionTables } from '../common/tables.ts'
import { changedMarks } from '../port/marks.ts'
import { getOrder, type ListOrder } from '../port/session-list.ts'
import type {
  SessionCount,
  SessionFilter,
  SessionQuery,
  SessionRecord,
  SessionSort,
} from '../port/turn-store.ts'

/** A session counts its turns, but only the turns determine the next index. */
export const SELECT_SESSIONS = `
  SELECT *, (SELECT coalesce(max(call_index) + 1, 0) FROM turns WHERE turns.tree = sessions.tree) AS next_index
  FROM sessions`

/** The condition that a session is kept at the time `@nowMs` for a consumer that has not acknowledged it. */
const IS_HELD = `
  status = 'completed' AND EXISTS (
    SELECT 1 FROM consumers
    WHERE ended_at_ms >= since_ms AND ended_at_ms + hold_ms > @nowMs
      AND substr(session_id, 1, length(id_prefix)) = id_prefix
      AND NOT EXISTS (
        SELECT 1 FROM consumer_sessions
        WHERE tree = sessions.tree AND consumer = consumers.id AND leased_until_ms IS NULL))`

/** The condition that a sweep at the time `@nowMs` removes a session. */
const IS_EXPIRED = `
  ttl_ms IS NOT NULL AND updated_at_ms + ttl_ms <= @nowMs
  AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.tree = sessions.tree AND turns.status = 'open')
  AND NOT (${IS_HELD})`

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
  /** The statements by sort and order. */
  readonly #lists = new Map<string, Database.Statement<[ListParameters], SessionRow>>()

  constructor(db: Database.Database) {
    this.#db = db
    this.#find = db.prepare(`${SELECT_SESSIONS} WHERE session_id = ?`)
    this.#ofTree = db.prepare(`${SELECT_SESSIONS} WHERE tree = ?`)
    this.#tree = db.prepare<[string], number>('SELECT tree FROM sessions WHERE session_id = ?').pluck()
    this.#rowsAfter = db.prepare(`
      SELECT ${TALLIED_COLUMNS.join(', ')} FROM sessions WHERE id > ? ORDER BY id LIMIT ${SESSIONS_AT_ONCE}`)
    this.#count = db.prepare(
      `SELECT count(*) AS sessions, count(*) FILTER (WHERE status = 'active') AS active,
        count(*) FILTER (WHERE ${IS_EXPIRED}) AS expired FROM sessions`,
    )
  }

  get(sessionId: string): SessionRecord | undefined {
    const row = this.#find.get(sessionId)
    return row && toRecord(row)
  }

  /** Returns a session like {@link get} and verifies its reward. @throws ProxyError `data_damaged` */
  getSound(sessionId: string): SessionRecord | undefined {
    const row = this.#find.get(sessionId)
    if (row === undefined) return undefined
    checkReward(row)
    return toRecord(row)
  }

  /** Returns the session whose turns are in this tree. */
  ofTree(tree: number): SessionRecord | undefined {
    const row = this.#ofTree.get(tree)
    return row && toRecord(row)
  }

  /** Returns `trees.id` of the session's turns. */
  tree(sessionId: string): number | undefined {
    return this.#tree.get(sessionId)
  }

  /** Lists sessions, in parts if an index provides the order. Without an index each part would sort all sessions. */
  list(query: SessionQuery): ListPart {
    const order = getOrder(query)
    const most = order.sort === 'created' ? SESSIONS_AT_ONCE : Number.POSITIVE_INFINITY
    return listPart(this.#inOrder(order).iterate(listParameters(query)), query, most)
  }

  /** Aggregates sessions. @param after the last row that has been counted; 0: none */
  tally(filter: SessionFilter, by: string | undefined, after: number): AggregatePart {
    return tallyPart(this.#rowsAfter.all(after), filter, by)
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

/** The reader's methods for sessions. */
export function sessionReads(reader: SessionReader): SessionReads {
  return {
    getSession: (sessionId) => reader.getSound(sessionId),
    listSessions: (query) => reader.list(query),
    tallySessions: (...part) => reader.tally(...part),
    countSessions: (nowMs) => reader.countSessions(nowMs),
  }
}

/** The writer's methods for sessions. */
export interface SessionWrites extends SessionTables {
  /** Removes sessions whose time to live has expired after `sinceMs`. @returns their ids */
  sweep(nowMs: number, sinceMs: number, limit: number): string[]
}

export function sessionWrites(db: Database.Database): SessionWrites {
  const reader = new SessionReader(db)
  const create = db.prepare<
    [Omit<NewSessionRow, 'trustAgent' | 'isOwn'> & { tree: number; trustAgent: number }]
  >(`
    INSERT INTO sessions
      (session_id, tree, status, created_at_ms, updated_at_ms, ttl_ms, metadata, sampling_params, trust_agent,
        record, policies, edited_calls, continue_responses, limits, key_tag)
    VALUES (@sessionId, @tree, 'active', @createdAtMs, @createdAtMs, @ttlMs, @metadata, @samplingParams,
      @trustAgent, @record, @policies, @editedCalls, @continueResponses, @limits, @keyTag)`)
  const end = db.prepare<[{ sessionId: string; status: string; atMs: number }]>(`
    UPDATE sessions SET status = @status, ended_at_ms = @atMs, updated_at_ms = @atMs
    WHERE session_id = @sessionId AND status = 'active'`)
  const setReward = db.prepare<[ReturnType<typeof rewardColumns> & { sessionId: string; atMs: number }]>(`
    UPDATE sessions SET reward = @reward, reward_components = @reward_components, reward_lines = @reward_lines,
      reward_turns = @reward_turns, reward_sum = @reward_sum, updated_at_ms = @atMs
    WHERE session_id = @sessionId`)
  const mark = db.prepare<[{ sessionId: string; marks: string | null; atMs: number }]>(
    'UPDATE sessions SET marks = @marks, updated_at_ms = @atMs WHERE session_id = @sessionId',
  )
  const reset = db.prepare<[{ sessionId: string; tree: number; atMs: number }]>(`
    UPDATE sessions SET tree = @tree, status = 'active', ended_at_ms = NULL, updated_at_ms = @atMs,
      reward = NULL, reward_components = NULL, reward_lines = NULL, reward_turns = NULL, reward_sum = NULL,
      marks = NULL, turn_count = 0, open_turns = 0, failed_turns = 0, inexact_turns = 0, sampled_tokens = 0
    WHERE session_id = @sessionId`)
  const remove = db.prepare<[string]>('DELETE FROM sessions WHERE session_id = ?')
  const touch = db.prepare<[Required<TurnChange> & { sessionId: string; atMs: number }]>(`
    UPDATE sessions SET turn_count = turn_count + @newTurns, open_turns = open_turns + @openTurns,
      failed_turns = failed_turns + @failedTurns, inexact_turns = inexact_turns + @inexactTurns,
      sampled_tokens = sampled_tokens + @sampledTokens, updated_at_ms = max(updated_at_ms, @atMs)
    WHERE session_id = @sessionId`)
  const findExpired = db
    .prepare<[{ nowMs: number; sinceMs: number; limit: number }], string>(`
    SELECT session_id FROM sessions WHERE ${IS_EXPIRED} AND updated_at_ms + ttl_ms > @sinceMs LIMIT @limit`)
    .pluck()
  const newTree = db.prepare<[]>('INSERT INTO trees DEFAULT VALUES')
  const dropTree = db.prepare<[string]>(
    'UPDATE trees SET dropped = 1 WHERE id = (SELECT tree FROM sessions WHERE session_id = ?)',
  )
  const plantTree = () => Number(newTree.run().lastInsertRowid)
  const deleteSession = (sessionId: string) => {
    dropTree.run(sessionId)
    return remove.run(sessionId).changes > 0
  }
  return {
    tree: (sessionId) => reader.tree(sessionId),
    /** Accepts every epoch: this process has the database exclusively. */
    checkEpoch() {},
    create(session) {
      const existing = reader.get(session.sessionId)
      if (existing !== undefined) return { created: false, session: existing }
      const { isOwn: _own, ...row } = session
      create.run({ ...row, trustAgent: session.trustAgent ? 1 : 0, tree: plantTree() })
      return { created: true, session: reader.get(session.sessionId)! }
    },
    end(sessionId, status, atMs) {
      end.run({ sessionId, status, atMs })
      return reader.get(sessionId)
    },
    setReward(sessionId, reward, atMs) {
      setReward.run({ sessionId, ...rewardColumns(sessionId, reward), atMs })
      return reader.get(sessionId)
    },
    changeMarks(sessionId, change, atMs) {
      const before = reader.get(sessionId)
      if (before === undefined) return undefined
      const marks = changedMarks(before.marks, change)
      mark.run({ sessionId, marks: marksColumn(marks), atMs })
      return { ...before, marks, updatedAtMs: atMs }
    },
    reset(sessionId, atMs) {
      if (dropTree.run(sessionId).changes === 0) return undefined
      reset.run({ sessionId, tree: plantTree(), atMs })
      return reader.get(sessionId)
    },
    delete: deleteSession,
    sweep(nowMs, sinceMs, limit) {
      const expired = findExpired.all({ nowMs, sinceMs, limit })
      for (const sessionId of expired) deleteSession(sessionId)
      return expired
    },
    touch(sessionId, change, atMs) {
      touch.run({ ...NO_CHANGE, ...change, sessionId, atMs })
    },
  }
}
