/** Opens database files and explains failures with a remedy. */
import { existsSync, mkdirSync } from 'node:fs'
import { dirname } from 'node:path'
import Database from 'better-sqlite3'
import { ProxyError } from '../../../base/errors.ts'
import type { SchemaChange } from '../common/calls.ts'
import type { Durability } from '../port/turn-store.ts'
import { createOwnerOnly, DatabaseFiles, restrictToOwner } from './database-files.ts'
import { checkOwner, checkSchema, migrate } from './schema.ts'
import { lockForWriting } from './writer-lock.ts'

/** The size of the writer's cache of database pages. */
const CACHE_KIB = 16 * 1024

/** Larger databases are not checked at the start, because reading them takes minutes. */
const MAX_CHECKED_BYTES = 1024 * 1024 * 1024

/** The size to which the log file is truncated after a slow reader let it grow. */
const MAX_IDLE_WAL_BYTES = 64 * 1024 * 1024

/**
 * Opens the only connection that writes, to a database that is migrated and has no turn in flight.
 * @param servesAgents false: closing preserves the record of how the last proxy that served agents ended
 * @throws ProxyError `start_failed`
 */
export function openForWriting(
  path: string,
  durability: Durability,
  servesAgents = true,
): DatabaseHandle & { readonly files: DatabaseFiles; readonly migrated: SchemaChange | undefined } {
  const opened = openLocked(path)
  try {
    const migrated = explainError(path, () => configureWriter(opened.db, path, durability))
    const close = servesAgents ? opened.close : () => opened.close()
    return { ...opened, close, migrated, files: new DatabaseFiles(path) }
  } catch (error) {
    opened.close()
    throw error
  }
}

interface DatabaseHandle {
  readonly db: Database.Database
  /** Whether the previous process shut down cleanly, with all responses delivered. */
  readonly endedWell: boolean
  /**
   * Closes the connection and unlocks the file for other processes.
   * @param endsWell whether this process shuts down cleanly; default: as the previous one did
   */
  close(endsWell?: boolean): void
}

/** Opens and locks the database. The file is checked before the lock is created beside it. */
function openLocked(path: string): DatabaseHandle {
  makeFolder(path)
  const db = explainError(path, () => {
    createOwnerOnly(path)
    return openChecked(path, {}, checkOwner)
  })
  try {
    const { endedWell, unlock } = explainError(path, () => lockForWriting(path))
    restrictToOwner(path)
    const close = (endsWell?: boolean) => {
      db.close()
      unlock(endsWell)
    }
    return { db, endedWell, close }
  } catch (error) {
    db.close()
    throw error
  }
}

/** Opens a database read-only. @param check rejects an unsupported schema. @throws ProxyError `start_failed` */
export function openForReading(
  path: string,
  check: (db: Database.Database, path: string) => void = checkSchema,
): Database.Database {
  if (!existsSync(path)) {
    throw new ProxyError(
      'start_failed',
      `there is no database at ${path}: give the file that the proxy writes`,
    )
  }
  return explainError(path, () => openChecked(path, { readonly: true }, check))
}

/** Opens a database. @returns the connection, if the check accepts it */
function openChecked(
  path: string,
  options: Database.Options,
  check: (db: Database.Database, path: string) => void,
): Database.Database {
  const db = new Database(path, options)
  try {
    check(db, path)
    return db
  } catch (error) {
    db.close()
    throw error
  }
}

function configureWriter(
  db: Database.Database,
  path: string,
  durability: Durability,
): SchemaChange | undefined {
  if (db.pragma('journal_mode = WAL', { simple: true }) !== 'wal') {
    throw new ProxyError(
      'start_failed',
      `${path} is on a file system that cannot share memory, as network drives are: use a local disk`,
    )
  }
  db.pragma(`synchronous = ${durability === 'power' ? 'FULL' : 'NORMAL'}`)
  // On macOS fsync leaves the data in the drive's cache; on other systems this has no effect.
  if (durability === 'power') db.pragma('fullfsync = ON')
  // The writer checkpoints between commits (see writer.ts), never within one.
  db.pragma('wal_autocheckpoint = 0')
  db.pragma(`journal_size_limit = ${MAX_IDLE_WAL_BYTES}`)
  db.pragma(`cache_size = -${CACHE_KIB}`)
  rejectDamaged(db, path)
  const migrated = migrate(db, path)
  // Only this process writes, so open turns are left over from a crash.
  db.exec(CLOSE_OPEN_TURNS)
  return migrated
}

/** Rejects a database whose pages are not valid. SQLite has no checksums of their content. */
function rejectDamaged(db: Database.Database, path: string): void {
  const bytes = db.prepare<[], number>(
    'SELECT page_count * page_size FROM pragma_page_count, pragma_page_size',
  )
  if (bytes.pluck().get()! > MAX_CHECKED_BYTES) return
  const found = db.pragma('quick_check(1)', { simple: true })
  if (found === 'ok') return
  throw new ProxyError(
    'start_failed',
    `${path} is damaged (${found}): restore a backup of it, or name another file`,
  )
}

/** Interrupts open turns, in one transaction, because sessions count their turns by status. */
const CLOSE_OPEN_TURNS = `
BEGIN IMMEDIATE;
UPDATE sessions SET failed_turns = failed_turns + open_turns, open_turns = 0 WHERE open_turns > 0;
UPDATE turns SET status = 'interrupted' WHERE status = 'open';
COMMIT;`

function makeFolder(path: string): void {
  const folder = dirname(path)
  try {
    mkdirSync(folder, { recursive: true })
  } catch (cause) {
    const message = `the folder ${folder} cannot be created: ${(cause as Error).message}`
    throw new ProxyError('start_failed', message, { cause })
  }
}

function explainError<T>(path: string, open: () => T): T {
  try {
    return open()
  } catch (error) {
    throw createOpeningError(path, error)
  }
}

/** Returns the error for a database that cannot be opened, with a remedy. */
export function createOpeningError(path: string, error: unknown): ProxyError {
  return error instanceof ProxyError
    ? error
    : new ProxyError('start_failed', explain(path, error), { cause: error })
}

function explain(path: string, error: unknown): string {
  const code = error instanceof Database.SqliteError ? error.code : ''
  const advice = ADVICE.find(([codes]) => codes.test(code))?.[1]
  return `${path} ${advice ?? `cannot be opened: ${error instanceof Error ? error.message : error}`}`
}

const ADVICE: readonly [codes: RegExp, advice: string][] = [
  [/^SQLITE_NOTADB/, 'is not a database: name another file, or restore a backup of it'],
  [/^SQLITE_CORRUPT/, 'is damaged: restore a backup of it, or name another file'],
  [/^SQLITE_BUSY/, "is locked by another program: end that program's transaction"],
  [/^SQLITE_FULL/, 'cannot be written, because its disk is full: free some space'],
  [
    /^SQLITE_(CANTOPEN|READONLY|PERM)/,
    'cannot be opened: it must be a file that exists or can be created, with write permission on its folder',
  ],
]
