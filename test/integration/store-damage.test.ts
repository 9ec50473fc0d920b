/** A byte that changed on disk within a value is reported to every reader, and never trained. */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t, { type Test } from 'tap'
import { packTokenData } from '../../src/protocol/token-data/token-data.ts'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { openForReading } from '../../src/proxy/store/sqlite/database.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { createReader } from '../../src/proxy/store/sqlite/reader.ts'
import { anOutcome, aTurn, createSession, getTurns, record } from '../conformance/turn-store.ts'
import { toVersion } from '../helpers/older-database.ts'
import { startProxy } from '../helpers/proxy.ts'
import { recordTurn, startSessionsApi } from '../helpers/sessions-api.ts'
import { inProcess } from '../helpers/store-in-process.ts'
import { until } from '../helpers/until.ts'

async function open(t: Test, path: string): Promise<TurnStore> {
  const store = await openSqliteStore({ path, durability: 'process', spawn: inProcess })
  t.teardown(() => store.close())
  return store
}

const DAMAGED = { name: 'ProxyError', code: 'data_damaged', message: /is damaged/ }
const FIRST = Array.from({ length: 40 }, (_, index) => 1_000 + index)
const COMPLETION = 'An answer that is long enough to be named by its echo, as answers are.'
const QUESTION = JSON.stringify({ role: 'user', content: 'What is the answer to it?' })

/** Records two turns, of which the second continues the first, and a reward. */
async function fill(store: TurnStore): Promise<void> {
  await store.createSession(createSession('s'))
  // New arrays each time, because they are transferred.
  const getResponse = () => ({
    completionText: COMPLETION,
    completionTokenIds: Int32Array.of(7, 8, 9),
    completionLogprobs: Float64Array.of(-0.5, -0.25, -1),
  })
  const first = aTurn('a', { requestMessages: [QUESTION] })
  await record(store, first, { ...getResponse(), promptTokenIds: Int32Array.from(FIRST) })
  const echo = JSON.stringify({ role: 'assistant', content: COMPLETION })
  const second = aTurn('b', { index: 1, requestMessages: [QUESTION, echo, QUESTION], tools: '[{"a":1}]' })
  await record(store, second, {
    ...getResponse(),
    promptTokenIds: Int32Array.from([...FIRST, 7, 8, 9, 5, 6]),
  })
  await store.setReward('s', { reward: 1, components: { style: 0.5 }, turns: { 1: 0.25 } }, 5_000)
}

async function readAll(store: TurnStore): Promise<void> {
  await store.getSession('s')
  for await (const _ of store.readTurns('s'));
}

/** Each changes one value as a flipped bit would. */
const CHANGES: readonly [table: string, column: string, change: string][] = [
  ...['completion_ids', 'prompt_rest'].map((column) => createBlobChange('turns', column)),
  createBlobChange('turns', 'completion_logprobs'),
  createBlobChange('nodes', 'texts'),
  ['turns', 'prompt_shared', 'prompt_shared - 1'],
  ['turns', 'exact', '1 - exact'],
  ['turns', 'call_index', 'call_index + 2'],
  ['turns', 'finish_reason', "'stoq'"],
  ['turns', 'weight_version_start', "'8'"],
  ['turns', 'node', 'node - 1'],
  ['turns', 'completion_text', "replace(completion_text, 'answer', 'bnswer')"],
  ['texts', 'body', "replace(body, 'answer', 'bnswer')"],
  ['sessions', 'reward', 'reward * 2'],
  ['sessions', 'reward_components', "replace(reward_components, '0.5', '0.7')"],
  ['sessions', 'reward_turns', "replace(reward_turns, '0.25', '0.75')"],
  ['sessions', 'reward_turns', 'NULL'],
]

/** Flips one bit of the last byte. */
function createBlobChange(table: string, column: string): [string, string, string] {
  return [table, column, `flipped(${column})`]
}

