/** Opens the SQLite or PostgreSQL database that `--db` names, for reading or for changes. */
import { existsSync } from 'node:fs'
import { ProxyError } from '../base/errors.ts'
import { isPostgresUrl, toDatabaseName } from '../proxy/store/port/database-name.ts'
import type { Durability, TurnStore } from '../proxy/store/port/turn-store.ts'
import { openSqliteReader, openSqliteStore } from '../proxy/store/sqlite/open.ts'

/** Opens the database read-only; a proxy may be writing to it. @throws ProxyError `start_failed` */
export async function openDatabase(db: string) {
  if (isPostgresUrl(db)) return (await loadPostgres()).openPostgresReader(db)
  if (existsSync(db)) return openSqliteReader(db)
  throw new ProxyError('start_failed', `there is no database ${db}: name one with --db`)
}

/**
 * Opens the database to change it, and creates it if it does not exist.
 * @throws ProxyError `start_failed`, also if a proxy has it open: the proxy's caches would not match the change
 */
export async function openIdleDatabase(db: string, durability: Durability): Promise<TurnStore> {
  const store = isPostgresUrl(db)
    ? await (await loadPostgres()).openPostgresStore({ url: db, durability })
    : await openSqliteStore({ path: db, durability, servesAgents: false })
  try {
    rejectRunningProxies(store, db)
    return store
  } catch (error) {
    await store.close()
    throw error
  }
}

/**
 * Loads the code of PostgreSQL, which most commands do not need.
 * @throws ProxyError `config_invalid` if this program does not include it
 */
async function loadPostgres() {
  const { requireProduct } = await import('../included-products.ts')
  return requireProduct('postgres')
}

/**
 * Rejects a PostgreSQL database with running proxies; SQLite databases have a lock.
 * @throws ProxyError `start_failed`
 */
function rejectRunningProxies({ shared }: TurnStore, db: string): void {
  const others = shared?.proxies.filter(({ id }) => id !== shared.self?.id) ?? []
  if (others.length === 0) return
  const names = [...new Set(others.map(({ name, url }) => url ?? name))].join(', ')
  throw new ProxyError(
    'start_failed',
    `${toDatabaseName(db)} is in use by ${names}: stop these proxies, then run the command again (a proxy that crashed counts for some seconds)`,
  )
}
