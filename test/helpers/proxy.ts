import type { Test } from 'tap'
import type { Logger } from '../../src/base/logger.ts'
import { SERVE_COMMAND, type ServerConfig } from '../../src/commands.ts'
import { type RunningServer, startServer } from '../../src/main.ts'
import { loadConfig } from '../../src/proxy/config/load.ts'
import { isPostgresUrl } from '../../src/proxy/store/port/database-name.ts'
import { startWatched } from './no-stalls.ts'
import { openSharedModel } from './shared-model.ts'
import { silentLogger } from './silent-logger.ts'
import { inProcess } from './store-in-process.ts'

// biome-ignore lint/suspicious/noExplicitAny: tests inspect responses of any shape
type Json = any

export interface TestProxy {
  url: string
  /** Returns the base URL for an OpenAI client of this session. */
  baseUrl(sessionId: string): string
  /** GETs a path of the proxy and parses the response; sends the first admin key, if there is one. */
  get(path: string): Promise<Json>
  /** POSTs JSON to a path of the proxy and parses the response. */
  post(path: string, body?: unknown): Promise<Json>
  server: RunningServer
}

/** A test, or another owner of what is started. Without `testdir` the database must be named. */
interface Host extends Pick<Test, 'teardown'> {
  testdir?: Test['testdir']
}

/**
 * Starts a proxy as `llm-proxy serve` does, on a free port, with the embedded engine and a database in the test's
 * folder by default; it stops when the test ends.
 */
export async function startProxy(
  t: Host,
  overrides: Partial<ServerConfig> = {},
  logger: Logger = silentLogger,
): Promise<TestProxy> {
  const config: ServerConfig = {
    ...loadConfig(SERVE_COMMAND, {}, {}),
    port: 0,
    // No test cuts its machine's power, and each sync of a busy disk takes time.
    durability: 'process',
    ...overrides,
    // Evaluated only without another database, because each call of testdir() empties the folder.
    db: overrides.db ?? `${t.testdir!({})}/proxy.db`,
  }
  const spawn = isPostgresUrl(config.db) ? undefined : inProcess
  const platform = { ...(spawn && { spawn }), openModel: openSharedModel(t) }
  const server = await startWatched(() => startServer(config, { logger, platform }))
  t.teardown(() => server.stop(0))
  const [adminKey] = config.adminKeys
  const key = adminKey === undefined ? {} : { authorization: `Bearer ${adminKey}` }
  const json = async (path: string, init?: RequestInit) =>
    (await fetch(server.url + path, { ...init, headers: { ...key, ...init?.headers } })).json()
  return {
    url: server.url,
    server,
    baseUrl: (sessionId) => `${server.url}/${sessionId}/v1`,
    get: (path) => json(path),
    post: (path, body = {}) =>
      json(path, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify(body),
      }),
  }
}