function update(path: string, [table, column, change]: (typeof CHANGES)[number]): number {
  const db = new Database(path)
  db.function('flipped', (blob) => {
    if (blob === null) return null
    const bytes = Buffer.from(blob as Buffer)
    bytes[bytes.length - 1]! ^= 1
    return bytes
  })
  const { changes } = db
    .prepare(`UPDATE ${table} SET ${column} = ${change} WHERE ${column} IS NOT NULL`)
    .run()
  db.close()
  return changes
}

async function createFilledDatabase(t: Test): Promise<{ path: string; bytes: Buffer }> {
  const path = join(t.testdir(), 'turns.db')
  const store = await open(t, path)
  await fill(store)
  await readAll(store)
  await store.close()
  return { path, bytes: readFileSync(path) }
}

t.test('a changed value of trained data is reported, and nothing is returned in its place', async (t) => {
  const { path, bytes } = await createFilledDatabase(t)
  for (const change of CHANGES) {
    writeFileSync(path, bytes)
    t.ok(update(path, change) > 0, `there is a ${change[1]}`)
    for (const read of ['readPage', 'readStepPage', 'readOutlinePage'] as const) {
      const db = openForReading(path)
      const reader = createReader(db, 1_000_000)
      const readAll = () => [reader.getSession('s'), reader[read](1, 's')]
      t.throws(readAll, DAMAGED, `${change[0]}.${change[1]} by ${read}`)
      db.close()
    }
  }
})

t.test('a flipped bit of the file is found, although its pages are consistent', async (t) => {
  const { path, bytes } = await createFilledDatabase(t)
  const offset = bytes.indexOf('An answer that is long')
  t.ok(offset > 0)
  bytes[offset + 3]! ^= 1
  writeFileSync(path, bytes)
  const store = await open(t, path)
  await t.rejects(readAll(store), DAMAGED)
  await store.close()
})

t.test('turns from before checksums existed are read', async (t) => {
  const { path } = await createFilledDatabase(t)
  const db = new Database(path)
  toVersion(db, 6)
  db.close()
  const store = await open(t, path)
  t.same(
    (await getTurns(store)).map(({ turnId }) => turnId),
    ['a', 'b'],
  )
  await record(store, aTurn('c', { index: 2 }), {})
  t.equal((await getTurns(store)).length, 3)
  await store.close()
})

t.test('a reward from before turns had rewards is sound, and a changed one is not', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const before = await open(t, path)
  await before.createSession(createSession('s'))
  const reward = { reward: 1, components: { style: 0.5 }, lines: { main: 2 } }
  await before.setReward('s', reward, 5_000)
  await before.close()
  const db = new Database(path)
  toVersion(db, 10)
  db.close()
  const store = await open(t, path)
  t.strictSame((await store.getSession('s'))?.reward, reward)
  await store.close()
  t.equal(update(path, ['sessions', 'reward_lines', `'{"main":3}'`]), 1)
  const changed = await open(t, path)
  await t.rejects(changed.getSession('s'), DAMAGED)
  await changed.close()
})

t.test('later changes of a turn are not damage', async (t) => {
  const { path } = await createFilledDatabase(t)
  const store = await open(t, path)
  await store.markUndelivered('s', 'b', { code: 'agent_gone', message: 'gone' })
  await store.openTurn(aTurn('d', { index: 3 }))
  await readAll(store)
  await store.closeTurn(anOutcome('d'))
  await readAll(store)
  await store.resetSession('s', 9_000)
  await readAll(store)
  await store.close()
})

