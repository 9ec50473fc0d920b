/**
 * An index of what was said and sampled, in a file beside the database. It is made of the record alone: who removes the
 * file loses nothing but the time to make it anew. So nothing of it is on the way of a commit.
 *
 * For each turn it has which sequences of three characters are in the turn: a sample of them, by their hashes. Turns that
 * have all of those of a text may have the text; whether they do, the record tells.
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

/** Turns of one transaction. */
const MAX_ADDED = 1_000

/** More would narrow the search down no further. */
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
  /** Turns that are not kept yet. */
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

  /** To go on with it, whatever has become of the file. */
  static openForWriting(path: string): SearchIndex {
    try {
      return SearchIndex.#open(path)
    } catch {
      SearchIndex.remove(path)
      return SearchIndex.#open(path)
    }
  }

  /** @returns undefined where there is none that can be read */
  static openForReading(path: string): SearchIndex | undefined {
    try {
      const db = new Database(path, { readonly: true, fileMustExist: true })
      if (db.pragma('user_version', { simple: true }) === VERSION) return new SearchIndex(db)
      db.close()
    } catch {
      // All turns are looked at instead.
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
      // A loss of power takes the last steps of the index with it, which are made again.
      db.pragma('journal_mode = WAL')
      db.pragma('synchronous = NORMAL')
      if (db.pragma('user_version', { simple: true }) === 0) db.exec(SCHEMA)
      if (db.pragma('user_version', { simple: true }) !== VERSION) throw new Error('it is of another version')
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

  candidates(wanted: string, before: number, limit: number): number[] {
    const grams = gramsOf(wanted, MAX_QUERY_GRAMS).map((gram) => `"${gram}"`)
    // A shorter text narrows nothing down.
    if (grams.length === 0) return this.#all.all(before, limit)
    return this.#candidates.all(grams.join(' '), before, limit)
  }

  /** The turn after the last one. Kept with the next {@link keep}, or when many have come together: each time is dear. */
  add({ id, turnId, text }: { id: number; turnId: string; text: string }): void {
    if (!this.#db.inTransaction) this.#begin.run()
    this.#add.run(id, gramsOf(text).join(' '))
    this.#setState.run(id, turnId)
    this.#added += 1
    if (this.#added >= MAX_ADDED) this.keep()
  }

  keep(): void {
    this.#added = 0
    if (this.#db.inTransaction) this.#commit.run()
  }

  turnsAfter(turn: number, limit: number): number[] {
    return this.#after.all(turn, limit)
  }

  drop(turns: readonly number[]): void {
    this.keep()
    this.#db.transaction(() => {
      for (const turn of turns) this.#remove.run(turn)
    })()
  }

  close(): void {
    this.keep()
    this.#db.close()
  }
}

/** Three digits of base 36. */
const HASHES = 36 ** 3
const NAMES = Array.from({ length: HASHES }, (_, hash) => hash.toString(36).padStart(3, '0'))
/** In which round a hash was seen last. */
const seen = new Uint32Array(HASHES)
let round = 0

/** Sequences of three characters, of which the index has one. */
const WINDOW = 4

/**
 * Of each {@link WINDOW} sequences of three characters that follow each other, the one with the least hash, each once: so a
 * text that stands within another has no other ones. None of a text of fewer than six characters.
 *
 * S. Schleimer, D. S. Wilkerson, A. Aiken: Winnowing: Local Algorithms for Document Fingerprinting. SIGMOD 2003.
 */
function gramsOf(text: string, most = Number.POSITIVE_INFINITY): string[] {
  const lower = text.toLowerCase()
  const grams: string[] = []
  round += 1
  let [a, b, c] = [HASHES, HASHES, HASHES]
  let [first, second] = [lower.charCodeAt(0), lower.charCodeAt(1)]
  for (let end = 2; end < lower.length && grams.length < most; end++) {
    const third = lower.charCodeAt(end)
    const d = hashOf(first, second, third)
    const least = Math.min(a, b, c, d)
    if (end >= WINDOW + 1 && seen[least] !== round) {
      seen[least] = round
      grams.push(NAMES[least]!)
    }
    // One by one: as a list on both sides it takes twice the time.
    a = b
    b = c
    c = d
    first = second
    second = third
  }
  return grams
}

function hashOf(a: number, b: number, c: number): number {
  const mixed = Math.imul(a, 0x9e3779b1) ^ Math.imul(b, 0x85ebca6b) ^ Math.imul(c, 0xc2b2ae35)
  return ((mixed ^ (mixed >>> 15)) >>> 0) % HASHES
}
