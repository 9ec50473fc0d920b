/** Effects of administrators and pools on a database that nodes use: failovers, locks, isolation levels, PgBouncer. */
import { spawnSync } from 'node:child_process'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { connect as connectNode } from '../../src/proxy/store/postgres/connection.ts'
import { openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { ReaderPool } from '../../src/proxy/store/postgres/reader-pool.ts'
import {
  anOutcome,
  aTurn,
  createSession,
  getTurns,
  HI,
  record as recordTurn,
} from '../conformance/turn-store.ts'
import { killChild, startChild } from '../helpers/children.ts'
import { DatabaseLink } from '../helpers/database-link.ts'
import { freePort } from '../helpers/free-port.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

async function open(t: Test, url: string): Promise<TurnStore> {
  const store = await openPostgresStore({ url, durability: 'power' })
  t.teardown(() => store.close())
  return store
}

async function record(store: TurnStore, sessionId: string, turnId: string, index: number): Promise<void> {
  store.openTurn(aTurn(turnId, { sessionId, index })).catch(() => {})
  await store.closeTurn(anOutcome(turnId, { sessionId }))
}

async function connect(t: Test, url: string): Promise<pg.Client> {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  return client
}

const AN_IMAGE = JSON.stringify({
  role: 'user',
  content: `data:image/png;base64,${Buffer.alloc(1_500, 'x').toString('base64')}`,
})

if (noPostgres !== false) {
  t.pass('left out', { skip: noPostgres })
} else {
  const server = await PostgresServer.start({ fsync: 'on' })
  t.teardown(() => server.end())

  t.test(
    'a node that connected to a standby after a failover returns to the primary by itself',
    async (t) => {
      const db = new URL(await server.newDatabase())
      const standby = await server.startStandby()
      t.teardown(() => standby.end())
      const link = new DatabaseLink(server.port)
      db.port = String(await link.open())
      t.teardown(() => link.close())
      const store = await open(t, db.href)
      await store.createSession(createSession('s'))
      await record(store, 's', 'before', 0)
      await store.check()
      link.redirect(standby.port)
      link.cut()
      await t.rejects(store.shared!.readOwner('s'), { code: 'store_failed' })
      let isHealthy = false
      const checked = store.check().then(() => {
        isHealthy = true
      })
      const recorded = record(store, 's', 'during', 1)
      await delay(2_000)
      t.notOk(isHealthy, 'a probe waits for the primary: /health is 503 after 0.8 s')
      link.redirect(server.port)
      await t.resolves(checked)
      await t.resolves(recorded, 'the name resolves to the primary again, and the turn is recorded')
      await record(store, 's', 'after', 2)
      await t.rejects(openPostgresStore({ url: standby.url(db.pathname.slice(1)), durability: 'power' }), {
        code: 'start_failed',
        message: /rejects writes: name the primary/,
      })
    },
  )

  for (const level of IS_FULL ? ['repeatable read', 'serializable'] : ['serializable']) {
    t.test(`the default isolation of the database may be ${level}`, async (t) => {
      const url = await server.newDatabase()
      const name = new URL(url).pathname.slice(1)
      await server.query(`ALTER DATABASE ${name} SET default_transaction_isolation = '${level}'`)
      const stores = [await open(t, url), await open(t, url)]
      const untilMs = performance.now() + 3_000
      const write = async (store: TurnStore, writer: number) => {
        await store.createSession(createSession(`s${writer}`))
        for (let index = 0; performance.now() < untilMs; index += 1)
          await record(store, `s${writer}`, `t${writer}-${index}`, index)
      }
      await t.resolves(Promise.all([0, 1, 2, 3].map((writer) => write(stores[writer % 2]!, writer))))
    })
  }

  t.test('time limits that a database sets for its clients do not apply to a node', async (t) => {
    const url = await server.newDatabase()
    const store = await open(t, url)
    await store.createSession(createSession('s'))
    const name = new URL(url).pathname.slice(1)
    const limits = ['statement', 'lock', 'idle_in_transaction_session', 'idle_session']
    for (const limit of limits) await server.query(`ALTER DATABASE ${name} SET ${limit}_timeout = '1s'`)
    const node = await connectNode(url)
    t.teardown(() => node.end())
    await t.resolves(node.query('SELECT pg_sleep(1.2)'))
    const { rows } = await node.query<Record<string, string>>(
      `SELECT ${limits.map((limit) => `current_setting('${limit}_timeout') AS ${limit}`)}`,
    )
    t.strictSame(rows, [Object.fromEntries(limits.map((limit) => [limit, '0']))])
    const limited = await connectNode(url, { timeoutMs: 2_500 })
    t.teardown(() => limited.end())
    const { rows: shown } = await limited.query('SHOW statement_timeout')
    t.strictSame(shown, [{ statement_timeout: '2s' }], 'its own limit applies')
  })

  for (const [title, count] of [
    ['four million', 2 ** 22],
    ['two million', 2 ** 21],
  ] as const) {
    t.test(`messages and images are readable after ${title} rows of a node`, async (t) => {
      const url = await server.newDatabase()
      await (await openPostgresStore({ url, durability: 'power' })).close()
      const ids = { trees: 1, sessions: 1, texts: count, nodes: count, turns: count, others: count }
      await server.query(
        `UPDATE llm_proxy.proxies SET next_ids = '${JSON.stringify(ids)}'`,
        new URL(url).pathname.slice(1),
      )
      const store = await open(t, url)
      await store.createSession(createSession('s'))
      const requestMessages = [AN_IMAGE, ...HI]
      await recordTurn(store, aTurn('t', { requestMessages }))
      t.strictSame(
        (await getTurns(store)).map((turn) => turn.requestMessages),
        [requestMessages],
      )
    })
  }

  t.test('images of a deleted session are removed even if their removal fails at first', async (t) => {
    const url = await server.newDatabase()
    const store = await open(t, url)
    const client = await connect(t, url)
    await store.createSession(createSession('s'))
    await recordTurn(store, aTurn('t', { requestMessages: [AN_IMAGE] }))
    await client.query(`
      CREATE SEQUENCE failures;
      CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN PERFORM nextval('failures'); RAISE 'no space left'; END $$;
      CREATE TRIGGER failing BEFORE DELETE ON llm_proxy.blobs EXECUTE FUNCTION fail()`)
    await store.deleteSession('s')
    const count = async (sql: string) => (await client.query<{ count: string }>(sql)).rows[0]?.count
    await until(
      async () => (await count('SELECT last_value AS count FROM failures WHERE is_called')) !== undefined,
    )
    await client.query('DROP TRIGGER failing ON llm_proxy.blobs')
    await until(async () => (await count('SELECT count(*) FROM llm_proxy.trees')) === '0')
    t.equal(await count('SELECT count(*) FROM llm_proxy.blobs'), '0')
  })

  t.test('requests continue after the server has ended all connections of a node', async (t) => {
    const url = await server.newDatabase()
    const name = new URL(url).pathname.slice(1)
    const store = await open(t, url)
    await store.createSession(createSession('s'))
    await record(store, 's', 't0', 0)
    await Promise.all(Array.from({ length: 8 }, () => store.getSession('s')))
    await server.query(
      `SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = '${name}'`,
    )
    await t.resolves(store.getSession('s'), 'a read')
    await t.resolves(store.shared!.readOwner('s'), 'a lookup of the owner')
    await t.resolves(record(store, 's', 't1', 1), 'a write')
  })

  t.test('a connection that was lost without a packet is replaced', async (t) => {
    const link = new DatabaseLink(server.port)
    const port = await link.open()
    const name = new URL(await server.newDatabase()).pathname.slice(1)
    const store = await openPostgresStore({ url: server.url(name, port), durability: 'power' })
    const readers = new ReaderPool(() => connectNode(server.url(name, port), { timeoutMs: 1_000 }), 1)
    t.teardown(async () => {
      await Promise.all([store.close(), readers.close()])
      link.close()
    })
    await store.createSession(createSession('s'))
    await readers.run((client) => client.query('SELECT 1'))
    link.lose()
    const read = readers.run((client) => client.query('SELECT 1'))
    await t.resolves(record(store, 's', 't0', 0), 'the group is sent again')
    await t.resolves(read, 'a read is repeated')
    await t.resolves(record(store, 's', 't1', 1))
    t.match(await store.getSession('s'), { turnCount: 2, openTurns: 0 }, 'each is recorded once')
  })

  t.test('a session that is used while another node removes it remains', async (t) => {
    const url = await server.newDatabase()
    const [one, other] = [await open(t, url), await open(t, url)]
    const expired = createSession('s', { createdAtMs: Date.now() - 60_000, ttlMs: 1_000, isOwn: true })
    const { epoch } = await one.createSession(expired)
    await other.createSession({ ...expired, sessionId: 'unused' })
    const locker = await connect(t, url)
    const countWaiting = async () => {
      const sql = "SELECT count(*)::int AS count FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
      return (await server.query(sql, new URL(url).pathname.slice(1)))[0]!.count
    }
    await locker.query('BEGIN; SELECT FROM llm_proxy.sessions FOR UPDATE')
    const opened = one.openTurn(aTurn('t', { sessionId: 's', index: 0, epoch, startedAtMs: Date.now() }))
    await until(async () => (await countWaiting()) === 1)
    const swept = other.sweep(Date.now())
    await until(async () => (await countWaiting()) === 2)
    await locker.query('COMMIT')
    await opened
    t.strictSame(await swept, ['unused'])
    await one.closeTurn({ ...anOutcome('t', { sessionId: 's' }), epoch })
    t.match(await other.getSession('s'), { turnCount: 1 })
  })

  t.test('the view of sessions shows metadata with characters that jsonb rejects', async (t) => {
    const url = await server.newDatabase()
    const store = await open(t, url)
    const metadata = { nul: 'a\u0000b', half: 'a\ud800b', plain: 'a\\u0000 é 😀' }
    await store.createSession(createSession('s', { metadata }))
    t.strictSame((await store.getSession('s'))!.metadata, metadata)
    const rows = await server.query(
      'SELECT metadata FROM llm_proxy.session_list',
      new URL(url).pathname.slice(1),
    )
    t.match(rows, [{ metadata: { nul: 'a\ufffdb', half: 'a\ufffdb' } }])
  })

  t.test('the loss of one connection does not end the lease of a node that runs', async (t) => {
    const url = await server.newDatabase()
    const name = new URL(url).pathname.slice(1)
    const one = await open(t, url)
    const { id } = one.shared!.self!
    // The writer's connection is the first that a node opens.
    await server.query(
      `SELECT pg_terminate_backend(pid, 10000) FROM
         (SELECT pid FROM pg_stat_activity WHERE datname = '${name}' ORDER BY backend_start LIMIT 1) AS writer`,
    )
    await open(t, url)
    const rows = await server.query(`SELECT ended::int FROM llm_proxy.proxies WHERE id = ${id}`, name)
    t.strictSame(rows, [{ ended: 0 }])
  })

  t.test('a locked table blocks requests, but connections do not accumulate', async (t) => {
    const url = await server.newDatabase()
    const name = new URL(url).pathname.slice(1)
    const store = await open(t, url)
    await store.createSession(createSession('s'))
    const client = await connect(t, url)
    const count = async () => {
      const [row] = await server.query(
        `SELECT count(*)::int AS count FROM pg_stat_activity WHERE datname = '${name}'`,
      )
      return row!.count as number
    }
    const before = await count()
    await client.query('BEGIN; LOCK TABLE llm_proxy.proxies IN ACCESS EXCLUSIVE MODE')
    let most = 0
    for (let second = 0; second < 14; second += 1) {
      await delay(1_000)
      most = Math.max(most, await count())
    }
    t.ok(most <= before + 1, `${most} connections while the table is locked, ${before} before`)
    await client.query('COMMIT')
    await t.resolves(record(store, 's', 't', 0))
  })

  t.test('a setting whose commit takes long is still applied', async (t) => {
    const url = await server.newDatabase()
    const name = new URL(url).pathname.slice(1)
    const [one, other] = [await open(t, url), await open(t, url)]
    const followed: Record<string, unknown>[] = [{}, {}]
    for (const [index, store] of [one, other].entries())
      store.shared!.followControls(async ({ name, value }) => {
        followed[index]![name] = value
      })
    await one.shared!.setControl('weight_version', 'v1')
    const client = await connect(t, url)
    await client.query("BEGIN; SELECT 1 FROM llm_proxy.controls WHERE name = 'weight_version' FOR UPDATE")
    const areBlocked = async (count: number) => {
      const blocked = `SELECT FROM pg_stat_activity WHERE datname = '${name}' AND wait_event_type = 'Lock'`
      return (await server.query(blocked)).length >= count
    }
    const set = one.shared!.setControl('weight_version', 'v2')
    await until(() => areBlocked(1))
    const setBeside = other.shared!.setControl('paused', true)
    // Without a common lock it would commit first, and the nodes would miss the change before it.
    const isApplied = () => followed.every(({ paused }) => paused === true)
    await until(async () => isApplied() || (await areBlocked(2)))
    await client.query('COMMIT')
    await Promise.all([set, setBeside])
    await until(() =>
      followed.every(({ weight_version: version, paused }) => version === 'v2' && paused === true),
    )
    t.pass('both nodes follow both')
  })

  const pgbouncer = ['pgbouncer', '/usr/sbin/pgbouncer'].find((name) => {
    return spawnSync(name, ['--version']).status === 0
  })
  const skip = pgbouncer === undefined && 'there is no PgBouncer here (pgbouncer of Debian)'
  for (const mode of ['session', 'transaction']) {
    t.test(
      `PgBouncer in ${mode} mode is ${mode === 'session' ? 'supported' : 'rejected'}`,
      { skip },
      async (t) => {
        const db = new URL(await server.newDatabase())
        const port = await freePort()
        const folder = t.testdir({
          'pgbouncer.ini': [
            '[databases]',
            `* = host=127.0.0.1 port=${server.port} user=proxy`,
            '[pgbouncer]',
            ...['listen_addr = 127.0.0.1', `listen_port = ${port}`, 'unix_socket_dir =', 'auth_type = any'],
            ...[`pool_mode = ${mode}`, 'max_client_conn = 100', 'default_pool_size = 20'],
          ].join('\n'),
        })
        // PgBouncer does not run as root.
        const user = process.getuid?.() === 0 ? ['-u', 'postgres'] : []
        const child = startChild(pgbouncer!, [...user, `${folder}/pgbouncer.ini`])
        t.teardown(() => killChild(child))
        db.port = String(port)
        await until(async () => {
          const client = new pg.Client(db.href)
          return client.connect().then(
            () => client.end().then(() => true),
            () => false,
          )
        })
        if (mode !== 'session') {
          await t.rejects(openPostgresStore({ url: db.href, durability: 'power' }), {
            code: 'start_failed',
            message: /shares sessions among clients: set its pool_mode to session/,
          })
          return
        }
        const store = await open(t, db.href)
        await store.createSession(createSession('s'))
        for (let index = 0; index < 20; index += 1) await record(store, 's', `t${index}`, index)
        const turns = await Array.fromAsync(store.readTurns('s'))
        t.equal(turns.length, 20)
      },
    )
  }
}
