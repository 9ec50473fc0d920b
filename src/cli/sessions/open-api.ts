import type { SessionsApi } from './api.ts'
import { databaseApi } from './database-api.ts'
import { proxyApi } from './proxy-api.ts'

/** Where to read: a running proxy, or else a database file. */
export interface SessionsSource {
  readonly url: string | undefined
  readonly db: string
  readonly adminKeys: readonly string[]
  readonly tlsCa: string | undefined
}

/** Opens the API, lends it to `use`, and closes it whatever happens. */
export async function withSessionsApi<T>(
  { url, db, adminKeys, tlsCa }: SessionsSource,
  use: (api: SessionsApi) => Promise<T>,
): Promise<T> {
  const api = url === undefined ? await databaseApi(db) : proxyApi({ url, adminKeys, tlsCa })
  try {
    return await use(api)
  } finally {
    await api.close()
  }
}
