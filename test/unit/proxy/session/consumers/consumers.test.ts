/** The reads of sessions by a fetch of a consumer. */
import t from 'tap'
import { intercept } from '../../../../../src/base/interceptor.ts'
import { Consumers } from '../../../../../src/proxy/session/consumers/consumers.ts'
import { Activity } from '../../../../../src/proxy/session/state/activity.ts'
import { FIRST_END } from '../../../../../src/proxy/store/port/consumers.ts'
import type { TurnStore } from '../../../../../src/proxy/store/port/turn-store.ts'
import { createConsumer } from '../../../../conformance/consumers.ts'
import { createSession } from '../../../../conformance/turn-store.ts'
import { openMemoryStore } from '../../../../helpers/store-in-process.ts'

const SELECTION = {
  metadata: {},
  groupBy: 'task',
  groupSize: 8,
  // The sessions ended in 1970: none of them is too old, however long these tests take.
  groupTimeoutMs: 2 * Date.now(),
  rewarded: false,
}

/** Opens a store that counts the sessions that it returns. */
async function openCountingStore() {
  const counts = { sessions: 0 }
  const store = intercept(await openMemoryStore(), {
    availableSessions: async (proceed) => {
      const found = await proceed()
      counts.sessions += found.length
      return found
    },
    findGroups: async (proceed) => {
      const found = await proceed()
      counts.sessions += found.units.flat().length
      return found
    },
  })
  return { store, counts }
}

async function complete(store: TurnStore, sessionId: string, task: unknown, atMs = 4000): Promise<void> {
  await store.createSession(createSession(sessionId, { metadata: { task } }))
  await store.endSession(sessionId, 'completed', atMs)
}

async function start(selection: Partial<typeof SELECTION> = {}) {
  const { store, counts } = await openCountingStore()
  const consumers = new Consumers(store, new Activity())
  const { consumer } = await consumers.create(createConsumer({ selection: { ...SELECTION, ...selection } }))
  let leases = 0
  const progress = { leasedUntilMs: new Map<number, number>(), incomplete: 0 }
  const take = async (limit = 10) => {
    counts.sessions = 0
    leases += 1
    const lease = { consumer, leaseId: `lease ${leases}`, leaseMs: 60_000 }
    const units = await consumers.take(lease, limit, progress)
    return units.map((unit) => unit.map(({ session }) => session.sessionId).join(' '))
  }
  return { store, counts, take, progress }
}

t.test('a fetch reads no session of an incomplete group twice', async (t) => {
  const { store, counts, take } = await start()
  for (let index = 0; index < 700; index += 1) await complete(store, `s${index}`, Math.floor(index / 7))
  t.strictSame(await take(), [])
  t.equal(counts.sessions, 700)
  t.strictSame(await take(), [])
  t.equal(counts.sessions, 0)
  await complete(store, 'eighth', 3)
  t.strictSame(await take(), ['s21 s22 s23 s24 s25 s26 s27 eighth'])
  t.equal(counts.sessions, 9, 'the new one, and the group that it completes')
})

t.test('a fetch does not read a session without a reward again', async (t) => {
  const { store, counts, take } = await start({ rewarded: true, groupSize: 1 })
  await complete(store, 'a', 1)
  t.strictSame(await take(), [])
  t.equal(counts.sessions, 0)
  await store.setReward('a', { reward: 0, components: {} }, 5000)
  t.strictSame(await take(), ['a'])
})

t.test('values of different types are different groups, at any length', async (t) => {
  const { store, take } = await start({ groupSize: 2 })
  const values = ['1', 1, true, 'true', 'x'.repeat(50_000)]
  for (const [index, value] of values.entries()) await complete(store, `a${index}`, value)
  t.strictSame(await take(), [])
  for (const [index, value] of values.entries()) await complete(store, `b${index}`, value, 5000 + index)
  t.strictSame(await take(), ['a0 b0', 'a1 b1', 'a2 b2', 'a3 b3', 'a4 b4'])
})

t.test('one fetch returns more units than one read, in order', async (t) => {
  const { store, take } = await start({ groupSize: 100 })
  for (let index = 0; index < 500; index += 1) await complete(store, `s${index}`, index % 5, 4000 + index)
  const units = await take()
  t.strictSame(
    units.map((unit) => unit.split(' ')[0]),
    ['s0', 's1', 's2', 's3', 's4'],
  )
})

t.test('an incomplete group is discarded after its timeout', async (t) => {
  const { store, take, progress } = await start({ groupTimeoutMs: 1_000 })
  await complete(store, 'old', 'a', Date.now() - 10_000)
  await complete(store, 'older', 'b', Date.now() - 20_000)
  await complete(store, 'new', 'b', Date.now())
  t.strictSame(await take(), [])
  t.equal(progress.incomplete, 1)
  const query = { consumer: 'trainer', leaseId: '', after: FIRST_END, limit: 9, nowMs: Date.now() }
  const left = await store.availableSessions(query)
  t.strictSame(left.map(({ session }) => session.sessionId).sort(), ['new', 'older'])
})
