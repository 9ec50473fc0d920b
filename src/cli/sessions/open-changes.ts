/** Opens the API that changes sessions: of a running proxy, or over a database. */
import { ProxyError } from '../../base/errors.ts'
import { OperatorClient, type ProxyAddress } from '../proxy-client.ts'
import type { ChangesApi } from './api.ts'

/** The target of changes: the database if `db` is set, otherwise a running proxy. */
interface ChangesTarget extends ProxyAddress {
  readonly db: string | undefined
}

const NO_PROXY = 'start it, name another one with --url, or name a database that no proxy has open with --db'

/**
 * Opens the API, passes it to `use`, and always closes it.
 * @throws ProxyError `config_invalid` or `start_failed`
 */
export async function withChangesApi<T>(
  { db, ...address }: ChangesTarget,
  use: (api: ChangesApi) => Promise<T>,
): Promise<T> {
  if (db === undefined) return use(new OperatorClient(address, NO_PROXY))
  if (address.url !== undefined)
    throw new ProxyError('config_invalid', '--url and --db exclude each other: give one of them')
  const { withDatabaseChanges } = await import('./database-changes.ts')
  return withDatabaseChanges(db, use)
}
