import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { aSession, aTurn, record, turnsOf } from '../conformance/turn-store.ts'

const docs = readFileSync(new URL('../../docs/store.md', import.meta.url), 'utf8')
const statements = [...docs.matchAll(/```sql\n([^`]*)```/g)].map(([, sql]) => sql!)

t.test('docs/store.md names every table, and its statements work beside a running server', async (t) => {
  const folder = t.testdir()
  const path = join(folder, 'turns.db')
  const store = await openSqliteStore({ path, durability: 'process' })
  t.teardown(() => store.close())
  await store.createSession(aSession('my-session'))
  await record(store, aTurn('a', { sessionId: 'my-session' }))

  const db = new Database(path, { readonly: true })
  t.teardown(() => db.close())
  const tables = db
    .prepare<[], string>(`SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`)
    .pluck()
    .all()
  const undocumented = tables.filter((table) => !docs.includes(`| \`${table}\` |`))
  t.strictSame(undocumented, [])

  const [queries, backups] = [
    statements.filter((sql) => !sql.startsWith('VACUUM')),
    statements.filter((sql) => sql.startsWith('VACUUM')),
  ]
  t.equal(queries.length, 4)
  for (const sql of queries) t.match(db.prepare(sql).all(), { length: 1 }, sql)

  const copy = join(folder, 'backup.db')
  for (const sql of backups) db.exec(sql.replace('backup.db', copy))
  const restored = await openSqliteStore({ path: copy, durability: 'process' })
  t.teardown(() => restored.close())
  t.strictSame(await turnsOf(restored, 'my-session'), await turnsOf(store, 'my-session'))
})
