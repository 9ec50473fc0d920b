/** Finds turns by their text, and updates the search index if this process may write it. Runs on the reader thread. */
import { existsSync } from 'node:fs'
import type Database from 'better-sqlite3'
import {
  CANDIDATE_COLUMNS,
  type SearchCandidate,
  type SearchPart,
  type SearchRequest,
  type SearchRow,
  type SearchSource,
  searchBatch,
  toSearchCandidate,
  unpackTextIds,
} from '../common/search.ts'
import type { TextRow } from '../common/tables.ts'
import { extractTurnText } from '../port/turn-search.ts'
import type { SessionRecord } from '../port/turn-store.ts'
import { SearchIndex } from './search-index.ts'
import type { SessionReader } from './sessions.ts'

/** The time limit of one step, after which other reads are served. */
const STEP_MS = 10

/** The number of indexed turns that one step looks up in the database. */
const CHECKED_AT_ONCE = 500

/** The interval at which deleted turns are removed from the index. */
const CLEANUP_INTERVAL_MS = 3_600_000

/** The location of the index, which the first search creates. */
export interface IndexLocation {
  path: string
  /** Whether this process updates it; only one may. */
  mayWrite: boolean
}

export class SqliteSearch implements SearchSource {
  readonly #sessions: SessionReader
  readonly #db: Database.Database
  readonly #location: IndexLocation | undefined
  #index: SearchIndex | undefined
  readonly #after: Database.Statement<[number], { id: number; turn_id: string; status: string }>
  readonly #unindexed: Database.Statement<[number, number, number], number>
  readonly #row: Database.Statement<[number], SearchRow>
  readonly #isFirst: Database.Statement<[number, number, number], number>
  readonly #texts: Database.Statement<[number], Buffer>
  readonly #text: Database.Statement<[number], TextRow>
  readonly #isThere: Database.Statement<[number], number>
  /** The last indexed turn that the cleanup has checked; 0: none yet; undefined: no cleanup is running. */
  #cleanedTo: number | undefined = 0
  #cleanupStartedAtMs = performance.now()

  /** @param location the location of the index; undefined: every turn is read */
  constructor(db: Database.Database, sessions: SessionReader, location: IndexLocation | undefined) {
    this.#sessions = sessions
    this.#db = db
    this.#location = location
    if (location && existsSync(location.path))
      this.#index = location.mayWrite ? this.#open() : SearchIndex.openForReading(location.path)
    this.#after = db.prepare('SELECT id, turn_id, status FROM turns WHERE id > ? ORDER BY id LIMIT 64')
    this.#unindexed = db
      .prepare<[number, number, number], number>(
        "SELECT id FROM turns WHERE id < ? AND id > ? AND status <> 'open' ORDER BY id DESC LIMIT ?",
      )
      .pluck()
    this.#row = db.prepare(`SELECT ${CANDIDATE_COLUMNS} FROM turns WHERE id = ?`)
    this.#isFirst = db
      .prepare<[number, number, number], number>(
        'SELECT NOT EXISTS (SELECT 1 FROM turns WHERE tree = ? AND node = ? AND id < ?)',
      )
      .pluck()
    this.#texts = db.prepare<[number], Buffer>('SELECT texts FROM nodes WHERE id = ?').pluck()
    this.#text = db.prepare('SELECT echo_of, blobs, body, hash FROM texts WHERE id = ?')
    this.#isThere = db.prepare<[number], number>('SELECT 1 FROM turns WHERE id = ?').pluck()
  }

  search(part: SearchRequest): Promise<SearchPart> {
    return searchBatch(this, part)
  }

  findCandidates(wanted: string, before: number, limit: number): number[] {
    const indexedTo = this.#index?.state.indexedTo ?? 0
    const later = this.#unindexed.all(before, indexedTo, limit)
    if (this.#index === undefined || later.length === limit) return later
    const from = Math.min(before, indexedTo + 1)
    return [...later, ...this.#index.findCandidates(wanted, from, limit - later.length)]
  }

  readTurns(turns: readonly number[], isWanted: (session: SessionRecord) => boolean) {
    const found: { turn: SearchCandidate; session: SessionRecord }[] = []
    for (const id of turns) {
      const row = this.#row.get(id)
      // A dropped tree has no session.
      const session = row && this.#sessions.getByTree(row.tree)
      if (session && isWanted(session)) found.push({ turn: this.#turn(row), session })
    }
    return found
  }

  /** Indexes some turns. @returns whether there is more to do immediately */
  indexSome(): boolean {
    this.#index ??= this.#open()
    const index = this.#index
    const began = performance.now()
    let more = false
    for (const { id, turn_id: turnId, status } of this.#after.all(index.state.indexedTo)) {
      // The text of an open turn is unknown: it and all later turns are searched without the index.
      if (status === 'open') break
      const { request, completion } = extractTurnText(this.#turn(this.#row.get(id)!))
      index.add({ id, turnId, text: `${request}\n${completion}` })
      more = true
      if (performance.now() - began > STEP_MS) break
    }
    if (more) return true
    index.flush()
    return this.#removeDeletedTurns(index)
  }

  hasIndex(): boolean {
    return this.#index !== undefined
  }

  close(): void {
    this.#index?.close()
  }

  /** Opens the index file beside the database, or creates it again if it belongs to another one. */
  #open(): SearchIndex {
    const { path } = this.#location!
    const index = SearchIndex.openForWriting(path)
    if (isIndexFor(index, this.#db)) return index
    index.close()
    SearchIndex.remove(path)
    return SearchIndex.openForWriting(path)
  }

  /** Removes some deleted turns from the index. @returns whether there is more to do immediately */
  #removeDeletedTurns(index: SearchIndex): boolean {
    if (this.#cleanedTo === undefined) {
      if (performance.now() - this.#cleanupStartedAtMs < CLEANUP_INTERVAL_MS) return false
      this.#cleanedTo = 0
      this.#cleanupStartedAtMs = performance.now()
    }
    const turns = index.listTurnsAfter(this.#cleanedTo, CHECKED_AT_ONCE)
    const gone = turns.filter((turn) => this.#isThere.get(turn) === undefined)
    if (gone.length > 0) index.removeTurns(gone)
    this.#cleanedTo = turns.length < CHECKED_AT_ONCE ? undefined : turns.at(-1)!
    return this.#cleanedTo !== undefined
  }

  /**
   * Reads the completion of a turn, and the texts that its request adds to earlier ones. The texts of messages are
   * omitted if an earlier turn has the same messages.
   */
  #turn(row: SearchRow): SearchCandidate {
    const isNew = row.node === 0 || this.#isFirst.get(row.tree, row.node, row.id) === 1
    const nodes = [...(isNew ? [row.node] : []), row.prompt_node]
    const packed = nodes.flatMap((node) => this.#texts.get(node) ?? [])
    return toSearchCandidate(
      row,
      unpackTextIds(packed).flatMap((text) => this.#text.get(text) ?? []),
    )
  }
}

/**
 * Returns whether the index belongs to the database, which may have been replaced, for example by an older copy of
 * itself.
 */
function isIndexFor(index: SearchIndex, db: Database.Database): boolean {
  const { indexedTo, turnId } = index.state
  const last = db.prepare<[], number>(
    "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'turns'",
  )
  const there = db.prepare<[number], string>('SELECT turn_id FROM turns WHERE id = ?')
  return indexedTo <= last.pluck().get()! && (there.pluck().get(indexedTo) ?? turnId) === turnId
}