t.test('a trainer gets an error for the damaged session, and the others completely', async (t) => {
  const path = join(t.testdir({}), 'proxy.db')
  const first = await startProxy(t, { db: path })
  const sendRequest = (session: string) =>
    first.post(`/${session}/v1/chat/completions`, {
      messages: [{ role: 'user', content: 'Hello' }],
      max_tokens: 4,
    })
  await sendRequest('sound')
  await sendRequest('bad')
  await first.server.stop(1_000)
  const db = new Database(path)
  db.exec(
    `UPDATE turns SET completion_ids = x'0101' WHERE tree = (SELECT tree FROM sessions WHERE session_id = 'bad')`,
  )
  db.close()
  const proxy = await startProxy(t, { db: path })
  for (const part of ['trajectories', 'traces', '']) {
    const response = await fetch(`${proxy.url}/sessions/bad/${part}`.replace(/\/$/, ''))
    t.equal(response.status, 500, part)
    t.match(await response.json(), { code: 'data_damaged', detail: /is damaged/ })
  }
  t.equal((await proxy.get('/sessions/sound/trajectories')).trajectories.length, 1)
  t.equal((await proxy.get('/sessions')).sessions.length, 2)
})

const OF_BAD = `tree = (SELECT tree FROM sessions WHERE session_id = 'bad')`

/**
 * Records completed sessions of two tasks, of which only `bad` is damaged, and starts the server over their database.
 */
async function startDamaged(t: Test, damage: string) {
  const path = join(t.testdir({}), 'proxy.db')
  const { store, sessions } = await startSessionsApi(t, await open(t, path))
  for (const [id, task] of [
    ['bad', 1],
    ['other', 1],
    ['sound', 2],
    ['sound too', 2],
  ] as const) {
    await sessions.create({ sessionId: id, metadata: { task } })
    await recordTurn(store, id, 0, { details: packTokenData({ advantages: [0.5] }) })
    await sessions.setReward(id, { reward: 1, components: {} })
    await sessions.complete(id)
  }
  await store.close()
  const db = new Database(path)
  db.exec(damage)
  db.close()
  const api = await startSessionsApi(t, await open(t, path))
  const fetchSessions = async (consumer: string, body: object) => {
    const { body: response } = await api.call('POST', `/consumers/${consumer}/fetch`, body)
    const ids: string[] = response.sessions.map(({ session_id: id }: { session_id: string }) => id)
    return { ids, damaged: response.damaged }
  }
  return { ...api, fetchSessions }
}

for (const damage of [
  `UPDATE turns SET completion_ids = x'0101' WHERE ${OF_BAD}`,
  `UPDATE sessions SET reward = 2 WHERE session_id = 'bad'`,
]) {
  t.test(`a consumer discards the damaged session with its group: ${damage}`, async (t) => {
    const { call, fetchSessions } = await startDamaged(t, damage)
    await call('POST', '/consumers/single', {})
    t.strictSame(await fetchSessions('single', { limit: 9 }), {
      ids: ['other', 'sound', 'sound too'],
      damaged: 1,
    })
    t.match((await call('GET', '/consumers/single')).body, { available: 0, leased: 3, acknowledged: 1 })
    await call('POST', '/consumers/single/release', {})
    t.match(await fetchSessions('single', { limit: 9 }), { ids: { length: 3 }, damaged: 0 })
    await call('POST', '/consumers/grouped', { group_by: 'task', group_size: 2 })
    t.strictSame(await fetchSessions('grouped', {}), { ids: ['sound', 'sound too'], damaged: 2 })
    t.match((await call('GET', '/consumers/grouped')).body, { available: 0, leased: 2, acknowledged: 2 })
  })
}

t.test('a damaged detail breaks one response, and is discarded for the next', async (t) => {
  const damage = `UPDATE details SET body = zeroblob(length(body)) WHERE ${OF_BAD}`
  const { call, fetchSessions } = await startDamaged(t, damage)
  await call('POST', '/consumers/trainer', {})
  await t.rejects(fetchSessions('trainer', { limit: 9, details: 'advantages' }))
  await until(async () => (await call('GET', '/consumers/trainer')).body.leased === 0)
  const { ids } = await fetchSessions('trainer', { limit: 9, details: 'advantages' })
  t.strictSame(ids, ['other', 'sound', 'sound too'])
  await call('POST', '/consumers/second', {})
  t.match(await fetchSessions('second', { limit: 9 }), { ids: { length: 4 }, damaged: 0 }, 'without details')
})
