/**
 * Applies operations to the database, a group per transaction. It runs on the writer thread and is independent of
 * threads.
 */
import type Database from 'better-sqlite3'
import { invoke, type ThreadCommand, type ThreadReply, toWireError } from '../common/calls.ts'
import { TurnWriter } from '../common/turns.ts'
import { createSessionWriteMethods, OpenFailures, type WriteMethods } from '../common/write-methods.ts'
import { prepareConsumerMethods } from './consumers.ts'
import { prepareImportMethods } from './imports.ts'
import { SqliteSessionWriter } from './sessions.ts'
import { prepareWriterTables } from './tables.ts'

/**
 * The number of rows of deleted sessions that one step removes, about a millisecond's work. Referencing rows are
 * removed first: details before turns, then nodes, texts and blobs, which are large.
 */
const PURGE_STEPS = { consumer_sessions: 64, details: 64, turns: 64, nodes: 64, texts: 64, blob_uses: 4 }

/** The number of pages in the log that triggers a checkpoint during work: about 16 MB. */
const BUSY_CHECKPOINT_PAGES = 4096

export class Writer {
  readonly #db: Database.Database
  readonly #turns: TurnWriter
  readonly #methods: WriteMethods
  readonly #unopened = new OpenFailures()
  readonly #begin: Database.Statement
  readonly #commit: Database.Statement
  readonly #savepoint: Database.Statement
  readonly #release: Database.Statement
  readonly #undo: Database.Statement
  readonly #walState: Database.Statement<[], { log: number; checkpointed: number }>
  readonly #checkpoint: Database.Statement
  readonly #droppedTree: Database.Statement<[], number>
  readonly #purgeSome: readonly Database.Statement<[number]>[]
  readonly #purgeTree: Database.Statement<[number]>
  readonly #checkFiles: () => void

  /**
   * @param checkFiles throws if the database's files were removed or replaced
   * @param checkFreeSpace throws if the disk has too little free space for a turn
   */
  constructor(
    db: Database.Database,
    cacheBytes: number,
    checkFiles: () => void = () => {},
    checkFreeSpace: () => void = () => {},
  ) {
    this.#checkFiles = checkFiles
    const sessions = new SqliteSessionWriter(db)
    this.#db = db
    this.#turns = new TurnWriter(prepareWriterTables(db), sessions, cacheBytes)
    this.#methods = {
      ...createSessionWriteMethods(this.#turns, sessions, this.#unopened),
      sweep: (...args) => sessions.sweep(...args),
      tryCommit: () => {
        checkFreeSpace()
        const version = db.pragma('user_version', { simple: true })
        db.pragma(`user_version = ${version}`)
      },
      ...prepareConsumerMethods(db),
      ...prepareImportMethods(db),
    }
    this.#begin = db.prepare('BEGIN IMMEDIATE')
    this.#commit = db.prepare('COMMIT')
    this.#savepoint = db.prepare('SAVEPOINT operation')
    this.#release = db.prepare('RELEASE operation')
    this.#undo = db.prepare('ROLLBACK TO operation')
    this.#walState = db.prepare('PRAGMA wal_checkpoint(NOOP)')
    this.#checkpoint = db.prepare('PRAGMA wal_checkpoint(PASSIVE)')
    this.#droppedTree = db.prepare<[], number>('SELECT id FROM trees WHERE dropped = 1').pluck()
    this.#purgeSome = Object.entries(PURGE_STEPS).map(([table, rows]) => {
      const some = `SELECT id FROM ${table} WHERE tree = ? LIMIT ${rows}`
      return db.prepare(`DELETE FROM ${table} WHERE id IN (${some})`)
    })
    this.#purgeTree = db.prepare('DELETE FROM trees WHERE id = ?')
  }

  /** Commits a group in one transaction. A failed operation fails alone; a failed commit fails all of them. */
  commit(calls: readonly ThreadCommand<WriteMethods>[]): ThreadReply[] {
    let replies: ThreadReply[]
    try {
      this.#checkFiles()
      this.#begin.run()
      replies = this.#applyAll(calls) ?? calls.map((call) => this.#apply(call))
      this.#commit.run()
      // Check again: the commit may have gone into a file that was removed.
      this.#checkFiles()
    } catch (error) {
      this.#rollback()
      replies = calls.map(({ id }) => ({ id, error: toWireError(error) }))
    }
    this.#unopened.recordOutcomes(calls, replies)
    return replies
  }

  /** Removes some rows of deleted or reset sessions. @returns whether there may be more */
  purge(): boolean {
    const tree = this.#droppedTree.get()
    if (tree === undefined) return false
    if (!this.#purgeSome.some((some) => some.run(tree).changes > 0)) this.#purgeTree.run(tree)
    return true
  }

  /** Checkpoints if the log is too long to wait for an idle moment. */
  checkpointIfDue(): void {
    const { log, checkpointed } = this.#walState.get()!
    if (log - checkpointed >= BUSY_CHECKPOINT_PAGES) this.checkpoint()
  }

  /** Copies the log into the database, as far as readers permit, without waiting. */
  checkpoint(): void {
    this.#checkFiles()
    this.#checkpoint.get()
  }

  /**
   * Applies all operations without savepoints, which saves two statements and a copy of each changed page per
   * operation.
   * @returns undefined if one has failed: nothing is changed then, and a new transaction has begun
   */
  #applyAll(calls: readonly ThreadCommand<WriteMethods>[]): ThreadReply[] | undefined {
    try {
      return calls.map((call) => ({ id: call.id, value: invoke(this.#methods, call) }))
    } catch {
      this.#rollback()
      this.#begin.run()
      return undefined
    }
  }

  #apply(call: ThreadCommand<WriteMethods>): ThreadReply {
    this.#savepoint.run()
    try {
      const value = invoke(this.#methods, call)
      this.#release.run()
      return { id: call.id, value }
    } catch (error) {
      // SQLite has rolled back the complete group (disk full, I/O error): a single operation cannot be undone.
      if (!this.#db.inTransaction) throw error
      this.#undo.run()
      this.#release.run()
      this.#turns.forget()
      return { id: call.id, error: toWireError(error) }
    }
  }

  #rollback(): void {
    if (this.#db.inTransaction) this.#db.exec('ROLLBACK')
    this.#turns.forget()
  }
}
