/** How a database gets a release's tables, and which releases may use those of another one. */
import pg from 'pg'
import t from 'tap'
import { migrate } from '../../src/proxy/store/postgres/migrate.ts'
import { openPostgresReader, openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { MIGRATIONS, type Migration, SCHEMA_VERSION } from '../../src/proxy/store/postgres/schema.ts'
import { anOutcome, aTurn, createSession } from '../conformance/turn-store.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'

/** Future releases. */
const NEXT: readonly Migration[] = [
  ...MIGRATIONS,
  {
    sql: `ALTER TABLE llm_proxy.sessions ADD COLUMN mood text; ALTER TABLE llm_proxy.turns ADD COLUMN mood text DEFAULT 'fair';
      CREATE TABLE llm_proxy.moods (id bigint PRIMARY KEY); CREATE INDEX turns_by_mood ON llm_proxy.turns (mood)`,
    adds: true,
  },
]
const AFTER_NEXT: readonly Migration[] = [
  ...NEXT,
  { sql: 'ALTER TABLE llm_proxy.turns DROP COLUMN stop_reason' },
]

if (noPostgres !== false) {
  t.pass('left out', { skip: noPostgres })
} else {
  const server = await PostgresServer.start()
  t.teardown(() => server.end())

  const asRelease = async (url: string, migrations?: readonly Migration[]) => {
    const client = new pg.Client(url)
    await client.connect()
    try {
      await migrate(client, migrations)
    } finally {
      await client.end()
    }
  }

  t.test('twenty programs that start at once create one schema', async (t) => {
    const url = await server.newDatabase()
    const clients = await Promise.all(
      Array.from({ length: 20 }, async () => {
        const client = new pg.Client(url)
        await client.connect()
        return client
      }),
    )
    await Promise.all(clients.map((client) => migrate(client)))
    const { rows } = await clients[0]!.query('SELECT count(*)::int AS versions FROM llm_proxy.schema_version')
    t.strictSame(rows, [{ versions: 1 }])
    await Promise.all(clients.map((client) => client.end()))
  })

  t.test('a database of the first schema is migrated, and its rewards are correct', async (t) => {
    const url = await server.newDatabase()
    const database = new URL(url).pathname.slice(1)
    const lines = { 'subagent:critic': -0.5 }
    const old = await openPostgresStore({ url, durability: 'process' })
    await old.createSession(createSession('s'))
    await old.setReward('s', { reward: 1, components: { tests: 1 }, lines }, 2_000)
    await old.close()
    const added = ['reward_turns', 'limits', 'owner', 'epoch', 'version', 'marks', 'continue_responses'].map(
      (column) => `DROP COLUMN ${column}`,
    )
    await server.query(
      `ALTER TABLE llm_proxy.sessions ${added.join(', ')}; DROP TABLE llm_proxy.proxies, llm_proxy.controls;
       DROP SEQUENCE llm_proxy.control_changes;
       DROP TABLE llm_proxy.consumers, llm_proxy.consumer_sessions, llm_proxy.imports, llm_proxy.rollouts; DROP INDEX llm_proxy.sessions_by_end;
       CREATE TABLE llm_proxy.writer (id bigint PRIMARY KEY);
       DROP FUNCTION llm_proxy.note_unsearched() CASCADE;
       DROP TABLE llm_proxy.searched, llm_proxy.unsearched;
       DROP INDEX llm_proxy.sessions_by_tree; ALTER TABLE llm_proxy.schema_version DROP COLUMN oldest`,
      database,
    )
    await server.query('UPDATE llm_proxy.schema_version SET version = 1', database)
    await t.rejects(openPostgresReader(url), { message: /has schema version 1, this llm-proxy reads/ })
    const { logger, lines: logged } = createListingLogger()
    const store = await openPostgresStore({ url, durability: 'process', logger })
    t.match(logged, [{ event: 'schema_migrated', from: 1, to: Number }])
    t.strictSame((await store.getSession('s'))?.reward, { reward: 1, components: { tests: 1 }, lines })
    await store.setReward('s', { reward: 1, components: {}, turns: { 0: 0.5 } }, 3_000)
    t.strictSame((await store.getSession('s'))?.reward, { reward: 1, components: {}, turns: { 0: 0.5 } })
    await store.close()
  })

  t.test(
    'a release continues beside the next one, whose migration only adds, and starts on its database',
    async (t) => {
      const url = await server.newDatabase()
      const store = await openPostgresStore({ url, durability: 'process' })
      t.teardown(() => store.close())
      const record = async (turnId: string, index: number) => {
        store.openTurn(aTurn(turnId, { index })).catch(() => {})
        await store.closeTurn(anOutcome(turnId))
      }
      await store.createSession(createSession('s'))
      await record('before', 0)
      const between = Array.from({ length: 20 }, (_, index) => record(`meanwhile ${index}`, index + 1))
      await Promise.all([asRelease(url, NEXT), ...between])
      // A prepared statement must return its original columns.
      await store.shared!.claim('s', true)
      await record('after', 21)
      const session = await store.getSession('s')
      t.equal(session?.nextIndex, 22)
      const second = await openPostgresStore({ url, durability: 'process' })
      t.strictSame(await second.getSession('s'), session, 'a proxy of the release may be restarted')
      await second.close()
      const reader = await openPostgresReader(url)
      t.strictSame(await reader.getSession('s'), session, 'and its commands read the database')
      await reader.close()
    },
  )

  t.test(
    'a removing migration waits for proxies that need the columns, and locks them out afterwards',
    async (t) => {
      const url = await server.newDatabase()
      const store = await openPostgresStore({ url, durability: 'process', name: 'node-7' })
      await asRelease(url, NEXT)
      await t.rejects(asRelease(url, AFTER_NEXT), {
        code: 'start_failed',
        message: /an older llm-proxy that cannot use the new schema runs on node-7: stop it first/,
      })
      await store.createSession(createSession('s'))
      await store.close()
      await asRelease(url, AFTER_NEXT)
      const message = new RegExp(
        `version ${SCHEMA_VERSION + 2}, this llm-proxy knows versions up to ${SCHEMA_VERSION}:`,
      )
      await t.rejects(openPostgresStore({ url, durability: 'process' }), { code: 'start_failed', message })
      await t.rejects(openPostgresReader(url), { code: 'start_failed', message })
    },
  )

  t.test('a suspended proxy gets no lease after newer ones removed what it needs', async (t) => {
    const url = await server.newDatabase()
    const store = await openPostgresStore({ url, durability: 'process' })
    t.teardown(() => store.close())
    const database = new URL(url).pathname.slice(1)
    await server.query('UPDATE llm_proxy.schema_version SET version = 99, oldest = 99', database)
    await server.query('UPDATE llm_proxy.proxies SET ended = 1', database)
    await t.rejects(store.createSession(createSession('s')), {
      message: /newer llm-proxy has migrated the database/,
    })
  })
}
