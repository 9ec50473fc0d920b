/**
 * One process per file that is written: a database, or the rows of a rollout. Two proxies would each think that the other's
 * open turns were left by a crash. The database itself cannot be locked for the life of a process, because readers would be
 * locked out with it; so the lock is a transaction on an empty database beside it, which the operating system ends when
 * the process dies, however it dies.
 */
import { realpathSync } from 'node:fs'
import Database from 'better-sqlite3'
import { ProxyError } from '../../../base/errors.ts'
import { createOwnerOnly } from './database-files.ts'

/**
 * Takes the lock; the file `<path>.lock` stays.
 * @returns frees it
 * @throws ProxyError `start_failed` naming the process that has it
 */
export function lockForWriting(path: string): () => void {
  const lockPath = `${realpathSync(path)}.lock`
  createOwnerOnly(lockPath)
  const lock = new Database(lockPath, { timeout: 0 })
  try {
    lock.pragma('journal_mode = MEMORY')
    lock.pragma(`user_version = ${process.pid}`)
    lock.exec('BEGIN IMMEDIATE')
    return () => lock.close()
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
