import t from 'tap'
import { openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { sessionReadsConformance } from '../conformance/session-reads.ts'
import { aTurn, createSession, record } from '../conformance/turn-store.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { postgresInProcess } from '../helpers/postgres-in-process.ts'
import { until } from '../helpers/until.ts'

if (noPostgres !== false) {
  t.pass('left out', { skip: noPostgres })
} else {
  const server = await PostgresServer.start()
  t.teardown(() => server.end())
  const migrated = await server.newDatabase()
  await (await openPostgresStore({ url: migrated, durability: 'process' })).close()
  const open = async () =>
    openPostgresStore({
      url: await server.copyDatabase(migrated),
      durability: 'process',
      spawn: postgresInProcess,
    })
  sessionReadsConformance(t, open)

  t.test('the search has an index, which deleted turns leave', async (t) => {
    const url = await server.copyDatabase(migrated)
    const database = new URL(url).pathname.slice(1)
    const count = async (table: string) => {
      const rows = await server.query(`SELECT count(*)::int AS n FROM llm_proxy.${table}`, database)
      return rows[0]!.n as number
    }
    const before = await openPostgresStore({ url, durability: 'process' })
    await before.createSession(createSession('s'))
    await record(before, aTurn('a'), { completionText: '50 % of Assert_True' })
    t.strictSame([await count('searched'), await count('unsearched')], [0, 1])
    await before.createSession(createSession('gone'))
    await record(before, aTurn('b', { sessionId: 'gone' }), { sessionId: 'gone' })
    await before.deleteSession('gone')
    await until(async () => (await count('unsearched')) === 1)
    await before.close()

    const store = await openPostgresStore({ url, durability: 'process', searchIndex: true })
    t.teardown(() => store.close())
    const find = async (wanted: string) =>
      (await store.searchTurns({ wanted, limit: 10, perSession: 10 })).hits.map(({ match }) => match)
    t.strictSame(
      await find('assert_'),
      ['Assert_'],
      'the first search works without the index, and starts it',
    )
    await until(async () => (await count('searched')) === 1)
    t.equal(await count('unsearched'), 0)
    t.strictSame(await find('0 % of assert_'), ['0 % of Assert_'])
    t.strictSame(await find('50_%'), [])
    const indexes = await server.query(
      "SELECT indexname FROM pg_indexes WHERE indexname = 'searched_trigrams'",
      database,
    )
    t.equal(indexes.length, 1)
    await store.deleteSession('s')
    await until(async () => (await count('searched')) === 0)
  })

  t.test('several proxies index and search one database, and skip no turn of each other', async (t) => {
    const url = await server.copyDatabase(migrated)
    const database = new URL(url).pathname.slice(1)
    const count = async (table: string) => {
      const rows = await server.query(`SELECT count(*)::int AS n FROM llm_proxy.${table}`, database)
      return rows[0]!.n as number
    }
    const openStore = async (name: string) => {
      const store = await openPostgresStore({ url, durability: 'process', name, searchIndex: true })
      t.teardown(() => store.close())
      return store
    }
    const [busy, quiet] = [await openStore('busy'), await openStore('quiet')]
    const recordTurns = async (store: typeof busy, sessionId: string, turns: number) => {
      await store.createSession(createSession(sessionId))
      const { epoch } = (await store.shared!.claim(sessionId))!
      for (let index = 0; index < turns; index += 1) {
        const turnId = `${sessionId}${index}`
        await record(store, aTurn(turnId, { sessionId, index, epoch }), {
          sessionId,
          completionText: 'I said it',
        })
      }
      return Array.from({ length: turns }, (_, index) => `${sessionId}${index}`)
    }
    for (const store of [busy, quiet]) await store.searchTurns({ wanted: 'said', limit: 1, perSession: 1 })
    const turnIds = await recordTurns(busy, 'b', 80)
    await until(async () => (await count('unsearched')) === 0)
    turnIds.push(...(await recordTurns(quiet, 'q', 3)))
    const [later] = await server.query(
      `SELECT max(id) FILTER (WHERE turn_id LIKE 'q%') < max(id) FILTER (WHERE turn_id LIKE 'b%') AS is_below
       FROM llm_proxy.turns`,
      database,
    )
    t.ok(later!.is_below, 'ids are not in the order of time')
    const find = async (store: typeof busy) => {
      const found: string[] = []
      let cursor: string | undefined
      do {
        const page = await store.searchTurns({
          wanted: 'said',
          limit: 7,
          perSession: 100,
          ...(cursor && { cursor }),
        })
        found.push(...page.hits.map(({ turnId }) => turnId))
        cursor = page.nextCursor
      } while (cursor !== undefined)
      return found.toSorted()
    }
    t.strictSame(await find(busy), turnIds.toSorted())
    await Promise.all([recordTurns(busy, 'c', 40), recordTurns(quiet, 'd', 40)]).then((more) =>
      turnIds.push(...more.flat()),
    )
    await until(async () => (await count('unsearched')) === 0)
    t.equal(await count('searched'), turnIds.length)
    t.strictSame(await find(quiet), turnIds.toSorted())
    await Promise.all(['b', 'c', 'd'].map((sessionId) => busy.deleteSession(sessionId)))
    await until(async () => (await count('searched')) === 3)
    t.strictSame(await find(quiet), ['q0', 'q1', 'q2'])
  })
}
