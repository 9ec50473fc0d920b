/** What becomes of the record when the database's server, the way to it, or the proxy goes away. */
import { spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chownSync, mkdirSync, mkdtempSync, rmdirSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { openPostgresReader, openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { migrate } from '../../src/proxy/store/postgres/schema.ts'
import { anOutcome, aSession, aTurn } from '../conformance/turn-store.ts'
import { killAfter, lookThrough } from '../helpers/crash-child.ts'
import { noPostgres, PostgresServer } from '../helpers/postgres.ts'

/** More by environment, for a long run by hand. */
const ROUNDS = Array.from({ length: Number(process.env.KILL_ROUNDS ?? 1) }, (_, times) => times)

/** A way to the server that can be cut, or hold what the server answers. */
class Link {
  readonly #sockets = new Set<Socket>()
  readonly #server = createServer((near) => this.#join(near))
  readonly #to: number
  /** Answers wait. */
  isHeld = false
  /** The next answer to a statement that writes is not passed on: the link is cut instead. */
  losesNextCommit = false
  #isCommit = false

  constructor(to: number) {
    this.#to = to
  }

  async open(): Promise<number> {
    this.#server.listen(0, '127.0.0.1')
    await once(this.#server, 'listening')
    return (this.#server.address() as AddressInfo).port
  }

  cut(): void {
    for (const socket of this.#sockets) socket.destroy()
  }

  close(): void {
    this.#server.close()
    this.cut()
  }

  #join(near: Socket): void {
    const far = connect(this.#to, '127.0.0.1')
    for (const socket of [near, far]) {
      this.#sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => {
        this.#sockets.delete(socket)
        near.destroy()
        far.destroy()
      })
    }
    near.on('data', (bytes) => {
      // A prepared statement is named in the message that binds its values.
      if (this.losesNextCommit && bytes.includes('group ')) this.#isCommit = true
      far.write(bytes)
    })
    far.on('data', async (bytes) => {
      if (this.#isCommit) {
        this.#isCommit = false
        this.losesNextCommit = false
        this.cut()
        return
      }
      while (this.isHeld) await delay(5)
      near.write(bytes)
    })
  }
}

async function record(store: TurnStore, turnId: string, index: number): Promise<void> {
  const turn = { sessionId: 's', index, requestMessages: [JSON.stringify({ role: 'user', content: turnId })] }
  store.openTurn(aTurn(turnId, turn)).catch(() => {})
  await store.closeTurn(anOutcome(turnId, { sessionId: 's' }))
}

/** @returns undefined where this is not root */
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

async function turnIds(store: TurnStore): Promise<string[]> {
  const ids: string[] = []
  for await (const { turnId, status } of store.readTurns('s')) if (status === 'completed') ids.push(turnId)
  return ids
}

if (noPostgres !== false) {
  t.pass(`left out: ${noPostgres}`)
} else {
  const server = await PostgresServer.start({ fsync: 'on' })
  t.teardown(() => server.end())

  t.test('a proxy that is killed loses no acknowledged turn, and the next one begins at once', async (t) => {
    const db = await server.newDatabase()
    const acknowledged: string[] = []
    for (const [round, most] of ROUNDS.flatMap(() => [1, 40, 300]).entries()) {
      const killed = await killAfter(most, { db, durability: 'power', round })
      t.equal(killed.signal, 'SIGKILL')
      acknowledged.push(...killed.acknowledged)
    }
    const store = await openPostgresStore({ url: db, durability: 'power' })
    t.teardown(() => store.close())
    const { completed, halfWritten } = await lookThrough(store)
    t.strictSame(
      acknowledged.filter((turn) => !completed.has(turn)),
      [],
      'every acknowledged turn is there',
    )
    t.strictSame(halfWritten, [], 'none is half written, and those in flight are interrupted')
  })

  t.test('a server that crashes and comes back loses nothing, and calls go on', async (t) => {
    const store = await openPostgresStore({ url: await server.newDatabase(), durability: 'power' })
    t.teardown(() => store.close())
    await store.createSession(aSession('s'))
    const expected: string[] = []
    for (const round of ROUNDS.flatMap((times) => [3 * times, 3 * times + 1, 3 * times + 2])) {
      const calls = Array.from({ length: 20 }, (_, place) => round * 20 + place)
      const recorded = Promise.all(calls.map((index) => record(store, `t${index}`, index)))
      await server.stop('SIGKILL')
      await server.run()
      await recorded
      expected.push(...calls.map((index) => `t${index}`))
      t.strictSame(await turnIds(store), expected)
    }
  })

  t.test('a commit whose answer is lost is looked up: recorded once, and acknowledged', async (t) => {
    const link = new Link(server.port)
    const port = await link.open()
    const database = new URL(await server.newDatabase()).pathname.slice(1)
    const store = await openPostgresStore({ url: server.url(database, port), durability: 'power' })
    t.teardown(async () => {
      await store.close()
      link.close()
    })
    await store.createSession(aSession('s'))
    for (const index of [0, 1, 2, 3, 4]) {
      link.losesNextCommit = true
      await record(store, `t${index}`, index)
      t.notOk(link.losesNextCommit, 'the answer was lost')
    }
    t.strictSame(await turnIds(store), ['t0', 't1', 't2', 't3', 't4'])
    const session = await store.getSession('s')
    t.match(session, { turnCount: 5, openTurns: 0, sampledTokens: 10 }, 'counted once')
  })

  t.test('a link that is held for a while delays calls, and one that is cut loses none', async (t) => {
    const link = new Link(server.port)
    const port = await link.open()
    const database = new URL(await server.newDatabase()).pathname.slice(1)
    const store = await openPostgresStore({ url: server.url(database, port), durability: 'power' })
    t.teardown(async () => {
      await store.close()
      link.close()
    })
    await store.createSession(aSession('s'))
    link.isHeld = true
    const calls = Array.from({ length: 10 }, (_, index) => record(store, `t${index}`, index))
    t.equal(await Promise.race([Promise.all(calls), delay(200, 'still waiting')]), 'still waiting')
    link.isHeld = false
    await Promise.all(calls)
    for (const index of [10, 11, 12]) {
      const recorded = record(store, `t${index}`, index)
      link.cut()
      await recorded
    }
    t.equal((await turnIds(store)).length, 13)
  })

  t.test('one proxy writes to a database, and a reader disturbs nobody', async (t) => {
    const url = await server.newDatabase()
    const store = await openPostgresStore({ url, durability: 'power' })
    t.teardown(() => store.close())
    await store.createSession(aSession('s'))
    await t.rejects(openPostgresStore({ url, durability: 'power' }), {
      code: 'start_failed',
      message: /another llm-proxy writes to the database test_\d+: stop it/,
    })
    const reader = await openPostgresReader(url)
    t.match(await reader.getSession('s'), { sessionId: 's' })
    await reader.close()
    await record(store, 'after', 0)
  })

  t.test('a writer that another one has taken over changes nothing more', async (t) => {
    const url = await server.newDatabase()
    const store = await openPostgresStore({ url, durability: 'power' })
    t.teardown(() => store.close())
    await store.createSession(aSession('s'))
    const seen = store.lost
    await server.query(
      "UPDATE llm_proxy.writer SET owner = 'another', epoch = epoch + 1",
      new URL(url).pathname.slice(1),
    )
    await t.rejects(store.createSession(aSession('late')), {
      code: 'store_failed',
      message: /taken this record over/,
    })
    t.equal(await store.getSession('late'), undefined)
    t.match(await seen, { code: 'store_failed', cause: /taken this record over/ }, 'the proxy ends')
  })

  t.test('twenty programs that start at once make one schema', async (t) => {
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

  t.test('a record of the first schema is brought up to date, its rewards are sound', async (t) => {
    const url = await server.newDatabase()
    const database = new URL(url).pathname.slice(1)
    const lines = { 'subagent:critic': -0.5 }
    const old = await openPostgresStore({ url, durability: 'process' })
    await old.createSession(aSession('s'))
    await old.setReward('s', { reward: 1, components: { tests: 1 }, lines }, 2_000)
    await old.close()
    await server.query(
      'ALTER TABLE llm_proxy.sessions DROP COLUMN reward_turns, DROP COLUMN limits',
      database,
    )
    await server.query('UPDATE llm_proxy.schema_version SET version = 1', database)
    await t.rejects(openPostgresReader(url), { message: /has schema version 1, this llm-proxy reads/ })
    const store = await openPostgresStore({ url, durability: 'process' })
    t.strictSame((await store.getSession('s'))?.reward, { reward: 1, components: { tests: 1 }, lines })
    await store.setReward('s', { reward: 1, components: {}, turns: { 0: 0.5 } }, 3_000)
    t.strictSame((await store.getSession('s'))?.reward, { reward: 1, components: {}, turns: { 0: 0.5 } })
    await store.close()
  })

  t.test('what cannot be recorded in is refused at the start, with what to do', async (t) => {
    const refused = (url: string, message: RegExp) =>
      t.rejects(openPostgresStore({ url, durability: 'power' }), { code: 'start_failed', message })
    await refused(server.url('nowhere'), /nowhere does not exist: make it, with createdb/)
    await refused(
      'postgres://proxy:secret@127.0.0.1:1/x',
      /postgres:\/\/proxy@127.0.0.1:1\/x does not answer/,
    )
    const latin = await server.newDatabase("ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    await refused(latin, /has encoding LATIN1: make one with ENCODING 'UTF8'/)
    const newer = await server.newDatabase()
    await (await openPostgresStore({ url: newer, durability: 'power' })).close()
    await server.query('UPDATE llm_proxy.schema_version SET version = 999', new URL(newer).pathname.slice(1))
    await refused(newer, /schema version 999, this llm-proxy knows versions up to/)
    await t.rejects(openPostgresReader(await server.newDatabase()), {
      message: /there is no record in this database/,
    })
  })

  const smallDisk = mountSmallDisk()
  t.test(
    'a full disk of the server fails the calls on it, and recording goes on once there is room',
    { skip: smallDisk === undefined && 'only root can mount a small disk' },
    async (t) => {
      const { folder, unmount } = smallDisk!
      t.teardown(unmount)
      const { uid, gid } = statSync(server.dataFolder)
      const place = join(folder, 'tables')
      mkdirSync(place)
      chownSync(place, uid, gid)
      const ballast = join(folder, 'ballast')
      writeFileSync(ballast, Buffer.alloc(8 * 1024 * 1024))
      await server.query(`CREATE TABLESPACE small LOCATION '${place}'`)
      const store = await openPostgresStore({
        url: await server.newDatabase('TABLESPACE small'),
        durability: 'power',
      })
      t.teardown(() => store.close())
      await store.createSession(aSession('s'))
      let index = 0
      // It is not to be compressed.
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
        await turnIds(store),
        Array.from({ length: index }, (_, at) => `t${at}`),
        'what was acknowledged before is there',
      )
      rmSync(ballast)
      await t.resolves(store.check(), 'a probe learns that it is over')
      await record(store, 'after', index)
      t.equal((await turnIds(store)).at(-1), 'after')
    },
  )

  t.test(
    'a server that does not keep what it acknowledges is refused, unless that is asked for',
    async (t) => {
      const careless = await PostgresServer.start({ fsync: 'off' })
      t.teardown(() => careless.end())
      const url = await careless.newDatabase()
      await t.rejects(openPostgresStore({ url, durability: 'power' }), {
        code: 'start_failed',
        message: /has fsync off .* give --durability process/,
      })
      await (await openPostgresStore({ url, durability: 'process' })).close()
    },
  )
}
