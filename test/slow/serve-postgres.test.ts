/** The proxy with a PostgreSQL database, as users run it. */
import { once } from 'node:events'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import OpenAI from 'openai'
import t from 'tap'
import { TOKEN_DATA_KINDS } from '../../src/protocol/token-data/kinds.ts'
import { packTokenData } from '../../src/protocol/token-data/token-data.ts'
import type { TurnReader, TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { openPostgresReader, openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { openSqliteReader, openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { createConsumer } from '../conformance/consumers.ts'
import { anOutcome, aTurn, createSession, getTurns } from '../conformance/turn-store.ts'
import { killChild, waitForOutput } from '../helpers/children.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { getDetails } from '../helpers/reported-details.ts'
import { IS_FULL } from '../helpers/tier.ts'

const REQUESTS = IS_FULL ? 200 : 60
const CONCURRENCY = 8
/** The server accepts any password; the test checks that none is printed. */
const PASSWORD = 'not-to-be-shown'

if (noPostgres !== false) {
  t.pass('left out', { skip: noPostgres })
} else {
  const server = await PostgresServer.start({ fsync: 'on' })
  t.teardown(() => server.end())
  const url = (await server.newDatabase()).replace('proxy@', `proxy:${PASSWORD}@`)
  const env = { DATABASE_URL: url }

  async function serve() {
    const child = startLlmProxy(['serve', '--engine-kind', 'embedded', '--port', '0'], { env })
    const [line] = await waitForOutput(child.stdout, /.*http:\/\/[\d.]+:\d+.*/)
    t.teardown(() => killChild(child))
    return { child, line, proxy: /http:\/\/[\d.]+:\d+/.exec(line)![0] }
  }

  t.test(`${REQUESTS} acknowledged requests, then SIGKILL: all of them are in the database`, async (t) => {
    const { child, line, proxy } = await serve()
    t.match(line, /db postgres:\/\/proxy@127\.0\.0\.1:\d+\/test_1/)
    const acknowledged = new Map<string, string>()
    let requestCount = 0
    const agent = async (_: unknown, index: number) => {
      const openai = new OpenAI({ baseURL: `${proxy}/s${index}/v1`, apiKey: 'none', maxRetries: 0 })
      const messages = [{ role: 'user' as const, content: 'Tell me something.' }]
      while (requestCount++ < REQUESTS) {
        const { id, choices } = await openai.chat.completions.create({ model: 'm', messages, max_tokens: 12 })
        acknowledged.set(id.replace('chatcmpl-', ''), choices[0]!.message.content ?? '')
      }
    }
    await Promise.all(Array.from({ length: CONCURRENCY }, agent))
    child.kill('SIGKILL')
    await once(child, 'exit')
    const reader = await openPostgresReader(url)
    t.teardown(() => reader.close())
    const found = new Map<string, string | null>()
    const { sessions } = await reader.listSessions({ limit: 100 })
    for (const { sessionId } of sessions) {
      for await (const { turnId, completionText } of reader.readTurns(sessionId))
        found.set(turnId, completionText)
    }
    t.equal(acknowledged.size, REQUESTS)
    t.strictSame(
      [...acknowledged].filter(([id, text]) => !found.has(id) || (found.get(id) ?? '') !== text),
      [],
    )
  })

  t.test(
    'a second start continues with the recorded turns, and its trajectories are trainable',
    async (t) => {
      const { child, proxy } = await serve()
      const response = await fetch(`${proxy}/sessions/s0/trajectories?select=all`)
      t.equal(response.status, 200)
      const { trajectories } = (await response.json()) as { trajectories: { response_ids: number[] }[] }
      t.ok(trajectories.length > 0 && trajectories.every((row) => row.response_ids.length > 0))
      const health = (await (await fetch(`${proxy}/health`)).json()) as { db?: string; database?: object }
      t.match(health.database, {
        server: /^\d+/,
        fsync: 'on',
        full_page_writes: 'on',
        synchronous_commit: 'on',
      })
      t.notMatch(JSON.stringify(health), PASSWORD)
      child.kill('SIGTERM')
      t.strictSame(await once(child, 'exit'), [0, null])
    },
  )

  t.test("the commands read the database, and doctor reports the server's durability", async (t) => {
    const list = await runLlmProxy(['sessions', 'list'], { env })
    t.equal(list.code, 0, list.stderr)
    t.match(list.stdout, /\bs0\b/)
    const shown = await runLlmProxy(['sessions', 'show', 's0'], { env })
    t.equal(shown.code, 0, shown.stderr)
    const doctor = await runLlmProxy(['doctor', '--engine-kind', 'embedded', '--port', '0'], { env })
    t.match(doctor.stdout, /PostgreSQL \d+.*, fsync on, synchronous_commit on, no synchronous standby/)
    for (const { stdout, stderr } of [list, shown, doctor]) t.notMatch(stdout + stderr, PASSWORD)
    const unknown = await runLlmProxy(['serve', '--db', 'mysql://localhost/x'])
    t.equal(unknown.code, 1)
    t.match(unknown.stderr, /--db: unsupported scheme "mysql": use a file path or postgres:\/\/…/)
  })

  t.test('people read the views, with a read-only role', async (t) => {
    const database = new URL(url).pathname.slice(1)
    await server.query('CREATE ROLE reader LOGIN', database)
    await server.query('GRANT USAGE ON SCHEMA llm_proxy TO reader', database)
    await server.query('GRANT SELECT ON llm_proxy.session_list, llm_proxy.turn_list TO reader', database)
    const sendRequest = (sql: string) => server.query(`SET ROLE reader; ${sql}`, database)
    await sendRequest('SELECT sum(turn_count) FROM llm_proxy.session_list')
    await t.rejects(sendRequest('SELECT * FROM llm_proxy.turns'), { message: /permission denied/ })
    const [turn] = await server.query(
      "SELECT * FROM llm_proxy.turn_list WHERE status = 'completed' LIMIT 1",
      database,
    )
    t.match(turn, { session_id: /^s\d$/, dialect: 'chat', exact: true })
  })

  t.test(
    'sessions of a file are imported completely: rows train as before, and a second import changes nothing',
    async (t) => {
      const path = join(t.testdir(), 'old.db')
      const old = await openSqliteStore({ path, durability: 'process' })
      await fillStore(old)
      // As an earlier release stored 1800 * 1.1 seconds.
      await old.createSession(createSession('fraction', { ttlMs: 1_980_000 }))
      await old.createConsumer(createConsumer())
      await old.putSessionStates('s', [
        { consumer: 'trainer', leaseId: 'l', leasedUntilMs: null, deliveries: 1 },
      ])
      await old.close()
      const file = new Database(path)
      file.exec("UPDATE sessions SET ttl_ms = 1980000.0000000002 WHERE session_id = 'fraction'")
      file.close()
      // Opening a database marks turns that were in flight as interrupted.
      await (await openSqliteStore({ path, durability: 'process' })).close()
      const target = await server.newDatabase()
      // A killed import left a part of it.
      const partial = await openPostgresStore({ url: target, durability: 'process' })
      await partial.createSession(createSession('s'))
      await partial.openTurn(aTurn('t0'))
      await partial.close()
      const running = await openPostgresStore({ url: target, durability: 'process', name: 'elsewhere' })
      const rejected = await runLlmProxy(['sessions', 'import', path, '--db', target])
      t.equal(rejected.code, 1)
      t.match(rejected.stderr, /is in use by elsewhere: stop these proxies, then run the command again/)
      const undeleted = await runLlmProxy(['sessions', 'delete', 's', '--db', target])
      t.match(undeleted, {
        code: 1,
        stderr: /is in use by elsewhere: stop it, or name it with --url instead of --db\n$/,
      })
      await running.close()
      for (const [counts, consumers, rest] of [
        [
          '2 more sessions, with 1 turns',
          '1 new, 1',
          '1 sessions were completed that an interrupted import left',
        ],
        ['0 more sessions, with 0 turns', '0 new, 1', '3 sessions existed already and were not changed\n'],
      ] as const) {
        const done = await runLlmProxy(['sessions', 'import', path, '--db', target])
        t.equal(done.code, 0, done.stderr)
        const first = `${target} has ${counts}; consumers: ${consumers} with their acknowledgements\n`
        t.ok(done.stdout.startsWith(`${first}${rest}`), done.stdout)
      }
      const [before, after] = [await openSqliteReader(path), await openPostgresReader(target)]
      t.teardown(() => Promise.all([before.close(), after.close()]))
      for (const sessionId of ['s', 'other']) {
        t.strictSame(await after.getSession(sessionId), await before.getSession(sessionId))
        t.strictSame(await getTurns(after, sessionId), await getTurns(before, sessionId))
        const details = (reader: TurnReader) => reader.readDetails(sessionId, ['t0', 't1'], TOKEN_DATA_KINDS)
        t.strictSame(await details(after), await details(before))
      }
      t.equal((await after.getSession('fraction'))?.ttlMs, 1_980_000, 'PostgreSQL has whole milliseconds')
      t.strictSame(await after.listSessionStates('s'), await before.listSessionStates('s'))
      t.match(await after.countForConsumer('trainer', 0), { available: 0, acknowledged: 1 })
      const deleted = await runLlmProxy(['sessions', 'delete', 's', '--db', target])
      t.match(deleted, { code: 0, stdout: 's: deleted\n', stderr: '' })
      t.equal(await after.getSession('s'), undefined)
    },
  )
}

/** Records turns with each outcome, one with details. */
async function fillStore(store: TurnStore): Promise<void> {
  const messages = ['{"role":"user","content":"one"}', '{"role":"assistant","content":"\\u0000 and \ud800"}']
  await store.createSession(createSession('s', { metadata: { task: 'django' }, ttlMs: 5_000, keyTag: 'tag' }))
  await store.openTurn(aTurn('t0', { index: 0, requestMessages: messages.slice(0, 1) }))
  const promptTokenIds = Int32Array.from({ length: 40 }, (_, index) => index)
  const details = packTokenData(getDetails([...promptTokenIds], [4, 5]))
  await store.closeTurn({ ...anOutcome('t0', { promptTokenIds, completionText: 'and \u0000' }), details })
  await store.openTurn(aTurn('t1', { index: 1, requestMessages: messages }))
  const longer = Int32Array.of(...promptTokenIds, 4, 5, 6)
  await store.closeTurn(
    anOutcome('t1', { promptTokenIds: longer, completionLogprobs: Float64Array.of(-0, Number.NaN) }),
  )
  await store.openTurn(aTurn('t2', { index: 2 }))
  await store.closeTurn(
    anOutcome('t2', { status: 'failed', error: { code: 'engine_error', message: 'gone' } }),
  )
  await store.openTurn(aTurn('t3', { index: 5 }))
  await store.endSession('s', 'completed', 4_000)
  await store.setReward('s', { reward: 0.1, components: { tests: 1 } }, 4_500)
  await store.changeMarks('s', { labels: ['cheat'], turns: { 1: { note: 'here' } } }, 4_600)
  await store.createSession(createSession('other', { createdAtMs: 2_000 }))
  await store.openTurn(aTurn('t0', { sessionId: 'other' }))
}
