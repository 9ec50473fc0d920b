/**
 * A lock that admits a single writing process to a file: a database, or the rows of a rollout. Two proxies would each
 * treat the open turns of the other as left over from a crash. The database itself cannot be locked for the lifetime of
 * a process, because that would exclude readers. The lock is therefore a transaction on an empty database beside it,
 * which the operating system ends with the process, even after a crash. The lock database contains the pid of the last
 * process that acquired the lock, until that process shuts down cleanly.
 */
import { realpathSync } from 'node:fs'
import Database from 'better-sqlite3'
import { ProxyError } from '../../../base/errors.ts'
import { createOwnerOnly } from './database-files.ts'

/** The value in place of a pid after a clean shutdown. */
const ENDED_WELL = -1

export interface WriterLock {
  /** Whether the previous owner shut down cleanly. */
  readonly endedWell: boolean
  /** Releases the lock. @param endsWell whether this process shuts down cleanly; default: as the previous owner did */
  unlock(endsWell?: boolean): void
}

/**
 * Acquires the lock. The file `<path>.lock` is never removed.
 * @throws ProxyError `start_failed` naming the process that has it
 */
export function lockForWriting(path: string): WriterLock {
  const lockPath = `${realpathSync(path)}.lock`
  createOwnerOnly(lockPath)
  const lock = new Database(lockPath, { timeout: 0 })
  try {
    lock.pragma('journal_mode = MEMORY')
    const endedWell = lock.pragma('user_version', { simple: true }) === ENDED_WELL
    lock.pragma(`user_version = ${process.pid}`)
    lock.exec('BEGIN IMMEDIATE')
    const unlock = (endsWell = endedWell) => {
      try {
        if (endsWell) lock.exec(`PRAGMA user_version = ${ENDED_WELL}; COMMIT`)
      } finally {
        lock.close()
      }
    }
    return { endedWell, unlock }
  } catch (cause) {
    const busy = cause instanceof Database.SqliteError && cause.code.startsWith('SQLITE_BUSY')
    const message = busy
      ? describeOwner(path, lock)
      : `${lockPath} cannot be locked: ${(cause as Error).message}`
    lock.close()
    throw new ProxyError('start_failed', message, { cause })
  }
}

/**
 * Returns an error message that names the process with the lock. Each process writes its pid before it acquires the
 * lock.
 */
function describeOwner(path: string, lock: Database.Database): string {
  const pid = lock.pragma('user_version', { simple: true })
  return `${path} is in use by another llm-proxy (process ${pid}): stop that one, or name another file`
}
