/** Recorded data survives failures of the database's server, of the connection to it, and of the proxy. */
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { chownSync, mkdirSync, mkdtempSync, rmdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'
import t, { type Test } from 'tap'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { openPostgresReader, openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { anOutcome, aTurn, createSession } from '../conformance/turn-store.ts'
import { checkStore, killAfter } from '../helpers/crash-child.ts'
import { DatabaseLink } from '../helpers/database-link.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'
import { until } from '../helpers/until.ts'

/** Set by the environment for a long manual run. */
const ROUNDS = Array.from({ length: Number(process.env.KILL_ROUNDS ?? 1) }, (_, times) => times)

async function record(store: TurnStore, turnId: string, index: number): Promise<void> {
  const turn = { sessionId: 's', index, requestMessages: [JSON.stringify({ role: 'user', content: turnId })] }
  store.openTurn(aTurn(turnId, turn)).catch(() => {})
  await store.closeTurn(anOutcome(turnId, { sessionId: 's' }))
}

async function open(t: Test, url: string): Promise<TurnStore> {
  const store = await openPostgresStore({ url, durability: 'power' })
  t.teardown(() => store.close())
  return store
}

const PROBE_TABLES = "SELECT relname FROM pg_class WHERE relname LIKE 'probe_%'"

/** @returns undefined unless it runs as root */
function mountSmallDisk(): { folder: string; unmount(): void } | undefined {
  const folder = mkdtempSync(join(tmpdir(), 'small-disk-'))
  if (spawnSync('mount', ['-t', 'tmpfs', '-o', 'size=24m,mode=755', 'tmpfs', folder]).status !== 0) {
    rmdirSync(folder)
    return undefined
  }
  return {
    folder,
    unmount: () => {
      spawnSync('umount', ['-l', folder])
      rmdirSync(folder)
    },
  }
}

async function readCompletedIds(store: TurnStore): Promise<string[]> {
  const ids: string[] = []
  for await (const { turnId, status } of store.readTurns('s')) if (status === 'completed') ids.push(turnId)
  return ids
}

if (noPostgres !== false) {
  t.pass('left out', { skip: noPostgres })
} else {
  const server = await PostgresServer.start({ fsync: 'on' })
  t.teardown(() => server.end())

  t.test('a killed proxy loses no acknowledged turn, and the next one starts at once', async (t) => {
    const db = await server.newDatabase()
    const acknowledged: string[] = []
    for (const [round, most] of ROUNDS.flatMap(() => [1, 40, 300]).entries()) {
      const killed = await killAfter(most, { db, durability: 'power', round })
      t.equal(killed.signal, 'SIGKILL')
      acknowledged.push(...killed.acknowledged)
    }
    const store = await openPostgresStore({ url: db, durability: 'power' })
    t.teardown(() => store.close())
    const { completed, halfWritten } = await checkStore(store)
    t.strictSame(
      acknowledged.filter((turn) => !completed.has(turn)),
      [],
      'every acknowledged turn is recorded',
    )
    t.strictSame(halfWritten, [], 'none is partial, and those in flight are interrupted')
  })

  t.test(
    'a read in progress when the store closes keeps no connection, and therefore no process',
    async (t) => {
      const url = await server.newDatabase()
      const store = await openPostgresStore({ url, durability: 'power' })
      const pending = new Client({ connectionString: url })
      await pending.connect()
      t.teardown(() => pending.end())
      await pending.query('BEGIN; LOCK TABLE llm_proxy.sessions IN ACCESS EXCLUSIVE MODE')
      const read = store.getSession('s').catch((error: Error) => error)
      const others = async (more: string) => {
        const { rows } = await pending.query(
          `SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND ${more}`,
        )
        return rows.length
      }
      await until(async () => (await others("wait_event_type = 'Lock'")) > 0)
      const closed = store.close()
      await pending.query('COMMIT')
      await Promise.all([read, closed])
      await until(async () => (await others('true')) === 0)
      t.pass('no connection remains')
    },
  )

  t.test('a server that crashes and recovers loses nothing, and requests continue', async (t) => {
    const store = await openPostgresStore({ url: await server.newDatabase(), durability: 'power' })
    t.teardown(() => store.close())
    await store.createSession(createSession('s'))
    const expected: string[] = []
    for (const round of ROUNDS.flatMap((times) => [3 * times, 3 * times + 1, 3 * times + 2])) {
      const indexes = Array.from({ length: 20 }, (_, index) => round * 20 + index)
      const recorded = Promise.all(indexes.map((index) => record(store, `t${index}`, index)))
      await server.stop('SIGKILL')
      await server.run()
      await recorded
      expected.push(...indexes.map((index) => `t${index}`))
      t.strictSame(await readCompletedIds(store), expected)
    }
  })

  t.test('a commit whose result is lost is looked up: recorded once, and acknowledged', async (t) => {
    const link = new DatabaseLink(server.port)
    const port = await link.open()
    const database = new URL(await server.newDatabase()).pathname.slice(1)
    const store = await openPostgresStore({ url: server.url(database, port), durability: 'power' })
    t.teardown(async () => {
      await store.close()
      link.close()
    })
    await store.createSession(createSession('s'))
    for (const index of [0, 1, 2, 3, 4]) {
      link.dropsNextCommit = true
      await record(store, `t${index}`, index)
      t.notOk(link.dropsNextCommit, 'the result was lost')
    }
    t.strictSame(await readCompletedIds(store), ['t0', 't1', 't2', 't3', 't4'])
    const session = await store.getSession('s')
    t.match(session, { turnCount: 5, openTurns: 0, sampledTokens: 10 }, 'counted once')
  })

  t.test('a blocked link delays requests, and a cut one loses none', async (t) => {
    const link = new DatabaseLink(server.port)
    const port = await link.open()
    const database = new URL(await server.newDatabase()).pathname.slice(1)
    const store = await openPostgresStore({ url: server.url(database, port), durability: 'power' })
    t.teardown(async () => {
      await store.close()
      link.close()
    })
    await store.createSession(createSession('s'))
    link.isPaused = true
    const pending = Array.from({ length: 10 }, (_, index) => record(store, `t${index}`, index))
    t.equal(await Promise.race([Promise.all(pending), delay(200, 'still waiting')]), 'still waiting')
    link.isPaused = false
    await Promise.all(pending)
    for (const index of [10, 11, 12]) {
      const recorded = record(store, `t${index}`, index)
      link.cut()
      await recorded
    }
    t.equal((await readCompletedIds(store)).length, 13)
  })

  t.test("two proxies share a database: one sees the other's changes", async (t) => {
    const url = await server.newDatabase()
    const [one, other] = [await open(t, url), await open(t, url)]
    t.match(await one.createSession({ ...createSession('s'), isOwn: true }), { created: true, epoch: 1 })
    t.match(await other.createSession(createSession('s')), { created: false })
    const [first, second] = await Promise.all([
      one.createSession(createSession('twin')),
      other.createSession(createSession('twin')),
    ])
    t.not(first.created, second.created, 'of two that create one session at once, one has created it')
    for (const [index, store] of [one, other, one].entries()) {
      await store.setReward('s', { reward: index, components: {} }, 3_000 + index)
      t.equal((await one.getSession('s'))?.reward?.reward, index)
    }
    await other.resetSession('s', 4_000)
    await record(one, 'after', 0)
    t.strictSame(await readCompletedIds(one), ['after'], 'in the tree after the reset')
    await other.deleteSession('s')
    t.equal(
      await one.setReward('s', { reward: 1, components: {} }, 5_000),
      undefined,
      'it is deleted for both',
    )
    t.match(await one.createSession(createSession('s')), { created: true })
    t.strictSame(await readCompletedIds(other), [])
    const reader = await openPostgresReader(url)
    t.match(await reader.getSession('twin'), { sessionId: 'twin' })
    await reader.close()
  })

  t.test('large writes of other sessions delay no claim and no short turn', async (t) => {
    const store = await open(t, await server.newDatabase())
    const texts = Array.from({ length: 5_000 }, (_, index) =>
      JSON.stringify({ role: 'user', content: `${index}` }),
    )
    const heaps = Array.from({ length: 10 }, (_, each) => `heap-${each}`)
    for (const sessionId of [...heaps, 's']) await store.createSession(createSession(sessionId))
    let written = 0
    const writing = heaps.map(async (sessionId) => {
      await store.openTurn(aTurn(sessionId, { sessionId, index: 0, requestMessages: texts }))
      written += 1
    })
    await store.shared!.claim('s')
    await record(store, 'short', 0)
    t.ok(written < heaps.length, `${written} large turns are recorded before it`)
    await Promise.all(writing)
    t.strictSame(await readCompletedIds(store), ['short'])
    t.equal((await store.getSession('heap-9'))?.turnCount, 1)
  })

  t.test("a session's turns belong to its owner: late writes of an earlier owner are rejected", async (t) => {
    const url = await server.newDatabase()
    const [one, other] = [await open(t, url), await open(t, url)]
    await one.createSession(createSession('s'))
    const claimed = await one.shared!.claim('s')
    t.strictSame(claimed, { epoch: 1, wasLost: false })
    const { epoch } = claimed!
    await one.openTurn(aTurn('open', { sessionId: 's', index: 0, epoch }))
    t.equal((await other.shared!.readOwner('s'))?.id, one.shared!.self?.id)
    t.equal(await other.shared!.claim('s'), undefined, 'a live owner keeps it')
    t.strictSame(
      await other.shared!.claim('s', true),
      { epoch: 2, wasLost: false },
      'a forced claim knows a live owner',
    )
    const seized = 2
    await t.rejects(one.closeTurn(anOutcome('open', { sessionId: 's', epoch })), {
      code: 'session_moved',
    })
    const late = aTurn('late', { sessionId: 's', index: 1, epoch })
    await t.rejects(one.openTurn(late), { code: 'session_moved' })
    await other.openTurn(aTurn('next', { sessionId: 's', index: 1, epoch: seized }))
    await other.closeTurn(anOutcome('next', { sessionId: 's', epoch: seized }))
    const statuses: string[] = []
    for await (const { status } of one.readTurns('s')) statuses.push(status)
    t.strictSame(statuses, ['interrupted', 'completed'])
    t.match(await one.getSession('s'), { turnCount: 2, openTurns: 0, failedTurns: 1 })
  })

  t.test('a proxy whose lease others have ended takes a new one, and is notified', async (t) => {
    const url = await server.newDatabase()
    const store = await open(t, url)
    await store.createSession({ ...createSession('s'), isOwn: true })
    const before = store.shared!.self!.id
    const lost = new Promise<void>((resolve) => store.shared!.onLost(resolve))
    await server.query(`UPDATE llm_proxy.proxies SET ended = 1`, new URL(url).pathname.slice(1))
    const turn = aTurn('t', { sessionId: 's', epoch: 1 })
    await t.rejects(store.openTurn(turn), { code: 'session_moved' })
    await lost
    t.not(store.shared!.self!.id, before)
    t.match(await store.createSession(createSession('late')), { created: true })
    t.strictSame(await store.shared!.claim('s'), { epoch: 2, wasLost: true })
  })

  t.test('sessions of a draining proxy are free as soon as no turn is in flight', async (t) => {
    const url = await server.newDatabase()
    const [one, other] = [await open(t, url), await open(t, url)]
    await one.createSession({ ...createSession('s'), isOwn: true })
    await one.openTurn(aTurn('t', { sessionId: 's', epoch: 1 }))
    await one.shared!.publish({ isDraining: true })
    t.equal(await other.shared!.claim('s'), undefined)
    await one.closeTurn(anOutcome('t', { sessionId: 's', epoch: 1 }))
    t.strictSame(await other.shared!.claim('s'), { epoch: 2, wasLost: false })
  })

  t.test('a shared setting reaches running and new proxies', async (t) => {
    const url = await server.newDatabase()
    const [one, other] = [await open(t, url), await open(t, url)]
    const received: unknown[] = []
    for (const store of [one, other])
      store.shared!.followControls(async ({ name, value }) => {
        if (name === 'weight_version') received.push([name, value])
      })
    const change = await one.shared!.setControl('weight_version', '7')
    while (other.shared!.proxies.some(({ seen }) => seen < change)) await delay(20)
    t.strictSame(received, [
      ['weight_version', '7'],
      ['weight_version', '7'],
    ])
    const late = await open(t, url)
    const reported = new Promise((resolve) =>
      late.shared!.followControls(async (setting) => {
        if (setting.name === 'weight_version') resolve(setting)
      }),
    )
    t.match(await reported, { name: 'weight_version', value: '7', change })
  })

  t.test('an unusable database is rejected at the start, with a remedy', async (t) => {
    const reject = (url: string, message: RegExp) =>
      t.rejects(openPostgresStore({ url, durability: 'power' }), { code: 'start_failed', message })
    await reject(server.url('nowhere'), /nowhere does not exist: create it, with createdb/)
    await reject(
      'postgres://proxy:secret@127.0.0.1:1/x',
      /postgres:\/\/proxy@127.0.0.1:1\/x refuses the connection/,
    )
    const latin = await server.newDatabase("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    await reject(latin, /has encoding LATIN1: create one with ENCODING 'UTF8'/)
    await t.rejects(openPostgresReader(await server.newDatabase()), {
      message: /this database has no tables of llm-proxy/,
    })
  })

  const smallDisk = mountSmallDisk()
  // Not in the teardown of the test below, which may be skipped.
  if (smallDisk) t.teardown(smallDisk.unmount)
  t.test(
    'a full disk of the server fails the requests on it, and recording continues once there is room',
    { skip: smallDisk === undefined && 'only root can mount a small disk' },
    async (t) => {
      const { folder } = smallDisk!
      const { uid, gid } = statSync(server.dataFolder)
      const tables = join(folder, 'tables')
      mkdirSync(tables)
      chownSync(tables, uid, gid)
      const ballast = join(folder, 'ballast')
      writeFileSync(ballast, Buffer.alloc(8 * 1024 * 1024))
      await server.query(`CREATE TABLESPACE small LOCATION '${tables}'`)
      const url = await server.newDatabase('TABLESPACE small')
      const store = await open(t, url)
      const database = new URL(url).pathname.slice(1)
      await store.createSession(createSession('s'))
      // A new connection is impossible while PostgreSQL cannot write; the one for reads is open already.
      t.strictSame(await readCompletedIds(store), [])
      let index = 0
      // Random, so that PostgreSQL cannot compress it.
      const long = () => randomBytes(200_000).toString('base64')
      const fill = async () => {
        for (; index < 200; index += 1) {
          store
            .openTurn(aTurn(`t${index}`, { index, params: JSON.stringify({ text: long() }) }))
            .catch(() => {})
          await store.closeTurn(anOutcome(`t${index}`))
        }
      }
      await t.rejects(fill(), { code: 'store_failed', message: /No space left on device/ })
      t.strictSame(
        await readCompletedIds(store),
        Array.from({ length: index }, (_, index) => `t${index}`),
        'turns acknowledged before are recorded',
      )
      for (let probe = 0; probe < 3; probe += 1)
        await t.rejects(store.check(), { code: 'store_failed', message: /No space left on device/ })
      rmSync(ballast)
      await t.resolves(store.check(), 'a probe notices the recovery')
      t.strictSame(await server.query(PROBE_TABLES, database), [], 'probes leave no tables')
      await record(store, 'after', index)
      t.equal((await readCompletedIds(store)).at(-1), 'after')
    },
  )

  t.test('a server that may lose acknowledged commits is rejected, unless configured', async (t) => {
    const careless = await PostgresServer.start({ fsync: 'off' })
    t.teardown(() => careless.end())
    const url = await careless.newDatabase()
    await t.rejects(openPostgresStore({ url, durability: 'power' }), {
      code: 'start_failed',
      message: /has fsync off .* set --durability process/,
    })
    await (await openPostgresStore({ url, durability: 'process' })).close()
  })
}
