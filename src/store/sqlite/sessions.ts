/** Rows of `sessions`: the statements that change them (writer) and those that find them (reader). */
import type Database from 'better-sqlite3'
import { decodeCursor, encodeCursor, matchesMetadata } from '../session-list.ts'
import type { Reward, SessionPage, SessionQuery, SessionRecord, SessionStatus } from '../turn-store.ts'

interface SessionRow {
  id: number
  tree: number
  session_id: string
  status: SessionStatus
  created_at_ms: number
  updated_at_ms: number
  ended_at_ms: number | null
  ttl_ms: number | null
  metadata: string
  sampling_params: string
  trust_agent: number
  reward: number | null
  reward_components: string | null
  turn_count: number
  next_index: number
}

/** A session counts its turns; where their order goes on only the turns themselves tell. */
const SELECT_SESSIONS = `
  SELECT *, (SELECT coalesce(max(call_index) + 1, 0) FROM turns WHERE turns.tree = sessions.tree) AS next_index
  FROM sessions`

/** A new session with its objects as JSON text. */
export interface NewSessionRow {
  sessionId: string
  createdAtMs: number
  ttlMs: number | null
  metadata: string
  samplingParams: string
  trustAgent: boolean
}

export class SessionReader {
  readonly #find: Database.Statement<[string], SessionRow>
  readonly #tree: Database.Statement<[string], number>
  readonly #newestFirst: Database.Statement<[{ createdAtMs: number; key: number }], SessionRow>

