import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t, { type Test } from 'tap'
import { backUp } from '../../../src/cli/backup.ts'
import { openSqliteReader, openSqliteStore } from '../../../src/proxy/store/sqlite/open.ts'
import { aTurn, createSession, getTurns, record } from '../../conformance/turn-store.ts'

async function createDatabase(t: Test) {
  const folder = t.testdir()
  const db = join(folder, 'llm-proxy.db')
  const store = await openSqliteStore({ path: db, durability: 'process' })
  t.teardown(() => store.close())
  await store.createSession(createSession('s'))
  await record(store, aTurn('a', { sessionId: 's' }))
  return { folder, db, store, to: join(folder, 'backup.db') }
}

t.test(
  'backup copies the turns of a database that is open for writing, readable by its owner only',
  async (t) => {
    const { folder, db, store, to } = await createDatabase(t)
    t.strictSame(await backUp({ db, force: false }, to), { sessions: 1, turns: 1 })
    t.equal(statSync(to).mode & 0o777, 0o600)
    t.notOk(readdirSync(folder).some((name) => name.includes('partial')))
    const reader = await openSqliteReader(to)
    t.teardown(() => reader.close())
    t.strictSame(await getTurns(reader, 's'), await getTurns(store, 's'))
  },
)

t.test('backup replaces a file only with --force, never the database or a file with a log', async (t) => {
  const { db, to } = await createDatabase(t)
  writeFileSync(to, 'something else')
  await t.rejects(backUp({ db, force: false }, to), { code: 'config_invalid', message: /--force/ })
  t.equal(readFileSync(to, 'utf8'), 'something else')
  await t.rejects(backUp({ db, force: true }, db), { code: 'config_invalid', message: /the database itself/ })
  writeFileSync(`${to}-wal`, '')
  await t.rejects(backUp({ db, force: true }, to), { code: 'config_invalid', message: /-wal exists/ })
  const other = `${to}.2`
  writeFileSync(other, 'something else')
  await backUp({ db, force: true }, other)
  t.match(readFileSync(other, 'latin1'), /^SQLite format 3/)
})

t.test('backup rejects a source that it cannot copy, and leaves no file', async (t) => {
  const { folder, db, to } = await createDatabase(t)
  const rejects = (source: string, message: RegExp) =>
    t.rejects(backUp({ db: source, force: false }, to), { message }, String(message))
  await rejects('postgres://user@db.example/llm_proxy', /pg_dump/)
  await rejects(join(folder, 'none.db'), /there is no database/)
  const foreign = join(folder, 'foreign.db')
  new Database(foreign).exec('CREATE TABLE t (x)').close()
  await rejects(foreign, /another program/)
  const empty = join(folder, 'empty.db')
  writeFileSync(empty, '')
  await rejects(empty, /is empty/)
  await t.rejects(backUp({ db, force: false }, join(folder, 'none', 'backup.db')), { code: 'start_failed' })
  t.notOk(existsSync(to))
})

t.test('backup copies a database of an earlier schema, and detects a damaged page', async (t) => {
  const { db, store, to } = await createDatabase(t)
  await store.close()
  const earlier = new Database(db)
  earlier.pragma('user_version = 1')
  earlier.close()
  await backUp({ db, force: false }, to)
  const bytes = readFileSync(db)
  writeFileSync(db, bytes.fill(0xff, 4096, 8192))
  await t.rejects(backUp({ db, force: true }, to), {
    code: 'start_failed',
    message: /llm-proxy\.db is damaged/,
  })
  t.match(readFileSync(to, 'latin1'), /^SQLite format 3/)
})
