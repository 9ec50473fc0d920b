/** The data that an import writes to the destination, and the data that it leaves unchanged there. */
import t, { type Test } from 'tap'
import { importConsumers } from '../../../../src/cli/sessions/import-consumers.ts'
import { importSessions } from '../../../../src/cli/sessions/import-sessions.ts'
import type { TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import { createConsumer } from '../../../conformance/consumers.ts'
import { aTurn, createSession, getTurns, record } from '../../../conformance/turn-store.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'

const NOTHING = { sessions: 0, turns: 0, completed: 0, kept: 0, deleted: 0, different: [] }

async function openBoth(t: Test): Promise<{ source: TurnStore; target: TurnStore }> {
  const both = { source: await openMemoryStore(), target: await openMemoryStore() }
  t.teardown(() => Promise.all([both.source.close(), both.target.close()]))
  return both
}

async function recordSession(store: TurnStore, sessionId: string, turns: number, from = 0): Promise<void> {
  if (from === 0) await store.createSession(createSession(sessionId))
  for (let index = from; index < turns; index += 1)
    await record(store, aTurn(`${sessionId}-${index}`, { sessionId, index }))
}

async function importAll(source: TurnStore, target: TurnStore) {
  const consumers = await importConsumers(source, target)
  return { consumers, ...(await importSessions(source, target, consumers.merged)) }
}

async function leaseAll(store: TurnStore, leaseId: string): Promise<string[]> {
  const nowMs = Date.now()
  const after = { endedAtMs: 0, tree: 0 }
  const found = await store.availableSessions({ consumer: 'trainer', leaseId, after, limit: 10, nowMs })
  const units = found.map(({ key }) => [key])
  await store.leaseSessions({ consumer: 'trainer', leaseId, units, leaseMs: 60_000, nowMs })
  return found.map(({ session }) => session.sessionId)
}

async function acknowledge(store: TurnStore, leaseId: string, sessionIds: string[]): Promise<void> {
  const change = { consumer: 'trainer', leaseId, sessionIds, leaseMs: 0, nowMs: Date.now() }
  await store.changeLease({ ...change, to: 'acknowledged' })
}

async function turnIds(store: TurnStore, sessionId: string): Promise<string[]> {
  return (await getTurns(store, sessionId)).map(({ turnId }) => turnId)
}

t.test('consumers come with their leases and acknowledgements', async (t) => {
  const { source, target } = await openBoth(t)
  await source.createConsumer(createConsumer())
  for (const id of ['trained', 'leased', 'new']) {
    await recordSession(source, id, 1)
    if (id !== 'new') await source.endSession(id, 'completed', 4000)
  }
  await leaseAll(source, 'step 1')
  await acknowledge(source, 'step 1', ['trained'])
  await source.endSession('new', 'completed', 5000)
  t.match(await importAll(source, target), {
    consumers: { created: 1, dropped: { length: 0 } },
    sessions: 3,
    turns: 3,
  })
  t.strictSame(await target.getConsumer('trainer'), createConsumer())
  t.strictSame(await leaseAll(target, 'step 2'), ['new'])
  await acknowledge(target, 'step 1', ['leased'])
  t.match(await target.countForConsumer('trainer', Date.now()), { leased: 1, acknowledged: 2 })

  t.test('acknowledgements made at the source after an import come with the next import', async (t) => {
    await leaseAll(source, 'step 3')
    await acknowledge(source, 'step 3', ['new'])
    t.match(await importAll(source, target), {
      consumers: { created: 0 },
      sessions: 0,
      kept: 3,
      different: { length: 0 },
    })
    t.match(await target.countForConsumer('trainer', Date.now()), {
      available: 0,
      leased: 0,
      acknowledged: 3,
    })
  })

  t.test(
    "a consumer that was deleted or created again at the destination starts with the destination's state",
    async (t) => {
      await target.deleteConsumer('trainer')
      t.match(await importAll(source, target), { consumers: { created: 0, dropped: ['trainer'] } })
      t.equal(await target.getConsumer('trainer'), undefined)
      await target.createConsumer(createConsumer({ createdAtMs: 9000 }))
      t.match(await importAll(source, target), { consumers: { dropped: ['trainer'] } })
      t.match(await target.countForConsumer('trainer', Date.now()), { available: 3, acknowledged: 0 })
    },
  )
})

t.test('a consumer that the trainer created at the destination gets the acknowledgements', async (t) => {
  const { source, target } = await openBoth(t)
  await source.createConsumer(createConsumer())
  await recordSession(source, 'a', 1)
  await source.endSession('a', 'completed', 4000)
  await leaseAll(source, 'l')
  await acknowledge(source, 'l', ['a'])
  await target.createConsumer(createConsumer({ createdAtMs: 9000 }))
  for (let times = 0; times < 2; times += 1) {
    await importAll(source, target)
    t.match(await target.countForConsumer('trainer', Date.now()), { available: 0, acknowledged: 1 })
  }
})

t.test('nothing is imported beside a consumer of the same name with other settings', async (t) => {
  const { source, target } = await openBoth(t)
  await source.createConsumer(createConsumer())
  await recordSession(source, 'a', 1)
  await target.createConsumer(createConsumer({ holdMs: 1 }))
  await t.rejects(importAll(source, target), {
    code: 'consumer_exists',
    message: /'trainer' with other settings/,
  })
  t.equal(await target.getSession('a'), undefined)
})

t.test('a second import does not restore deleted, reset or recreated sessions', async (t) => {
  const { source, target } = await openBoth(t)
  for (const id of ['deleted', 'reset', 'shorter', 'again', 'continued']) await recordSession(source, id, 2)
  t.match(await importAll(source, target), { sessions: 5, turns: 10 })
  await target.deleteSession('deleted')
  await target.resetSession('reset', 6000)
  await target.resetSession('shorter', 6000)
  await record(target, aTurn('new', { sessionId: 'shorter' }))
  await target.deleteSession('again')
  await target.createSession(createSession('again', { createdAtMs: 7000 }))
  await recordSession(target, 'continued', 3, 2)
  const { consumers: _consumers, ...second } = await importAll(source, target)
  t.strictSame(second, { ...NOTHING, kept: 4, deleted: 1, different: ['reset', 'shorter', 'again'] })
  t.equal(await target.getSession('deleted'), undefined)
  t.strictSame(await turnIds(target, 'reset'), [])
  t.strictSame(await turnIds(target, 'shorter'), ['new'])
  t.strictSame(await turnIds(target, 'again'), [])
  t.strictSame(await turnIds(target, 'continued'), ['continued-0', 'continued-1', 'continued-2'])
})

t.test('a session that an import left incomplete is completed', async (t) => {
  const full = async (store: TurnStore) => {
    await recordSession(store, 'a', 2)
    await store.endSession('a', 'completed', 4000)
    await store.changeMarks('a', { labels: ['l'] }, 4500)
    await store.setReward('a', { reward: 1, components: {} }, 5000)
  }
  const states: [string, (store: TurnStore) => Promise<unknown>][] = [
    ['no turns', (store) => store.createSession(createSession('a'))],
    ['one turn', (store) => recordSession(store, 'a', 1)],
    [
      'an open turn',
      async (store) => {
        await recordSession(store, 'a', 1)
        await store.openTurn(aTurn('a-1', { sessionId: 'a', index: 1 }))
      },
    ],
    ['no end', (store) => recordSession(store, 'a', 2)],
    [
      'no reward',
      async (store) => {
        await recordSession(store, 'a', 2)
        await store.endSession('a', 'completed', 4000)
      },
    ],
  ]
  for (const [title, leave] of states) {
    t.test(title, async (t) => {
      const { source, target } = await openBoth(t)
      await full(source)
      await leave(target)
      t.match(await importAll(source, target), { sessions: 0, completed: 1, kept: 0 })
      t.strictSame(await target.getSession('a'), await source.getSession('a'))
      t.strictSame(await getTurns(target, 'a'), await getTurns(source, 'a'))
      t.match(await importAll(source, target), { completed: 0, kept: 1, different: { length: 0 } })
    })
  }
})

t.test(
  'a session that continued at the source is imported again, unless it continued at the destination too',
  async (t) => {
    const { source, target } = await openBoth(t)
    for (const id of ['a', 'b', 'ended']) await recordSession(source, id, 1)
    await importAll(source, target)
    for (const id of ['a', 'b', 'ended']) await recordSession(source, id, 2, 1)
    await record(target, aTurn('other', { sessionId: 'b', index: 1 }))
    await target.endSession('ended', 'completed', 8000)
    t.match(await importAll(source, target), { completed: 1, kept: 2, different: ['b', 'ended'] })
    t.strictSame(await turnIds(target, 'a'), ['a-0', 'a-1'])
    t.strictSame(await turnIds(target, 'b'), ['b-0', 'other'])
    t.strictSame(await turnIds(target, 'ended'), ['ended-0'])
  },
)

t.test('labels that were removed at the destination stay removed', async (t) => {
  const { source, target } = await openBoth(t)
  await recordSession(source, 'a', 1)
  await source.changeMarks('a', { labels: ['l'] }, 3500)
  await importAll(source, target)
  await target.changeMarks('a', { labels: [] }, 3600)
  t.match(await importAll(source, target), { completed: 0, kept: 1 })
  t.strictSame((await target.getSession('a'))?.marks.labels, [])
})
