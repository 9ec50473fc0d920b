import Database from 'better-sqlite3'
import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

t.test(
  'sessions that had expired before the start are removed when the operator allows the number',
  async (t) => {
    const db = `${t.testdir()}/proxy.db`
    const before = await startProxy(t, { db })
    for (let index = 0; index < 30; index += 1) {
      const isShort = index < 25
      await before.post('/sessions', { session_id: `s${index}`, ...(isShort && { ttl_s: 60 }) })
    }
    await before.server.stop(0)
    const file = new Database(db)
    file.exec('UPDATE sessions SET updated_at_ms = updated_at_ms - 3600000')
    file.close()
    const proxy = await startProxy(t, { db })
    for (let index = 0; index < 40; index += 1) await proxy.post('/sessions', { ttl_s: 0.001 })
    let deleted = 0
    const backlog = await until(async () => {
      const response = await proxy.post('/admin/sweep')
      deleted += response.deleted
      return deleted === 40 && response
    })
    t.match(
      backlog,
      { status: 'held', expired: 25, wait_s: Number },
      'those that expired since the start did not wait',
    )
    const { notes } = await proxy.get('/health')
    t.match(notes.join('\n'), /25 of \d+ sessions expired.*POST \/admin\/sweep {"at_most": 25}/)
    t.match(await proxy.post('/admin/sweep', { at_most: 24 }), { status: 'held', deleted: 0, expired: 25 })
    t.strictSame(await proxy.post('/admin/sweep', { at_most: 25 }), {
      status: 'swept',
      deleted: 25,
      expired: 0,
      wait_s: null,
    })
    t.equal((await proxy.get('/sessions')).sessions.length, 5)
    t.notMatch((await proxy.get('/health')).notes.join('\n'), /sessions expired/)
  },
)

t.test('a few expired sessions are removed without a warning', async (t) => {
  const proxy = await startProxy(t)
  for (let index = 0; index < 5; index += 1) await proxy.post('/sessions', { ttl_s: 0.001 })
  let deleted = 0
  await until(async () => {
    deleted += (await proxy.post('/admin/sweep')).deleted
    return deleted === 5
  })
  t.strictSame((await proxy.get('/sessions')).sessions, [])
})
