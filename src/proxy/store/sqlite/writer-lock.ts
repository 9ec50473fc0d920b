/**
 * One process per file that is written: a database, or the rows of a rollout. Two proxies would each think that the other's
 * open turns were left by a crash. The database itself cannot be locked for the life of a process, because readers would be
 * locked out with it; so the lock is a transaction on an empty database beside it, which the operating system ends when
 * the process dies, however it dies. It has the number of the process that took it last, until that one has ended in order.
 */
import { realpathSync } from 'node:fs'
import Database from 'better-sqlite3'
import { ProxyError } from '../../../base/errors.ts'
import { createOwnerOnly } from './database-files.ts'

/** Instead of a process's number. */
const ENDED_WELL = -1

export interface WriterLock {
  /** Whoever had it before has ended in order. */
  readonly endedWell: boolean
  /** Frees it. @param endsWell whether this process ends in order */
  unlock(endsWell?: boolean): void
}

/**
 * Takes the lock; the file `<path>.lock` stays.
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
    const message = busy ? inUse(path, lock) : `${lockPath} cannot be locked: ${(cause as Error).message}`
    lock.close()
    throw new ProxyError('start_failed', message, { cause })
  }
}

/** Names the process that has the lock: it writes its number before it takes it. */
function inUse(path: string, lock: Database.Database): string {
  const pid = lock.pragma('user_version', { simple: true })
  return `${path} is in use by another llm-proxy (process ${pid}): stop that one, or name another file`
}
