/** Images in the SQLite file: once for all sessions, through restarts, and in files of an earlier version. */
import { createHash } from 'node:crypto'
import { statSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t from 'tap'
import { openForWriting } from '../../src/proxy/store/sqlite/database.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { aTurn, createSession, getTurns, record } from '../conformance/turn-store.ts'
import { toVersion } from '../helpers/older-database.ts'
import { startProxy } from '../helpers/proxy.ts'
import { inProcess } from '../helpers/store-in-process.ts'
import { until } from '../helpers/until.ts'
import { startVisionEngine } from '../helpers/vision-engine.ts'
import { createImagePart, createPngUrl, writeVisionModel } from '../helpers/vision-model.ts'

/** For a model, a picture of 56 by 84 pixels, with enough bytes to be visible in the size of a file. */
const PICTURE = Buffer.concat([
  Buffer.from(createPngUrl(56, 84).split(',')[1]!, 'base64'),
  Uint8Array.from({ length: 300_000 }, (_, index) => (index * index * 7919) % 253),
])
const URL = `data:image/png;base64,${PICTURE.toString('base64')}`
const MESSAGE = { role: 'user', content: [{ type: 'text', text: 'What is this?' }, createImagePart(URL)] }
const MESSAGE_JSON = JSON.stringify(MESSAGE)

const open = (path: string) => openSqliteStore({ path, durability: 'process', spawn: inProcess })

function countRows(path: string, table: string): number {
  const db = new Database(path, { readonly: true })
  const rows = db.prepare<[], number>(`SELECT count(*) FROM ${table}`).pluck().get()!
  db.close()
  return rows
}

t.test(
  'the samples of a group store a picture once, and return it to every reader, also after a restart',
  async (t) => {
    const { directory, imageId } = writeVisionModel(t)
    const engine = await startVisionEngine(t, imageId, [6])
    const path = join(directory, 'proxy.db')
    const config = {
      db: path,
      tokenizer: directory,
      engineUrls: [engine.url],
      engineKind: 'sglang' as const,
    }
    const sessions = Array.from({ length: 8 }, (_, sample) => `task:${sample}`)
    const first = await startProxy(t, config)
    for (const session of sessions) {
      const { choices } = await first.post(`/${session}/v1/chat/completions`, { messages: [MESSAGE] })
      t.equal(choices?.length, 1)
    }
    await first.server.stop(0)
    t.equal(countRows(path, 'blobs'), 1)
    t.ok(statSync(path).size < 2 * PICTURE.length, `the file has ${statSync(path).size} bytes`)

    const second = await startProxy(t, config)
    const sha256 = createHash('sha256').update(PICTURE).digest('hex')
    for (const session of sessions) {
      const { turns } = await second.get(`/sessions/${session}`)
      const [trace] = await second.get(`/sessions/${session}/traces`)
      const { trajectories, images } = await second.get(`/sessions/${session}/trajectories?images=true`)
      // Compared as text, so that a failure does not print the complete picture.
      t.ok(JSON.stringify(turns[0].request_messages) === JSON.stringify([MESSAGE]), 'as a turn')
      t.ok(JSON.stringify(trace.messages) === JSON.stringify([MESSAGE]), 'as a trace')
      t.equal(trajectories[0].images[0].sha256, sha256)
      t.ok(images[sha256] === URL, 'with its row')
    }
    await second.post('/sessions/batch_delete', { session_ids: sessions })
    await until(() => countRows(path, 'blobs') === 0)
  },
)

t.test('an image whose removal a crash prevented is removed at the next start', async (t) => {
  const path = join(t.testdir(), 'proxy.db')
  const store = await open(path)
  await store.createSession(createSession('s'))
  await record(store, aTurn('a', { requestMessages: [MESSAGE_JSON] }))
  await store.close()
  // The state of a process that ends right after the commit of the deletion.
  const { db, close } = openForWriting(path, 'process')
  db.exec('UPDATE trees SET dropped = 1; DELETE FROM sessions')
  close()
  t.equal(countRows(path, 'blobs'), 1)
  const next = await open(path)
  t.teardown(() => next.close())
  await until(() => countRows(path, 'trees') === 0)
  t.strictSame([countRows(path, 'blobs'), countRows(path, 'blob_uses'), countRows(path, 'texts')], [0, 0, 0])
})

t.test('a database from before images were stored separately is read and continued', async (t) => {
  const path = join(t.testdir(), 'proxy.db')
  const old = await open(path)
  await old.createSession(createSession('s'))
  await record(old, aTurn('a', { requestMessages: [MESSAGE_JSON] }))
  await old.close()
  const db = new Database(path)
  t.equal(db.prepare('UPDATE texts SET body = ? WHERE blobs IS NOT NULL').run(MESSAGE_JSON).changes, 1)
  toVersion(db, 8)
  db.close()

  const store = await open(path)
  t.teardown(() => store.close())
  await store.createSession(createSession('t'))
  const second = [MESSAGE_JSON, JSON.stringify({ ...MESSAGE, name: 'me' })]
  await record(store, aTurn('b', { index: 1, requestMessages: second }))
  await record(store, aTurn('c', { sessionId: 't', requestMessages: second }))
  const getMessages = async (session: string) =>
    (await getTurns(store, session)).map(({ requestMessages }) => requestMessages)
  t.strictSame(await getMessages('s'), [[MESSAGE_JSON], second])
  t.strictSame(await getMessages('t'), [second])
  t.equal(countRows(path, 'blobs'), 1)
  await store.deleteSession('s')
  await until(() => countRows(path, 'trees') === 1)
  t.strictSame(await getMessages('t'), [second])
})

t.test('a changed byte of a picture is reported to every reader of a session with it', async (t) => {
  const path = join(t.testdir(), 'proxy.db')
  const store = await open(path)
  await store.createSession(createSession('s'))
  await record(store, aTurn('a', { requestMessages: [MESSAGE_JSON] }))
  await store.close()
  const changed = Buffer.from(PICTURE)
  changed[100_000]! ^= 1
  for (const damage of ['UPDATE blobs SET body = @changed', 'DELETE FROM blobs WHERE body = @changed']) {
    const db = new Database(path)
    t.equal(db.prepare(damage).run({ changed }).changes, 1)
    db.close()
    const next = await open(path)
    await t.rejects(getTurns(next, 's'), { code: 'data_damaged' }, damage)
    await next.close()
  }
})
