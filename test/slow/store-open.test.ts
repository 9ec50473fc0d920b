import {
  chmodSync,
  existsSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t from 'tap'
import { openSqliteReader, openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { aTurn, createSession, getTurns, record } from '../conformance/turn-store.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { toVersion } from '../helpers/older-database.ts'

const open = (path: string) => openSqliteStore({ path, durability: 'process' })

const reject = (message: RegExp) => ({ name: 'ProxyError', code: 'start_failed', message })

t.test('missing folders are created', async (t) => {
  const path = join(t.testdir(), 'a', 'b', 'turns.db')
  const store = await open(path)
  await store.close()
  t.ok(existsSync(path))
})

t.test('a reopened store has its content, and nothing but the database and its lock is left', async (t) => {
  const folder = t.testdir()
  const path = join(folder, 'turns.db')
  const first = await open(path)
  await first.createSession(createSession('s'))
  await record(first, aTurn('a'))
  const before = await getTurns(first)
  await first.close()
  t.strictSame(readdirSync(folder), ['turns.db', 'turns.db.lock'])
  const second = await open(path)
  t.teardown(() => second.close())
  t.strictSame(await getTurns(second), before)
})

t.test('turns that were open when the process ended are interrupted', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const first = await open(path)
  await first.createSession(createSession('s', { ttlMs: 1 }))
  await first.openTurn(aTurn('a'))
  await first.close()
  const second = await open(path)
  t.teardown(() => second.close())
  t.match(await getTurns(second), [{ status: 'interrupted', endedAtMs: null, completionText: null }])
  t.strictSame(await second.sweep(10_000), ['s'], 'they do not keep their session from expiring')
})

t.test('a second proxy on the same file is rejected with the process that has it', async (t) => {
  const folder = t.testdir()
  const path = join(folder, 'turns.db')
  const store = await open(path)
  symlinkSync(path, join(folder, 'link.db'))
  const inUse = reject(new RegExp(`in use by another llm-proxy \\(process ${process.pid}\\)`))
  await t.rejects(open(path), inUse)
  await t.rejects(open(join(folder, 'link.db')), inUse, 'with another path, too')
  await t.resolves(store.createSession(createSession('s')), 'the first one is not disturbed')
  await store.close()
  await t.resolves(
    open(path).then((next) => next.close()),
    'the file is free afterwards',
  )
})

t.test('a database of a newer version is rejected, with both versions named', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  await (await open(path)).close()
  const db = new Database(path)
  db.pragma('user_version = 99')
  db.close()
  await t.rejects(open(path), reject(/schema version 99, this llm-proxy knows versions up to \d+/))
  await t.rejects(openSqliteReader(path), reject(/schema version 99/))
})

t.test('a database from before prompts were stored in segments is read and continued', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const old = await open(path)
  await old.createSession(createSession('s'))
  const params = '{"model":"m","prompt":"Once"}'
  const completion = { dialect: 'completions', requestMessages: [] }
  await record(old, aTurn('a', { ...completion, params }))
  await old.close()
  const db = new Database(path)
  toVersion(db, 3)
  db.close()
  const { logger, lines } = createListingLogger()
  const store = await openSqliteStore({ path, durability: 'process', logger })
  t.match(lines, [{ event: 'schema_migrated', from: 3, to: Number }])
  await record(store, aTurn('b', { ...completion, index: 1, promptPieces: ['"Once', ' upon'] }))
  t.match(await getTurns(store), [
    { turnId: 'a', params, promptPieces: { length: 0 } },
    { turnId: 'b', params: '{"model":"m"}', promptPieces: ['"Once', ' upon'] },
  ])
  await store.close()
})

t.test('a file that is not a database is rejected and left unchanged', async (t) => {
  const folder = t.testdir({ 'notes.txt': 'not a database '.repeat(1000) })
  await t.rejects(open(join(folder, 'notes.txt')), reject(/is not a database: name another file/))
  await t.rejects(openSqliteReader(join(folder, 'notes.txt')), reject(/is not a database/))
  t.strictSame(readdirSync(folder), ['notes.txt'])
})

t.test("another program's database is rejected and left unchanged", async (t) => {
  const folder = t.testdir()
  const path = join(folder, 'photos.db')
  const db = new Database(path)
  db.exec('CREATE TABLE photos (id INTEGER)')
  db.close()
  await t.rejects(open(path), reject(/another program/))
  await t.rejects(openSqliteReader(path), reject(/another program/))
  t.strictSame(readdirSync(folder), ['photos.db'])
})

