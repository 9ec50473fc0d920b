import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { aTurn, createSession, record } from '../conformance/turn-store.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'

const read = (page: string) => readFileSync(new URL(`../../docs/${page}`, import.meta.url), 'utf8')
const docs = read('store.md')
const statements = [...docs.matchAll(/```sql\n([^`]*)```/g)].map(([, sql]) => sql!)

t.test('docs/store.md names every table, and its statements work beside a running server', async (t) => {
  const folder = t.testdir()
  const path = join(folder, 'turns.db')
  const store = await openSqliteStore({ path, durability: 'process' })
  t.teardown(() => store.close())
  await store.createSession(createSession('my-session'))
  await record(store, aTurn('a', { sessionId: 'my-session' }))

  const db = new Database(path, { readonly: true })
  t.teardown(() => db.close())
  const tables = db
    .prepare<[], string>(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`)
    .pluck()
    .all()
  const undocumented = tables.filter((table) => !docs.includes(`| \`${table}\` |`))
  t.strictSame(undocumented, [])

  t.equal(statements.length, 4)
  for (const sql of statements) t.match(db.prepare(sql).all(), { length: 1 }, sql)
})

t.test('the backup of docs/deployment.md completes while turns are recorded', async (t) => {
  const folder = t.testdir()
  const path = join(folder, 'turns.db')
  const store = await openSqliteStore({ path, durability: 'process' })
  t.teardown(() => store.close())
  await store.createSession(createSession('s'))
  let turns = 0
  const recordOne = (completionText: string) =>
    record(store, aTurn(`turn-${turns}`, { sessionId: 's', index: turns++ }), { completionText })
  for (let index = 0; index < 32; index += 1) await recordOne(randomBytes(1_048_576).toString('hex'))

  const [, command] = read('deployment.md').match(/^llm-proxy (backup .*)$/m)!
  const copy = join(folder, 'copy.db')
  const backupCommand = command!.replace('/data/llm-proxy.db', path).replace('/backup/llm-proxy.db', copy)
  const before = turns
  let isRunning = true
  const ended = runLlmProxy(backupCommand.split(' ')).finally(() => {
    isRunning = false
  })
  while (isRunning) await recordOne('recorded meanwhile')
  t.match(await ended, { code: 0, stderr: '' })

  const restored = new Database(copy, { readonly: true })
  t.teardown(() => restored.close())
  t.equal(restored.pragma('integrity_check', { simple: true }), 'ok')
  const restoredTurns = restored.prepare<[], number>('SELECT count(*) FROM turns').pluck().get()!
  t.ok(before <= restoredTurns && restoredTurns <= turns, `${before} of ${restoredTurns} of ${turns} turns`)
})
