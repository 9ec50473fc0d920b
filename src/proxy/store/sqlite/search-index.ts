/**
 * A search index of requests and completions, in a file beside the database. It is derived from the database alone:
 * removing the file loses only the time to rebuild it. Therefore no commit waits for it.
 *
 * For each turn it stores a sample of the hashes of its trigrams. A turn that has all sampled hashes of a text may
 * contain the text; the search then reads it from the database.
 */
import { rmSync } from 'node:fs'
import Database from 'better-sqlite3'
import { createOwnerOnly } from './database-files.ts'

const VERSION = 1

const SCHEMA = `
CREATE VIRTUAL TABLE turns USING fts5 (
  grams, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii'
);
CREATE TABLE state (
  id         INTEGER PRIMARY KEY CHECK (id = 1),
  indexed_to INTEGER NOT NULL, -- turns.id of the database: those up to here are in the index.
  turn_id    TEXT NOT NULL     -- Of that turn, to know its database by.
);
INSERT INTO state VALUES (1, 0, '');
PRAGMA user_version = ${VERSION};
`

/** The maximum number of turns that one transaction adds. */
const MAX_ADDED = 1_000

/** The maximum number of trigrams in a query: more would hardly narrow it. */
const MAX_QUERY_GRAMS = 48

export class SearchIndex {
  readonly #db: Database.Database
  readonly #candidates: Database.Statement<[string, number, number], number>
  readonly #all: Database.Statement<[number, number], number>
  readonly #add: Database.Statement<[number, string]>
  readonly #remove: Database.Statement<[number]>
  readonly #after: Database.Statement<[number, number], number>
  readonly #state: Database.Statement<[], { indexed_to: number; turn_id: string }>
  readonly #setState: Database.Statement<[number, string]>

  readonly #begin: Database.Statement<[]>
  readonly #commit: Database.Statement<[]>
  /** The number of turns that the open transaction has added. */
  #added = 0

  private constructor(db: Database.Database) {
    this.#db = db
    this.#begin = db.prepare('BEGIN')
    this.#commit = db.prepare('COMMIT')
    this.#candidates = db
      .prepare<[string, number, number], number>(
        'SELECT rowid FROM turns WHERE turns MATCH ? AND rowid < ? ORDER BY rowid DESC LIMIT ?',
      )
      .pluck()
    this.#all = db
      .prepare<[number, number], number>(
        'SELECT rowid FROM turns WHERE rowid < ? ORDER BY rowid DESC LIMIT ?',
      )
      .pluck()
    this.#add = db.prepare('INSERT INTO turns (rowid, grams) VALUES (?, ?)')
    this.#remove = db.prepare('DELETE FROM turns WHERE rowid = ?')
    this.#after = db
      .prepare<[number, number], number>('SELECT rowid FROM turns WHERE rowid > ? ORDER BY rowid LIMIT ?')
      .pluck()
    this.#state = db.prepare('SELECT indexed_to, turn_id FROM state')
    this.#setState = db.prepare('UPDATE state SET indexed_to = ?, turn_id = ?')
  }

  /** Opens the index to extend it. A missing or unusable file is created again. */
  static openForWriting(path: string): SearchIndex {
    try {
      return SearchIndex.#open(path)
    } catch {
      SearchIndex.remove(path)
      return SearchIndex.#open(path)
    }
  }

  /** Opens the index read-only. @returns undefined if there is none that can be read */
  static openForReading(path: string): SearchIndex | undefined {
    try {
      const db = new Database(path, { readonly: true, fileMustExist: true })
      if (db.pragma('user_version', { simple: true }) === VERSION) return new SearchIndex(db)
      db.close()
    } catch {
      // Without an index, all turns are searched.
    }
    return undefined
  }

  static remove(path: string): void {
    for (const file of [path, `${path}-wal`, `${path}-shm`]) rmSync(file, { force: true })
  }