  constructor(db: Database.Database) {
    this.#find = db.prepare(`${SELECT_SESSIONS} WHERE session_id = ?`)
    this.#tree = db.prepare<[string], number>('SELECT tree FROM sessions WHERE session_id = ?').pluck()
    this.#newestFirst = db.prepare(`
      ${SELECT_SESSIONS} WHERE (created_at_ms, id) < (@createdAtMs, @key)
      ORDER BY created_at_ms DESC, id DESC`)
  }

  get(sessionId: string): SessionRecord | undefined {
    const row = this.#find.get(sessionId)
    return row && toRecord(row)
  }

  /** @returns `trees.id` of the session's turns */
  tree(sessionId: string): number | undefined {
    return this.#tree.get(sessionId)
  }

  list(query: SessionQuery): SessionPage {
    const after = query.cursor === undefined ? NEWEST : decodeCursor(query.cursor)
    const page: SessionPage = { sessions: [] }
    let last: SessionRow | undefined
    for (const row of this.#newestFirst.iterate(after)) {
      const session = toRecord(row)
      if (!matches(session, query)) continue
      if (last !== undefined && page.sessions.length >= query.limit) {
        page.nextCursor = encodeCursor({ createdAtMs: last.created_at_ms, key: last.id })
        break
      }
      page.sessions.push(session)
      last = row
    }
    return page
  }
}

/** Before the first row of the list. */
const NEWEST = { createdAtMs: Number.MAX_SAFE_INTEGER, key: 0 }

export class SessionWriter {
  readonly #reader: SessionReader
  readonly #create: Database.Statement<
    [Omit<NewSessionRow, 'trustAgent'> & { tree: number; trustAgent: number }]
  >
  readonly #end: Database.Statement<[{ sessionId: string; status: string; atMs: number }]>
  readonly #reward: Database.Statement<
    [{ sessionId: string; reward: number; components: string; atMs: number }]
  >
  readonly #reset: Database.Statement<[{ sessionId: string; tree: number; atMs: number }]>
  readonly #delete: Database.Statement<[string]>
  readonly #touch: Database.Statement<[{ sessionId: string; newTurns: number; atMs: number }]>
  readonly #expired: Database.Statement<[number, number], string>
  readonly #newTree: Database.Statement<[]>
  readonly #dropTree: Database.Statement<[string]>

  constructor(db: Database.Database) {
    this.#reader = new SessionReader(db)
    this.#create = db.prepare(`
      INSERT INTO sessions
        (session_id, tree, status, created_at_ms, updated_at_ms, ttl_ms, metadata, sampling_params, trust_agent)
      VALUES (@sessionId, @tree, 'active', @createdAtMs, @createdAtMs, @ttlMs, @metadata, @samplingParams,
        @trustAgent)`)
    this.#end = db.prepare(`
      UPDATE sessions SET status = @status, ended_at_ms = @atMs, updated_at_ms = @atMs
      WHERE session_id = @sessionId AND status = 'active'`)
    this.#reward = db.prepare(`
      UPDATE sessions SET reward = @reward, reward_components = @components, updated_at_ms = @atMs
      WHERE session_id = @sessionId`)
    this.#reset = db.prepare(`
      UPDATE sessions SET tree = @tree, status = 'active', ended_at_ms = NULL, updated_at_ms = @atMs,
        reward = NULL, reward_components = NULL, turn_count = 0
      WHERE session_id = @sessionId`)
    this.#delete = db.prepare('DELETE FROM sessions WHERE session_id = ?')
    this.#touch = db.prepare(`
      UPDATE sessions SET turn_count = turn_count + @newTurns, updated_at_ms = max(updated_at_ms, @atMs)
      WHERE session_id = @sessionId`)
    this.#expired = db
      .prepare<[number, number], string>(`
      SELECT session_id FROM sessions
      WHERE ttl_ms IS NOT NULL AND updated_at_ms + ttl_ms <= ?
        AND NOT EXISTS (SELECT 1 FROM turns WHERE turns.tree = sessions.tree AND turns.status = 'open')
      LIMIT ?`)
      .pluck()
    this.#newTree = db.prepare('INSERT INTO trees DEFAULT VALUES')
    this.#dropTree = db.prepare(
      'UPDATE trees SET dropped = 1 WHERE id = (SELECT tree FROM sessions WHERE session_id = ?)',
    )
  }

  tree(sessionId: string): number | undefined {
    return this.#reader.tree(sessionId)
  }

  create(session: NewSessionRow): { created: boolean; session: SessionRecord } {
    const existing = this.#reader.get(session.sessionId)
    if (existing !== undefined) return { created: false, session: existing }
    this.#create.run({ ...session, trustAgent: session.trustAgent ? 1 : 0, tree: this.#plantTree() })
    return { created: true, session: this.#reader.get(session.sessionId)! }
  }

  end(sessionId: string, status: 'completed' | 'aborted', atMs: number): SessionRecord | undefined {
    this.#end.run({ sessionId, status, atMs })
    return this.#reader.get(sessionId)
  }

  setReward(sessionId: string, { reward, components }: Reward, atMs: number): SessionRecord | undefined {
    this.#reward.run({ sessionId, reward, components: JSON.stringify(components), atMs })
    return this.#reader.get(sessionId)
  }

  reset(sessionId: string, atMs: number): SessionRecord | undefined {
    if (this.#dropTree.run(sessionId).changes === 0) return undefined
    this.#reset.run({ sessionId, tree: this.#plantTree(), atMs })
    return this.#reader.get(sessionId)
  }

  /** Takes the session off the record at once; its turns are removed later, bit by bit. */
  delete(sessionId: string): boolean {
    this.#dropTree.run(sessionId)
    return this.#delete.run(sessionId).changes > 0
  }

  sweep(nowMs: number, limit: number): string[] {
    const expired = this.#expired.all(nowMs, limit)
    for (const sessionId of expired) this.delete(sessionId)
    return expired
  }

  /** Notes that the session's turns changed. */
  touch(sessionId: string, newTurns: number, atMs: number): void {
    this.#touch.run({ sessionId, newTurns, atMs })
  }

  #plantTree(): number {
    return Number(this.#newTree.run().lastInsertRowid)
  }
}

function toRecord(row: SessionRow): SessionRecord {
  return {
    sessionId: row.session_id,
    status: row.status,
    createdAtMs: row.created_at_ms,
    updatedAtMs: row.updated_at_ms,
    endedAtMs: row.ended_at_ms,
    ttlMs: row.ttl_ms,
    metadata: JSON.parse(row.metadata),
    samplingParams: JSON.parse(row.sampling_params),
    trustAgent: row.trust_agent === 1,
    reward:
      row.reward === null
        ? null
        : { reward: row.reward, components: JSON.parse(row.reward_components ?? '{}') },
    turnCount: row.turn_count,
    nextIndex: row.next_index,
  }
}

function matches(session: SessionRecord, query: SessionQuery): boolean {
  if (query.status !== undefined && session.status !== query.status) return false
  if (session.updatedAtMs < (query.sinceMs ?? 0)) return false
  return query.metadata === undefined || matchesMetadata(session.metadata, query.metadata)
}
