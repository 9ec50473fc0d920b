/** Copies a database while a proxy uses it. */
import { closeSync, fsyncSync, openSync } from 'node:fs'
import Database from 'better-sqlite3'
import { ProxyError } from '../../../base/errors.ts'
import { createOpeningError, openForReading } from './database.ts'
import { createOwnerOnly } from './database-files.ts'
import { checkOwner } from './schema.ts'

export interface CopyCounts {
  sessions: number
  turns: number
}

/**
 * Copies a database as of one moment into `to`, and verifies and syncs the copy. `VACUUM INTO` reads in one
 * transaction; SQLite's backup API restarts with each commit of another process and never finishes beside a busy proxy.
 * @param to a file that does not exist yet; only its owner can read it
 * @throws ProxyError `start_failed`
 */
export function copyDatabase(from: string, to: string): CopyCounts {
  const source = openForReading(from, checkOwner)
  try {
    if (checkOwner(source, from) === 0) throw new ProxyError('start_failed', `${from} is empty`)
    createOwnerOnly(to)
    source.prepare('VACUUM INTO ?').run(to)
    return verifyCopy(to, source.pragma('user_version', { simple: true }))
  } catch (error) {
    const isOfSource = error instanceof Database.SqliteError && /^SQLITE_(CORRUPT|NOTADB)/.test(error.code)
    throw createOpeningError(isOfSource ? from : to, error)
  } finally {
    source.close()
  }
}

/** Syncs and verifies a copy. @throws ProxyError `start_failed` if one of its pages or its schema version is wrong */
function verifyCopy(path: string, version: unknown): CopyCounts {
  sync(path)
  const copy = new Database(path, { readonly: true })
  try {
    const found = copy.pragma('integrity_check(1)', { simple: true })
    if (found !== 'ok' || copy.pragma('user_version', { simple: true }) !== version)
      throw new ProxyError('start_failed', `the copy ${path} is damaged (${found}): check the disk`)
    const count = (table: string) => copy.prepare<[], number>(`SELECT count(*) FROM ${table}`).pluck().get()!
    return { sessions: count('sessions'), turns: count('turns') }
  } finally {
    copy.close()
  }
}

function sync(path: string): void {
  const file = openSync(path, 'r+')
  try {
    fsyncSync(file)
  } finally {
    closeSync(file)
  }
}
