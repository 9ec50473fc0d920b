/** `/health` while the database does not respond: load balancers and Kubernetes give a probe one second. */
import { once } from 'node:events'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { Client } from 'pg'
import t, { type Test } from 'tap'
import { killChild, waitForOutput } from '../helpers/children.ts'
import { DatabaseLink } from '../helpers/database-link.ts'
import { startLlmProxy } from '../helpers/llm-proxy.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

const BODY = JSON.stringify({ messages: [{ role: 'user', content: 'hi' }], max_tokens: 2 })

/** Serves in a separate process, because the tests' in-process store would block their event loop. */
async function start(t: Test, env: Record<string, string>, flags: readonly string[] = []) {
  const child = startLlmProxy(['serve', '--port', '0', '--log-level', 'error', ...flags], { env })
  t.teardown(() => killChild(child))
  const [, url] = await waitForOutput(child.stdout, /listening on (http:\S+)/)
  t.equal((await send(url!)).status, 200)
  return { child, url: url! }
}

function send(url: string): Promise<Response> {
  const headers = { 'content-type': 'application/json' }
  return fetch(`${url}/s/v1/chat/completions`, { method: 'POST', headers, body: BODY })
}

/** @returns undefined if the response takes more than a second */
async function probe(url: string, path = '/health'): Promise<number | undefined> {
  const response = fetch(`${url}${path}`, { signal: AbortSignal.timeout(1_000) })
  return response.then(
    ({ status }) => status,
    () => undefined,
  )
}

/**
 * Blocks the database until a request has failed, and probes meanwhile. A busy machine may delay a probe, a blocked
 * database would delay all of them.
 */
async function probeWhileBlocked(t: Test, url: string, unblock: () => void): Promise<void> {
  const failed = send(url)
  let isOver = false
  void failed.finally(() => {
    isOver = true
  })
  let [inTime, late] = [0, 0]
  while (!isOver) {
    if ((await probe(url)) === undefined) late += 1
    else inTime += 1
  }
  t.ok(inTime > late, `${inTime} probes had a response within a second, ${late} had none`)
  t.equal((await failed).status, 503)
  await until(async () => (await probe(url)) === 503)
  t.equal(await probe(url, '/health/live'), 200, 'a restart would not help')
  unblock()
  await until(async () => (await probe(url)) === 200)
  t.equal((await send(url)).status, 200, 'the database has recovered')
}

t.test('a SQLite file that another process has locked', { timeout: 120_000 }, async (t) => {
  const db = join(t.testdir(), 'proxy.db')
  const { url } = await start(t, { LLM_PROXY_DB: db })
  const other = new Database(db)
  t.teardown(() => other.close())
  other.exec('BEGIN IMMEDIATE')
  await probeWhileBlocked(t, url, () => other.exec('ROLLBACK'))
})

/** The test takes half a minute: statements wait for the server until their timeout. */
const skip = noPostgres || (!IS_FULL && 'runs with FULL=1')

t.test('a PostgreSQL server that does not respond', { skip, timeout: 120_000 }, async (t) => {
  const server = await PostgresServer.start({ fsync: 'on' })
  t.teardown(() => server.end())
  const link = new DatabaseLink(server.port)
  t.teardown(() => link.close())
  const port = await link.open()
  const name = new URL(await server.newDatabase()).pathname.slice(1)
  const { url } = await start(t, { DATABASE_URL: server.url(name, port) })
  link.isPaused = true
  await probeWhileBlocked(t, url, () => {
    link.isPaused = false
  })
})

/** The test takes most of a minute: the turn, the connections and the threads of the store have time to end. */
t.test(
  'a proxy that is stopped while PostgreSQL does not respond exits',
  { skip, timeout: 120_000 },
  async (t) => {
    const server = await PostgresServer.start({ fsync: 'on' })
    t.teardown(() => server.end())
    const link = new DatabaseLink(server.port)
    t.teardown(() => link.close())
    const port = await link.open()
    const direct = await server.newDatabase()
    const { child, url } = await start(
      t,
      { DATABASE_URL: server.url(new URL(direct).pathname.slice(1), port) },
      ['--shutdown-grace', '1s'],
    )
    const client = new Client({ connectionString: direct })
    await client.connect()
    t.teardown(() => client.end())
    link.isPaused = true
    const response = send(url).then(
      ({ status }) => status,
      () => 'cut',
    )
    // The server has received the commit, and the proxy waits for its reply.
    await until(async () => (await client.query('SELECT 1 FROM llm_proxy.turns')).rowCount === 2)
    const exited = once(child, 'exit')
    child.kill('SIGTERM')
    t.strictSame(await exited, [1, null])
    t.not(await response, 200, 'the turn is not acknowledged')
  },
)
