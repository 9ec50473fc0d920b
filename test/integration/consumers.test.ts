/** Consumers over HTTP: trainers' processes fetch and acknowledge sessions, also when one of them dies. */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { Fetched } from '../../src/proxy/http/trainer/consumers/schemas.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { startChild, waitForExit } from '../helpers/children.ts'
import { STEPS } from '../helpers/consuming-trainer.ts'
import { findSchemaErrors, recordTurn, type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'
import { inProcess } from '../helpers/store-in-process.ts'
import { until } from '../helpers/until.ts'

const TRAINER = join(import.meta.dirname, '../helpers/consuming-trainer.ts')

interface SessionOptions {
  metadata?: Record<string, unknown>
  reward?: number | null
  version?: string | null
}

/** Creates a completed session of one exact turn. */
async function createSession(
  { store, sessions }: SessionsApi,
  sessionId: string,
  options: SessionOptions = {},
): Promise<void> {
  const { metadata = {}, reward = 1, version = '5' } = options
  await sessions.create({ sessionId, metadata })
  await recordTurn(store, sessionId, 0, { weightVersionStart: version, weightVersionEnd: version })
  if (reward !== null) await sessions.setReward(sessionId, { reward, components: {} })
  await sessions.complete(sessionId)
}

async function startConsumer(t: Test, consumer: object = {}): Promise<SessionsApi> {
  const api = await startSessionsApi(t)
  t.match(await api.call('POST', '/consumers/trainer', consumer), {
    status: 200,
    body: { status: 'created' },
  })
  return api
}

async function fetchSessions(api: SessionsApi, body: object = {}) {
  const { status, body: response } = await api.call('POST', '/consumers/trainer/fetch', body)
  if (status !== 200) throw new Error(JSON.stringify(response))
  const ids: string[] = response.sessions.map(({ session_id: id }: { session_id: string }) => id)
  return { ...response, ids }
}

const acknowledge = async (api: SessionsApi, lease_id: string, session_ids?: string[]) =>
  (await api.call('POST', '/consumers/trainer/ack', { lease_id, session_ids })).body

t.test(
  `sessions are delivered with their rows in the order of their ends, and not after an acknowledgement`,
  async (t) => {
    const api = await startConsumer(t)
    for (const id of ['b', 'a/1', 'c']) await createSession(api, id)
    const first = await fetchSessions(api, { limit: 2, lease_s: 600 })
    t.strictSame(first.ids, ['b', 'a/1'])
    const { ids: _, ...response } = first
    t.strictSame(findSchemaErrors(Fetched, response), [])
    const { body: read } = await api.call('GET', '/sessions/b/trajectories')
    t.strictSame(first.sessions[0], { ...read, deliveries: 1 })
    const second = await fetchSessions(api, { limit: 2 })
    t.strictSame(second.ids, ['c'], 'the others are leased')
    t.strictSame((await fetchSessions(api)).ids, [])
    t.match(await acknowledge(api, first.lease_id), { acknowledged: { length: 2 }, lost: { length: 0 } })
    const { body: released } = await api.call('POST', '/consumers/trainer/release', {
      lease_id: second.lease_id,
    })
    t.strictSame(released, { released: ['c'], lost: [] })
    const repeated = await fetchSessions(api, { limit: 5, lease_id: 'mine' })
    t.match(repeated, { lease_id: 'mine', ids: ['c'], sessions: [{ deliveries: 2 }] })
    t.match(await fetchSessions(api, { limit: 5, lease_id: 'mine' }), {
      ids: ['c'],
      sessions: [{ deliveries: 2 }],
    })
    t.strictSame(await acknowledge(api, second.lease_id, ['c', 'none']), {
      acknowledged: [],
      lost: ['c', 'none'],
    })
    const { body: extended } = await api.call('POST', '/consumers/trainer/extend', { lease_id: 'mine' })
    t.strictSame(extended, { extended: ['c'], lost: [] })
    t.match((await api.call('GET', '/consumers/trainer')).body, {
      available: 0,
      leased: 1,
      acknowledged: 2,
    })
    await api.sessions.reset('b')
    await api.sessions.complete('b')
    t.strictSame((await fetchSessions(api)).ids, ['b'], 'a session that was reset is delivered as a new one')
  },
)

t.test('a group is delivered once it has its size, and only with sessions of the consumer', async (t) => {
  const api = await startConsumer(t, {
    metadata: { split: 'train' },
    group_by: 'task',
    group_size: 2,
    rewarded: true,
  })
  const train = (task: unknown) => ({ metadata: { split: 'train', ...(task !== undefined && { task }) } })
  await createSession(api, 'x1', train('x'))
  await createSession(api, 'y1', train('y'))
  await createSession(api, 'test', { metadata: { split: 'test', task: 'x' } })
  await createSession(api, 'no task', train(undefined))
  await createSession(api, 'y2', { ...train('y'), reward: null })
  t.strictSame((await fetchSessions(api, { limit: 9 })).ids, [])
  t.match((await api.call('GET', '/consumers/trainer')).body, { available: 3, acknowledged: 2 })
  const waiting = fetchSessions(api, { limit: 9, wait_s: 60 })
  await api.call('POST', '/sessions/y2/reward', { reward: 0 })
  t.strictSame((await waiting).ids, ['y1', 'y2'])
  for (const id of ['x2', 'x3', 'x4', 'x5']) await createSession(api, id, train('x'))
  t.strictSame((await fetchSessions(api, { limit: 1 })).ids, ['x1', 'x2'])
  t.strictSame((await fetchSessions(api, { limit: 9 })).ids, ['x3', 'x4'])
})

t.test('a group that stays incomplete is discarded after its timeout, and counted', async (t) => {
  const api = await startConsumer(t, { group_by: 'task', group_size: 2, group_timeout_s: 0 })
  for (const task of ['a', 'b', 'b'])
    await createSession(api, `${task}${Math.random()}`, { metadata: { task } })
  t.match(await fetchSessions(api, { limit: 9 }), { ids: { length: 2 }, incomplete: 1 })
  t.match((await api.call('GET', '/consumers/trainer')).body, {
    ...{ group_timeout_s: 0, available: 0, leased: 2, acknowledged: 1, discarded: 1 },
  })
  await createSession(api, 'late', { metadata: { task: 'a' } })
  t.match(await fetchSessions(api, { limit: 9 }), { ids: { length: 0 }, incomplete: 1 })
})

t.test('a waiting fetch returns the next session that ends, or nothing after its timeout', async (t) => {
  const api = await startConsumer(t)
  t.strictSame((await fetchSessions(api, { wait_s: 0.02 })).ids, [])
  const waiting = [fetchSessions(api, { wait_s: 60 }), fetchSessions(api, { wait_s: 60 })]
  await createSession(api, 'a')
  await createSession(api, 'b')
  t.strictSame((await Promise.all(waiting)).map(({ ids }) => ids.join()).sort(), ['a', 'b'])
})

t.test('sessions with older or unknown weight versions are discarded with their group', async (t) => {
  const api = await startConsumer(t, { group_by: 'task', group_size: 2 })
  for (const [task, ...versions] of [
    ['old', '9', '10'],
    ['unknown', '10', null],
    ['good', '10', '11'],
  ] as const)
    for (const [index, version] of versions.entries())
      await createSession(api, `${task}${index}`, { metadata: { task }, version })
  t.match(await fetchSessions(api, { limit: 1, min_weight_version: 10 }), {
    ids: ['good0', 'good1'],
    discarded: { stale: 2, unversioned: 2 },
    incomplete: 0,
  })
  t.match((await api.call('GET', '/consumers/trainer')).body, { available: 0, leased: 2, acknowledged: 4 })
})

t.test('a client that disconnects during its response has leased nothing', async (t) => {
  const api = await startConsumer(t)
  const longPrompt = Array.from({ length: 1_500_000 }, (_, id) => id)
  for (const id of ['a', 'b', 'c']) {
    await api.sessions.create({ sessionId: id })
    await recordTurn(api.store, id, 0, { promptTokenIds: Int32Array.from(longPrompt) })
    await api.sessions.complete(id)
  }
  const client = new AbortController()
  const response = await fetch(`${api.url}/consumers/trainer/fetch`, {
    ...{ method: 'POST', body: '{"limit": 3, "lease_s": 600}', signal: client.signal },
  })
  await response.body!.getReader().read()
  client.abort()
  await until(async () => (await api.call('GET', '/consumers/trainer')).body.available === 3)
})

t.test('creating a consumer again returns it; another selection under its name is rejected', async (t) => {
  const api = await startConsumer(t, { metadata: { task: 'x' }, since: 5 })
  const create = (body: object) => api.call('POST', '/consumers/trainer', body)
  const { status, body } = await create({ metadata: { task: 'x' }, since: 9 })
  t.match({ status, body }, { status: 200, body: { status: 'exists', since: 5, hold_s: 604_800, run: null } })
  t.match(await create({ metadata: { task: 'y' } }), { status: 409, body: { code: 'consumer_exists' } })
  t.match(await create({ group_size: 2 }), { status: 400, body: { param: 'group_size' } })
  t.match(await api.call('POST', '/consumers/a%2Fb', {}), { status: 400 })
  t.match((await api.call('GET', '/consumers')).body, { consumers: [{ consumer: 'trainer' }] })
  t.match((await api.call('DELETE', '/consumers/trainer')).body, { status: 'deleted' })
  t.match((await api.call('DELETE', '/consumers/trainer')).body, { status: 'not_found' })
  t.match(await api.call('POST', '/consumers/trainer/ack', { lease_id: 'l' }), {
    status: 404,
    body: { code: 'consumer_not_found' },
  })
})

t.test(
  'a session that is not acknowledged outlives its time to live, and a restart of the proxy',
  async (t) => {
    const path = join(t.testdir({}), 'turns.db')
    const open = () => openSqliteStore({ path, durability: 'process', spawn: inProcess })
    let nowMs = Date.now()
    const first = await startSessionsApi(t, await open(), { clock: () => nowMs, defaultTtlMs: 1_000 })
    await first.call('POST', '/consumers/trainer', {})
    for (const id of ['a', 'b']) await createSession(first, id)
    const { lease_id: leaseId } = await fetchSessions(first, { lease_s: 600 })
    await first.sessions.close()
    await first.store.close()
    const second = await startSessionsApi(t, await open(), { clock: () => nowMs, defaultTtlMs: 1_000 })
    nowMs += 60_000
    t.strictSame(await second.sessions.sweep(), [])
    t.strictSame(await acknowledge(second, leaseId), { acknowledged: ['a'], lost: [] })
    t.strictSame(await second.sessions.sweep(), ['a'])
    t.strictSame((await fetchSessions(second, { limit: 9 })).ids, ['b'])
    nowMs += 604_800_000
    t.strictSame(await second.sessions.sweep(), ['b'], 'after a week')
  },
)

/** Runs a trainer's process. @returns the lines of its output, and whether it killed itself */
async function runTrainer(api: SessionsApi, dieAt: string) {
  const child = startChild(process.execPath, [TRAINER, api.url, dieAt])
  let output = ''
  child.stdout.setEncoding('utf8').on('data', (text) => (output += text))
  const [, signal] = await waitForExit(child)
  return { lines: output.split('\n').slice(0, -1), died: signal === 'SIGKILL' }
}

t.test(
  'a trainer that is killed at any step loses no session, and repeats none that it acknowledged',
  async (t) => {
    const api = await startConsumer(t)
    const sessionIds: string[] = []
    for (const step of STEPS) {
      for (let count = 0; count < 4; count += 1) {
        sessionIds.push(`${step.replaceAll(' ', '-')}-${count}`)
        await createSession(api, sessionIds.at(-1)!)
      }
    }
    const lines: string[] = []
    for (const step of STEPS) {
      const { lines: output, died } = await runTrainer(api, step)
      t.ok(died, step)
      lines.push(...output)
      // The trainer's successor: sessions that were leased and not acknowledged are delivered first.
      await api.call('POST', '/consumers/trainer/release', {})
    }
    const { lines: rest, died } = await runTrainer(api, 'never')
    t.notOk(died)
    lines.push(...rest)
    const acked = new Set<string>()
    const trained: string[] = []
    for (const line of lines) {
      const [what, id] = line.split(' ') as [string, string]
      if (what === 'acked') acked.add(id)
      else t.notOk(acked.has(id), `${id} is acknowledged`)
      if (what === 'trained') trained.push(id)
    }
    t.strictSame([...new Set(trained)].sort(), [...sessionIds].sort(), 'no session is lost')
    // In the order of their ends, except for redelivered ones.
    t.strictSame([...new Set(trained)], sessionIds)
    // Sessions that were trained on before their acknowledgement. Whether the proxy applied an acknowledgement whose
    // response was lost is unknown.
    const repeated = trained.length - sessionIds.length
    t.ok([3, 6].includes(repeated), `${repeated} sessions were trained on twice`)
    t.match((await api.call('GET', '/consumers/trainer')).body, {
      available: 0,
      leased: 0,
      acknowledged: sessionIds.length,
    })
  },
)

t.test('processes share the sessions, and no session is delivered to two of them', async (t) => {
  const api = await startConsumer(t)
  const sessionIds = Array.from({ length: 40 }, (_, index) => `s${String(index).padStart(2, '0')}`)
  for (const id of sessionIds) await createSession(api, id)
  const all = await Promise.all(Array.from({ length: 3 }, () => runTrainer(api, 'never')))
  const lines = all.flatMap(({ lines }) => lines)
  for (const what of ['trained', 'acked'])
    t.strictSame(
      lines.filter((line) => line.startsWith(what)).sort(),
      sessionIds.map((id) => `${what} ${id}`),
    )
})

t.test('rewards of sessions that were fetched without one are counted in /health', async (t) => {
  const api = await startConsumer(t)
  for (const id of ['late', 'released', 'early'])
    await createSession(api, id, { reward: id === 'early' ? 1 : null })
  const { lease_id } = await fetchSessions(api, { limit: 3 })
  const lateRewards = async () => (await api.call('GET', '/health')).body.late_rewards
  t.equal(await lateRewards(), 0)
  const reward = { reward: 1 }
  await api.call('POST', '/sessions/early/reward', reward)
  t.equal(await lateRewards(), 0, 'the first reward existed when the session was fetched')
  for (const id of ['late', 'late']) await api.call('POST', `/sessions/${id}/reward`, reward)
  t.equal(await lateRewards(), 1)
  await api.call('POST', '/consumers/trainer/release', { lease_id, session_ids: ['released'] })
  t.same((await fetchSessions(api)).sessions[0].reward, null)
})