  static #open(path: string): SearchIndex {
    createOwnerOnly(path)
    const db = new Database(path)
    try {
      // A loss of power loses the latest index entries, which are then added again.
      db.pragma('journal_mode = WAL')
      db.pragma('synchronous = NORMAL')
      if (db.pragma('user_version', { simple: true }) === 0) db.exec(SCHEMA)
      if (db.pragma('user_version', { simple: true }) !== VERSION)
        throw new Error(`the search index ${path} has another schema version`)
      return new SearchIndex(db)
    } catch (error) {
      db.close()
      throw error
    }
  }

  get state(): { indexedTo: number; turnId: string } {
    const { indexed_to: indexedTo, turn_id: turnId } = this.#state.get()!
    return { indexedTo, turnId }
  }

  findCandidates(wanted: string, before: number, limit: number): number[] {
    const grams = toGrams(wanted, MAX_QUERY_GRAMS).map((gram) => `"${gram}"`)
    // A text of few characters has no hashes in the index, so every turn is a candidate.
    if (grams.length === 0) return this.#all.all(before, limit)
    return this.#candidates.all(grams.join(' '), before, limit)
  }

  /**
   * Adds the next turn. It is committed by the next {@link flush}, or in a large batch, because commits are expensive.
   */
  add({ id, turnId, text }: { id: number; turnId: string; text: string }): void {
    if (!this.#db.inTransaction) this.#begin.run()
    this.#add.run(id, toGrams(text).join(' '))
    this.#setState.run(id, turnId)
    this.#added += 1
    if (this.#added >= MAX_ADDED) this.flush()
  }

  /** Commits the added turns. */
  flush(): void {
    this.#added = 0
    if (this.#db.inTransaction) this.#commit.run()
  }

  listTurnsAfter(turn: number, limit: number): number[] {
    return this.#after.all(turn, limit)
  }

  removeTurns(turns: readonly number[]): void {
    this.flush()
    this.#db.transaction(() => {
      for (const turn of turns) this.#remove.run(turn)
    })()
  }

  close(): void {
    this.flush()
    this.#db.close()
  }
}

/** The number of distinct hashes: each is written as three digits of base 36. */
const HASHES = 36 ** 3
const NAMES = Array.from({ length: HASHES }, (_, hash) => hash.toString(36).padStart(3, '0'))
/** The call of {@link toGrams} in which each hash was last seen, in place of a set per call. */
const seen = new Uint32Array(HASHES)
let lastCall = 0

/** The number of consecutive trigrams of which the index stores one. */
const WINDOW = 4

/**
 * Returns the distinct minima of the hashes of each {@link WINDOW} consecutive trigrams, as names. The hashes of a text
 * are a subset of those of any text that contains it. A text of fewer than six characters has none.
 *
 * S. Schleimer, D. S. Wilkerson, A. Aiken: Winnowing: Local Algorithms for Document Fingerprinting. SIGMOD 2003.
 */
function toGrams(text: string, most = Number.POSITIVE_INFINITY): string[] {
  const lower = text.toLowerCase()
  const grams: string[] = []
  lastCall += 1
  let [a, b, c] = [HASHES, HASHES, HASHES]
  let [first, second] = [lower.charCodeAt(0), lower.charCodeAt(1)]
  for (let end = 2; end < lower.length && grams.length < most; end++) {
    const third = lower.charCodeAt(end)
    const d = mixHash(first, second, third)
    const least = Math.min(a, b, c, d)
    if (end >= WINDOW + 1 && seen[least] !== lastCall) {
      seen[least] = lastCall
      grams.push(NAMES[least]!)
    }
    // Single assignments: destructuring takes twice the time.
    a = b
    b = c
    c = d
    first = second
    second = third
  }
  return grams
}

function mixHash(a: number, b: number, c: number): number {
  const mixed = Math.imul(a, 0x9e3779b1) ^ Math.imul(b, 0x85ebca6b) ^ Math.imul(c, 0xc2b2ae35)
  return ((mixed ^ (mixed >>> 15)) >>> 0) % HASHES
}
