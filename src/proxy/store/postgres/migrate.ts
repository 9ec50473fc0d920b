/**
 * Migrates a database to the tables of this release while nodes of other releases use it. A migration that only adds
 * tables or columns (expand) leaves nodes of the previous version running. One that changes or removes what they use
 * (contract) requires that none of them runs. A release must therefore add first, and may remove one release later.
 */
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from 'pg'
import { ProxyError } from '../../../base/errors.ts'
import type { SchemaChange } from '../common/calls.ts'
import { LEASES_LOCK } from './lease.ts'
import { MIGRATIONS, type Migration, SCHEMA_VERSION } from './schema.ts'

/** `llmp` in ASCII: the advisory lock under which the schema is changed. */
const MIGRATION_LOCK = 0x6c6c6d70

/**
 * The limit on waiting for a table lock. A migration waits for all transactions that use the table, and all later ones
 * queue behind it. It stops waiting before the server checks for deadlocks (after a second), which could end a commit
 * of a node, and tries again.
 */
const LOCK_MS = 500
const RETRY_MS = 200
const PATIENCE_MS = 120_000
const LOCK_NOT_AVAILABLE = '55P03'

/** The first schema version that supports several nodes. */
const MANY_PROXIES_VERSION = 4

/**
 * Migrates the database to this version. Other nodes that start meanwhile wait for it.
 * @param migrations migrations of this release
 * @throws ProxyError `start_failed` if the database is too new for this release, or if a running node could not use the
 *   new version
 */
export async function migrate(
  client: Client,
  migrations: readonly Migration[] = MIGRATIONS,
): Promise<SchemaChange | undefined> {
  for (const sinceMs = performance.now(); ; await delay(RETRY_MS)) {
    await client.query('BEGIN')
    try {
      await client.query('SELECT pg_advisory_xact_lock($1)', [MIGRATION_LOCK])
      const migrated = await bringUpToDate(client, migrations)
      await client.query('COMMIT')
      return migrated
    } catch (error) {
      await client.query('ROLLBACK').catch(() => {})
      const isInUse = (error as { code?: unknown }).code === LOCK_NOT_AVAILABLE
      if (!isInUse || performance.now() - sinceMs > PATIENCE_MS) throw error
    }
  }
}

async function bringUpToDate(
  client: Client,
  migrations: readonly Migration[],
): Promise<SchemaChange | undefined> {
  await client.query('CREATE SCHEMA IF NOT EXISTS llm_proxy')
  await client.query('CREATE TABLE IF NOT EXISTS llm_proxy.schema_version (version bigint NOT NULL)')
  const version = await readVersion(client, migrations.length)
  if (version >= migrations.length) return undefined
  await client.query(`SET LOCAL lock_timeout = ${LOCK_MS}`)
  const oldest = migrations.findLastIndex(({ adds }) => !adds) + 1
  if (version >= MANY_PROXIES_VERSION && version < oldest) await rejectOlderProxies(client, oldest)
  for (const { sql } of migrations.slice(version)) await client.query(sql)
  await client.query('DELETE FROM llm_proxy.schema_version')
  await client.query('INSERT INTO llm_proxy.schema_version (version, oldest) VALUES ($1, $2)', [
    migrations.length,
    oldest,
  ])
  return version > 0 ? { from: version, to: migrations.length } : undefined
}

/**
 * Rejects a migration while older nodes run. The lock prevents others from starting before the migration is committed.
 */
async function rejectOlderProxies(client: Client, oldest: number): Promise<void> {
  await client.query('SELECT pg_advisory_xact_lock($1)', [LEASES_LOCK])
  // The column `schema` was added later than the table, so the query reads it through JSON.
  const { rows } = await client.query<{ name: string }>(
    `SELECT DISTINCT name FROM llm_proxy.proxies WHERE ended = 0 AND lease_until > clock_timestamp()
       AND coalesce((to_jsonb(proxies) ->> 'schema')::bigint, 0) < $1 ORDER BY name`,
    [oldest],
  )
  if (rows.length === 0) return
  throw new ProxyError(
    'start_failed',
    `an older llm-proxy that cannot use the new schema runs on ${rows.map(({ name }) => name).join(', ')}: ` +
      'stop it first, or upgrade by way of the release between the two',
  )
}

/** Checks the version for readers, which must not migrate. @throws ProxyError `start_failed` */
export async function checkSchema(client: Client): Promise<void> {
  const { rows } = await client.query<{ known: string | null }>(
    "SELECT to_regclass('llm_proxy.schema_version')::text AS known",
  )
  const version = rows[0]!.known === null ? 0 : await readVersion(client, SCHEMA_VERSION)
  if (version >= SCHEMA_VERSION) return
  throw new ProxyError(
    'start_failed',
    version === 0
      ? 'this database has no tables of llm-proxy: give the one that the proxy writes'
      : `the database has schema version ${version}, this llm-proxy reads version ${SCHEMA_VERSION}: start the proxy on it once`,
  )
}

/**
 * Returns the database's version.
 * @param known highest version that this release knows
 * @throws ProxyError `start_failed` for a version that it cannot use
 */
async function readVersion(client: Client, known: number): Promise<number> {
  const { rows } = await client.query<{ version: number; oldest?: number | null }>(
    'SELECT * FROM llm_proxy.schema_version',
  )
  const { version = 0, oldest } = rows[0] ?? {}
  if (version <= known || (oldest ?? version) <= known) return version
  throw new ProxyError(
    'start_failed',
    `the database has schema version ${version}, this llm-proxy knows versions up to ${known}: ` +
      'use the newer llm-proxy that wrote it, or another database',
  )
}
