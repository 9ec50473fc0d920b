import t, { type Test } from 'tap'
import { Consumers } from '../../src/proxy/session/consumers/consumers.ts'
import { Activity } from '../../src/proxy/session/state/activity.ts'
import { Sessions } from '../../src/proxy/session/state/sessions.ts'
import { FIRST_END, type NewLease } from '../../src/proxy/store/port/consumers.ts'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { connect, runInTransaction } from '../../src/proxy/store/postgres/connection.ts'
import { openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { consumerConformance, createConsumer } from '../conformance/consumers.ts'
import { createSession, turnStoreConformance } from '../conformance/turn-store.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { postgresInProcess } from '../helpers/postgres-in-process.ts'
import { allocateTurn } from '../helpers/session-turn-runner.ts'

const LEASE_MS = 60_000
const ONE_BY_ONE = createConsumer({
  selection: { metadata: {}, groupBy: null, groupSize: 1, groupTimeoutMs: 1, rewarded: false },
})

/** Ends these sessions. */
async function end(store: TurnStore, ids: readonly string[]): Promise<void> {
  for (const sessionId of ids) {
    await store.createSession(createSession(sessionId))
    await store.endSession(sessionId, 'completed', 1_000)
  }
}

const getIds = (prefix: string) => Array.from({ length: 60 }, (_, index) => `${prefix}${index}`)

if (noPostgres !== false) {
  t.pass('left out', { skip: noPostgres })
} else {
  const server = await PostgresServer.start()
  t.teardown(() => server.end())
  const openOn = (url: string) => openPostgresStore({ url, durability: 'process' })
  const migrated = await server.newDatabase()
  await (await openOn(migrated)).close()
  // A copy of a migrated database takes less time than its migrations.
  const open = async () =>
    openPostgresStore({
      url: await server.copyDatabase(migrated),
      durability: 'process',
      spawn: postgresInProcess,
    })
  turnStoreConformance(t, open)
  consumerConformance(t, open)

  /** Opens two proxies on one database. */
  async function openTwo(t: Test) {
    const url = await server.copyDatabase(migrated)
    const stores = [await openOn(url), await openOn(url)] as const
    t.teardown(() => Promise.all(stores.map((store) => store.close())))
    await stores[0].createConsumer(ONE_BY_ONE)
    return { url, stores }
  }

  t.test('when two proxies lease the same sessions at once, each session has one owner', async (t) => {
    const { stores } = await openTwo(t)
    const made = getIds('s')
    await Promise.all(stores.map((store, index) => end(store, made.slice(index * 30, index * 30 + 30))))
    const found = await stores[1].availableSessions({
      ...{ consumer: 'trainer', leaseId: '', after: FIRST_END, limit: 100, nowMs: Date.now() },
    })
    const units = found.map(({ key }) => [key])
    const halves = [units.slice(0, 40), units.slice(20)]
    const taken = await Promise.all(
      [0, 1, 2, 3].map((index) => {
        const lease: NewLease = {
          consumer: 'trainer',
          leaseId: `l${index}`,
          units: halves[index >> 1]!,
          leaseMs: LEASE_MS,
          nowMs: 0,
        }
        return stores[index % 2]!.leaseSessions(lease)
      }),
    )
    t.strictSame(taken.flatMap(({ trees }) => trees).sort(), found.map(({ key }) => key.tree).sort())
    const acknowledged = await Promise.all(
      [0, 1, 2, 3].map((index) => {
        const change = { consumer: 'trainer', leaseId: `l${index}`, sessionIds: null, leaseMs: 0, nowMs: 0 }
        return stores[index % 2]!.changeLease({ ...change, to: 'acknowledged' })
      }),
    )
    t.strictSame(acknowledged.flat().sort(), made.sort())
  })

  t.test('two proxies lease from one consumer while sessions end: none twice, none lost', async (t) => {
    const { stores } = await openTwo(t)
    const made = [getIds('a'), getIds('b')]
    let ending = 2
    const endings = stores.map((store, index) => end(store, made[index]!).finally(() => (ending -= 1)))
    const input: string[] = []
    const takeAll = async (store: TurnStore, index: number) => {
      const consumers = new Consumers(store, new Activity())
      for (let lease = 0; ; lease += 1) {
        const hasEnded = ending === 0
        const options = { consumer: ONE_BY_ONE, leaseId: `l${index}-${lease}`, leaseMs: LEASE_MS }
        const units = await consumers.take(options, 5, { leasedUntilMs: new Map(), incomplete: 0 })
        const sessionIds = units.flat().map(({ session }) => session.sessionId)
        input.push(...sessionIds)
        // Every third process dies with its leases; a restarted trainer releases them.
        const to = lease % 3 === 2 ? 'released' : 'acknowledged'
        if (to === 'released') for (const id of sessionIds) input.splice(input.indexOf(id), 1)
        if (units.length > 0)
          await consumers.change({
            consumer: 'trainer',
            leaseId: options.leaseId,
            sessionIds,
            to,
            leaseMs: 0,
          })
        if (hasEnded && units.length === 0 && (await store.countForConsumer('trainer', 0))!.leased === 0)
          return
      }
    }
    await Promise.all([...endings, ...stores.map(takeAll)])
    t.strictSame(input.sort(), made.flat().sort())
    const counts = { available: 0, leased: 0, acknowledged: 120, discarded: 0 }
    t.strictSame(await stores[0].countForConsumer('trainer', Date.now()), counts)
  })

  t.test("a session's owner changes it directly; another proxy takes it over first", async (t) => {
    const { url, stores } = await openTwo(t)
    const hooks = { onEnded: () => {}, onSweepFailed: () => {}, onSweepDeferred: () => {} }
    const options = { strict: false, defaultTtlMs: null }
    const [own, other] = [new Sessions(stores[0], hooks, options), new Sessions(stores[1], hooks, options)]
    t.teardown(() => Promise.all([own.close(), other.close()]))
    // A session in use is not evicted.
    using _used = own.acquire('s')
    const epoch = async () => {
      const rows = await server.query(
        'SELECT epoch::int FROM llm_proxy.sessions',
        new URL(url).pathname.slice(1),
      )
      return rows[0]?.epoch
    }
    const turn = await allocateTurn(own, 's')
    turn.reportClosed()
    for (const change of ['complete', 'reset', 'abort', 'reset'] as const) await own[change]('s')
    t.equal(await epoch(), 1, 'each was one commit, without a takeover')
    await other.reset('s')
    t.equal(await epoch(), 2, 'taken over')
    t.equal((await own.complete('s')).status, 'completed')
    t.equal(await epoch(), 3, 'and taken back, because it was rejected at first')
    t.ok(await own.delete('s'))
    t.equal(await epoch(), undefined)
  })

  t.test('a proxy that stops during a lease delays the others only for seconds', async (t) => {
    const { url, stores } = await openTwo(t)
    await end(stores[0], ['s1'])
    const stopped = await connect(url)
    const [locked, resumed] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
    const stop = runInTransaction(stopped, async () => {
      await stopped.query('SELECT FROM llm_proxy.consumers FOR UPDATE')
      locked.resolve()
      await resumed.promise
    })
    await locked.promise
    const options = { consumer: ONE_BY_ONE, leaseId: 'l', leaseMs: LEASE_MS }
    const startedMs = performance.now()
    const units = await new Consumers(stores[0], new Activity()).take(options, 1, {
      leasedUntilMs: new Map(),
      incomplete: 0,
    })
    t.equal(units.length, 1)
    t.ok(performance.now() - startedMs < 8_000)
    resumed.resolve()
    await t.rejects(stop)
    await stopped.end().catch(() => {})
  })
}
