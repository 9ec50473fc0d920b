/** Reads of sessions from SQLite, also from databases of older versions. */
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { sessionReadsConformance } from '../conformance/session-reads.ts'
import { aTurn, createSession, record } from '../conformance/turn-store.ts'
import { toVersion } from '../helpers/older-database.ts'
import { inProcess, openMemoryStore } from '../helpers/store-in-process.ts'

t.test('SQLite passes the conformance suite of session reads', async (t) =>
  sessionReadsConformance(t, openMemoryStore),
)

t.test('a database of version 2 gets counts computed from its turns', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const first = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
  await first.createSession(createSession('s'))
  await first.createSession(createSession('empty'))
  await record(first, aTurn('a'))
  // More ids than there are bytes to a small one, so that both layouts are counted.
  const completionTokenIds = Int32Array.from({ length: 9 }, (_, i) => -i)
  await record(first, aTurn('b', { index: 1 }), { completionTokenIds, exact: false })
  await record(first, aTurn('c', { index: 2 }), { status: 'failed', completionTokenIds: Int32Array.of(300) })
  await first.openTurn(aTurn('d', { index: 3 }))
  await first.close()
  const db = new Database(path)
  db.exec(`UPDATE turns SET status = 'open' WHERE turn_id = 'd'`)
  toVersion(db, 2)
  db.close()
  const second = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
  t.teardown(() => second.close())
  t.match(await second.getSession('s'), {
    turnCount: 4,
    openTurns: 0,
    failedTurns: 2,
    inexactTurns: 1,
    sampledTokens: 12,
  })
  t.match(await second.getSession('empty'), { turnCount: 0, failedTurns: 0, sampledTokens: 0 })
})

t.test('turns that a crash left open count as failed from the next start on', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const first = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
  await first.createSession(createSession('s'))
  await first.openTurn(aTurn('a'))
  await first.close()
  const second = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
  t.teardown(() => second.close())
  t.match(await second.getSession('s'), { turnCount: 1, openTurns: 0, failedTurns: 1 })
})

t.test('the steps of a growing conversation contain each token once', async (t) => {
  const store = await openSqliteStore({
    path: join(t.testdir(), 'turns.db'),
    durability: 'process',
    spawn: inProcess,
  })
  t.teardown(() => store.close())
  await store.createSession(createSession('s'))
  const prompt = Array.from({ length: 10 }, (_, id) => id)
  for (let index = 0; index < 100; index += 1) {
    await record(store, aTurn(`t${index}`, { index }), { promptTokenIds: Int32Array.from(prompt) })
    prompt.push(4, 5, ...Array.from({ length: 8 }, (_, i) => index + i))
  }
  const steps = await Array.fromAsync(store.readSteps('s'))
  const pending = steps.map(({ promptStep: { rest } }) => rest.length)
  t.strictSame(pending, [10, ...Array.from({ length: 99 }, () => 8)])
})