t.test('a path that cannot be a file is rejected, with the requirement', async (t) => {
  const folder = t.testdir({ file: '', folder: {} })
  await t.rejects(open(join(folder, 'file', 'turns.db')), reject(/folder .* cannot be created/))
  await t.rejects(open(join(folder, 'folder')), reject(/cannot be opened: .* permission/))
})

t.test('a damaged database is rejected', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const store = await open(path)
  await store.close()
  const db = new Database(path)
  const bytes = db.serialize()
  db.close()
  writeFileSync(path, bytes.fill(0xff, 100, 4096))
  await t.rejects(open(path), reject(/is damaged/))
})

t.test('a reader sees what a running server has committed, and does not disturb it', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const store = await open(path)
  await store.createSession(createSession('s'))
  const reader = await openSqliteReader(path)
  await record(store, aTurn('a'))
  t.match(await reader.getSession('s'), { turnCount: 1 })
  t.match(await reader.listSessions({ limit: 5 }), { sessions: [{ sessionId: 's' }] })
  t.match(await getTurns(reader), [{ turnId: 'a', status: 'completed' }])
  await reader.close()
  await t.resolves(record(store, aTurn('b', { index: 1 })))
  await store.close()
  const later = await openSqliteReader(path)
  t.equal((await getTurns(later)).length, 2, 'it also works without a server')
  await later.close()
})

t.test('a reader rejects a file that does not exist, or that no server has initialized', async (t) => {
  const folder = t.testdir()
  await t.rejects(openSqliteReader(join(folder, 'none.db')), reject(/there is no database at/))
  new Database(join(folder, 'empty.db')).close()
  writeFileSync(join(folder, 'empty.db'), '')
  await t.rejects(openSqliteReader(join(folder, 'empty.db')), reject(/start the server on it once/))
  t.strictSame(readdirSync(folder), ['empty.db'])
})

t.test(
  'the files of a database are readable only by their owner, also those of an earlier version',
  async (t) => {
    const path = join(t.testdir(), 'turns.db')
    const modes = () =>
      [path, `${path}-wal`, `${path}-shm`, `${path}.lock`].map((file) => statSync(file).mode & 0o777)
    const store = await open(path)
    await store.createSession(createSession('s'))
    t.same(modes(), [0o600, 0o600, 0o600, 0o600])
    await store.close()
    for (const file of [path, `${path}.lock`]) chmodSync(file, 0o644)
    const second = await open(path)
    t.teardown(() => second.close())
    await second.createSession(createSession('r'))
    t.same(modes(), [0o600, 0o600, 0o600, 0o600])
  },
)

for (const suffix of ['', '-wal', '.lock']) {
  t.test(`once its file *${suffix} is removed, a store acknowledges nothing more`, async (t) => {
    const path = join(t.testdir(), 'turns.db')
    const store = await open(path)
    t.teardown(() => store.close())
    await store.createSession(createSession('s'))
    rmSync(`${path}${suffix}`)
    const lost = { code: 'store_failed', message: /was removed or replaced while llm-proxy had it open/ }
    await t.rejects(store.createSession(createSession('r')), lost)
    writeFileSync(`${path}${suffix}`, '')
    await t.rejects(
      store.setReward('s', { reward: 1, components: {} }, 1),
      lost,
      'another file does not count',
    )
    await t.rejects(store.check(), lost, 'the health check fails')
  })
}

t.test('the first probe checks whether a new store is writable', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const store = await open(path)
  await store.createSession(createSession('s'))
  await store.close()
  const second = await open(path)
  t.teardown(() => second.close())
  rmSync(path)
  await t.rejects(second.check(), { code: 'store_failed' })
})

t.test('a database whose pages are inconsistent is rejected at the start', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const store = await open(path)
  for (let index = 0; index < 50; index += 1) await store.createSession(createSession(`session-${index}`))
  await store.close()
  const bytes = readFileSync(path)
  const db = new Database(path, { readonly: true })
  const page = db
    .prepare("SELECT rootpage FROM sqlite_schema WHERE name = 'sessions_by_age'")
    .pluck()
    .get() as number
  const pageSize = db.pragma('page_size', { simple: true }) as number
  db.close()
  // The number of cells on the page.
  bytes[(page - 1) * pageSize + 4]! ^= 0x01
  writeFileSync(path, bytes)
  await t.rejects(open(path), reject(/is damaged/))
})
