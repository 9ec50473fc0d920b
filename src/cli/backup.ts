import { existsSync, realpathSync } from 'node:fs'
import { writeFileAtomically } from '../base/atomic-file.ts'
import { ProxyError } from '../base/errors.ts'
import type { BackupConfig } from '../proxy/config/options/backup.ts'
import { isPostgresUrl } from '../proxy/store/port/database-name.ts'
import { type CopyCounts, copyDatabase } from '../proxy/store/sqlite/backup.ts'

/** Runs `llm-proxy backup <file>`. @returns the exit code */
export async function run(config: BackupConfig, [to]: string[]): Promise<number> {
  const { sessions, turns } = await backUp(config, to!)
  process.stdout.write(`copied ${sessions} sessions with ${turns} turns to ${to}\n`)
  return 0
}

/** Copies the database to a file, atomically. @throws ProxyError `config_invalid` or `start_failed` */
export async function backUp({ db, force }: BackupConfig, to: string): Promise<CopyCounts> {
  if (isPostgresUrl(db))
    throw new ProxyError('config_invalid', '--db is a PostgreSQL database: back it up with pg_dump')
  checkTarget(db, to, force)
  let counts: CopyCounts = { sessions: 0, turns: 0 }
  await writeFileAtomically(to, async (partial) => {
    counts = copyDatabase(db, partial)
  })
  return counts
}

/**
 * Rejects an unusable target: SQLite would apply a write-ahead log beside the target to the copy, and a proxy that has
 * the target open would lose data.
 * @throws ProxyError `config_invalid`
 */
function checkTarget(db: string, to: string, force: boolean): void {
  const targetExists = existsSync(to)
  if (targetExists && existsSync(db) && realpathSync(to) === realpathSync(db))
    throw new ProxyError('config_invalid', `${to} is the database itself: name another file`)
  if (existsSync(`${to}-wal`))
    throw new ProxyError('config_invalid', `${to}-wal exists: name another file, or remove this log`)
  if (targetExists && !force)
    throw new ProxyError('config_invalid', `${to} exists: name another file, or replace it with --force`)
}
