/** Opens the database that `--db` names, whichever kind it is. */
import { existsSync } from 'node:fs'
import { ProxyError } from '../base/errors.ts'
import { isPostgresUrl, openPostgresReader } from '../proxy/store/postgres/open.ts'
import { openSqliteReader } from '../proxy/store/sqlite/open.ts'

/** Opens the database read-only; a proxy may be writing to it. @throws ProxyError `start_failed` */
export async function openDatabase(db: string) {
  if (isPostgresUrl(db)) return openPostgresReader(db)
  if (existsSync(db)) return openSqliteReader(db)
  throw new ProxyError('start_failed', `there is no database ${db}: name one with --db`)
}
