/**
 * The conformance suite of every {@link TurnStore} for consumers. Leases use the store's clock, so these tests wait.
 */
import fc from 'fast-check'
import type { Test } from 'tap'
import {
  type AvailableQuery,
  type Consumer,
  FIRST_END,
  type GroupQuery,
  type GroupsPage,
  type LeaseChange,
  type SessionKey,
} from '../../src/proxy/store/port/consumers.ts'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'
import { ANY_IDS, aTurn, createSession, createStoreTest, record } from './turn-store.ts'

const LONG_MS = 60_000
const DAY_MS = 86_400_000

export function createConsumer(fields: Partial<Consumer> = {}): Consumer {
  return {
    name: 'trainer',
    idPrefix: '',
    createdAtMs: 1000,
    sinceMs: 0,
    holdMs: DAY_MS,
    selection: {
      metadata: { task: 'x', 'ö"': 1 },
      groupBy: 'task',
      groupSize: 2,
      groupTimeoutMs: DAY_MS,
      rewarded: true,
    },
    ...fields,
  }
}

/** Creates a session that ended at `atMs`. */
async function createEndedSession(
  store: TurnStore,
  sessionId: string,
  atMs: number,
  ttlMs: number | null = null,
) {
  await store.createSession(createSession(sessionId, { ttlMs }))
  await record(store, aTurn(`turn of ${sessionId}`, { sessionId }), { endedAtMs: atMs })
  await store.endSession(sessionId, 'completed', atMs)
}

function getAvailable(store: TurnStore, query: Partial<AvailableQuery> = {}) {
  const all = { consumer: 'trainer', leaseId: 'new', after: FIRST_END, limit: 100, nowMs: Date.now() }
  return store.availableSessions({ ...all, ...query })
}

async function getAvailableIds(store: TurnStore, options = {}): Promise<string[]> {
  return (await getAvailable(store, options)).map(({ session }) => session.sessionId)
}

async function getKeys(store: TurnStore, ...ids: string[]): Promise<SessionKey[]> {
  const found = await getAvailable(store)
  return ids.map((id) => found.find(({ session }) => session.sessionId === id)!.key)
}

function lease(store: TurnStore, leaseId: string, units: SessionKey[][], leaseMs = LONG_MS) {
  return startLease(store, leaseId, units, leaseMs).then(({ trees }) => trees)
}

function startLease(store: TurnStore, leaseId: string, units: SessionKey[][], leaseMs = LONG_MS) {
  return store.leaseSessions({ consumer: 'trainer', leaseId, units, leaseMs, nowMs: Date.now() })
}

function change(store: TurnStore, to: LeaseChange['to'], leaseId: string | null, ids?: string[]) {
  const request = { consumer: 'trainer', leaseId, sessionIds: ids ?? null, to, leaseMs: LONG_MS }
  return store.changeLease({ ...request, nowMs: Date.now() })
}

export function consumerConformance(t: Test, open: (t: Test) => Promise<TurnStore>): void {
  const test = createStoreTest(t, open)

  test('a consumer has its fields, and creating it again changes nothing', async (t, store) => {
    const consumer = createConsumer({ name: 'runs/job-1/trainer', idPrefix: 'runs/job-1/' })
    t.strictSame(await store.createConsumer(consumer), { created: true, consumer })
    const second = await store.createConsumer({ ...consumer, createdAtMs: 2000, holdMs: 1 })
    t.strictSame(second, { created: false, consumer })
    t.strictSame(await store.getConsumer(consumer.name), consumer)
    await store.createConsumer(createConsumer({ name: 'a' }))
    const names = async (prefix: string) => (await store.listConsumers(prefix)).map(({ name }) => name)
    t.strictSame(await names(''), ['a', 'runs/job-1/trainer'])
    t.strictSame(await names('runs/job-1/'), ['runs/job-1/trainer'])
    t.equal(await store.deleteConsumer('a'), true)
    t.equal(await store.deleteConsumer('a'), false)
    t.equal(await store.getConsumer('a'), undefined)
  })

  test('ids of leases and sessions may contain any characters', async (t, store) => {
    await store.createConsumer(createConsumer())
    await createEndedSession(store, 'a', 1000)
    for (const id of ANY_IDS.filter((text) => text.isWellFormed())) {
      const [key] = await getKeys(store, 'a')
      t.strictSame(await lease(store, id, [[key!]]), [key!.tree])
      t.match(await store.listSessionStates('a'), [{ leaseId: id }])
      t.strictSame(await change(store, 'extended', `${id}.`), [], 'another lease')
      t.strictSame(await change(store, 'extended', id, [id]), [], 'another session')
      t.strictSame(await change(store, 'released', id, [id, 'a']), ['a'])
    }
  })

  test('without the consumer nothing is available, leased or counted', async (t, store) => {
    await createEndedSession(store, 'a', 1000)
    t.strictSame(await getAvailable(store), [])
    t.equal(await store.countForConsumer('trainer', 0), undefined)
    await t.rejects(lease(store, 'l', []), { code: 'consumer_not_found' })
    await t.rejects(change(store, 'acknowledged', 'l'), { code: 'consumer_not_found' })
  })

  test('completed sessions are available in the order of their ends, page by page', async (t, store) => {
    await store.createConsumer(createConsumer({ idPrefix: 'runs/r/', sinceMs: 2000 }))
    for (const [id, atMs] of Object.entries({ c: 4000, a: 2000, old: 1999, b: 3000, d: 4000 }))
      await createEndedSession(store, `runs/r/${id}`, atMs)
    await createEndedSession(store, 'runs/other/a', 3000)
    await store.createSession(createSession('runs/r/open'))
    await store.createSession(createSession('runs/r/bad'))
    await store.endSession('runs/r/bad', 'aborted', 3000)
    const order = ['a', 'b', 'c', 'd'].map((id) => `runs/r/${id}`)
    t.strictSame(await getAvailableIds(store), order)
    const found = await getAvailable(store)
    t.strictSame(found[0]!.session, await store.getSession('runs/r/a'))
    t.match(found, [{ deliveries: 1 }, {}, {}, {}])
    const paged: string[] = []
    let after = FIRST_END
    for (let page = 0; page < 4; page += 1) {
      const query = { consumer: 'trainer', leaseId: 'l', after, limit: 1, nowMs: Date.now() }
      const [one] = await store.availableSessions(query)
      after = { endedAtMs: one!.session.endedAtMs!, tree: one!.key.tree }
      paged.push(one!.session.sessionId)
    }
    t.strictSame(paged, order)
    t.strictSame(await store.countForConsumer('trainer', Date.now()), {
      ...{ available: 4, leased: 0, acknowledged: 0, discarded: 0 },
    })
  })

  test('a leased session is unavailable to others until its release, and to all once acknowledged', async (t, store) => {
    await store.createConsumer(createConsumer())
    for (const id of ['a', 'b', 'c']) await createEndedSession(store, id, 1000)
    const [a, b, c] = (await getKeys(store, 'a', 'b', 'c')) as [SessionKey, SessionKey, SessionKey]
    t.strictSame(await lease(store, 'one', [[a], [b]]), [a.tree, b.tree])
    t.strictSame(await lease(store, 'one', [[a]]), [a.tree], 'a repeated request leases it once')
    t.strictSame(await getAvailableIds(store), ['c'])
    t.strictSame(await getAvailableIds(store, { leaseId: 'one' }), ['a', 'b', 'c'])
    t.match(await getAvailable(store, { leaseId: 'one' }), [
      { deliveries: 1 },
      { deliveries: 1 },
      { deliveries: 1 },
    ])
    t.strictSame(await lease(store, 'two', [[a, c], [b]]), [], 'a unit is leased completely or not at all')
    t.strictSame(await change(store, 'acknowledged', 'one', ['a', 'c', 'none']), ['a'])
    t.strictSame(await change(store, 'acknowledged', 'one', ['a']), ['a'], 'again')
    t.strictSame(await change(store, 'released', 'one'), ['b'], 'an acknowledged session stays acknowledged')
    t.strictSame(await getAvailableIds(store, { leaseId: 'one' }), ['b', 'c'])
    t.strictSame(await lease(store, 'two', [[b, c]]), [b.tree, c.tree])
    t.strictSame(await change(store, 'acknowledged', 'one', ['b']), [], 'another lease has it')
    t.match(await getAvailable(store, { leaseId: 'two' }), [{ deliveries: 2 }, { deliveries: 1 }])
    t.strictSame(await store.countForConsumer('trainer', Date.now()), {
      ...{ available: 0, leased: 2, acknowledged: 1, discarded: 0 },
    })
    t.strictSame((await change(store, 'released', null)).sort(), ['b', 'c'], 'of all leases')
    t.strictSame(await getAvailableIds(store), ['b', 'c'])
  })

  test('a release of a lease that has been renewed or extended since has no effect', async (t, store) => {
    await store.createConsumer(createConsumer())
    for (const id of ['a', 'b', 'c']) await createEndedSession(store, id, 1000)
    const units = (await getKeys(store, 'a', 'b', 'c')).map((key) => [key])
    const { untilMs: leasedUntilMs } = await startLease(store, 'one', units)
    t.strictSame(
      (await store.listSessionStates('a')).map((state) => state.leasedUntilMs),
      [leasedUntilMs],
    )
    // The lease that a repeated fetch renews ends later.
    await startLease(store, 'one', units.slice(0, 1), LONG_MS + 1_000)
    await store.changeLease({
      ...{ consumer: 'trainer', leaseId: 'one', sessionIds: ['b'], to: 'extended', nowMs: Date.now() },
      leaseMs: LONG_MS + 1_000,
    })
    const release = { consumer: 'trainer', leaseId: 'one', sessionIds: ['a', 'b', 'c'], leaseMs: 0 }
    const released = await store.changeLease({ ...release, to: 'released', leasedUntilMs, nowMs: Date.now() })
    t.strictSame(released, ['c'])
    t.strictSame(await getAvailableIds(store), ['c'])
  })

  test('an expired lease is valid until another lease takes its sessions', async (t, store) => {
    await store.createConsumer(createConsumer())
    for (const id of ['a', 'b', 'c']) await createEndedSession(store, id, 1000)
    const [a, b, c] = (await getKeys(store, 'a', 'b', 'c')) as [SessionKey, SessionKey, SessionKey]
    await lease(store, 'one', [[a], [b], [c]], 1)
    await until(async () => (await getAvailableIds(store)).length === 3)
    t.match(await store.countForConsumer('trainer', Date.now()), { available: 3, leased: 0 })
    t.strictSame(await lease(store, 'two', [[a]]), [a.tree])
    t.strictSame(await change(store, 'acknowledged', 'one', ['a', 'b']), ['b'])
    t.strictSame(await change(store, 'extended', 'one', ['a', 'b', 'c']), ['c'])
    t.strictSame(await getAvailableIds(store), [])
  })

  test('consumers are independent, and a consumer that is created again has no state', async (t, store) => {
    await store.createConsumer(createConsumer())
    await store.createConsumer(createConsumer({ name: 'other' }))
    await createEndedSession(store, 'a', 1000)
    await lease(store, 'one', [await getKeys(store, 'a')])
    await change(store, 'acknowledged', 'one')
    t.strictSame(await getAvailableIds(store, { consumer: 'other' }), ['a'])
    await store.deleteConsumer('trainer')
    await store.createConsumer(createConsumer())
    t.strictSame(await getAvailableIds(store), ['a'])
  })

  test('a session that was reset, or deleted and created again, is new', async (t, store) => {
    await store.createConsumer(createConsumer())
    for (const id of ['a', 'b']) await createEndedSession(store, id, 1000)
    const [a, b] = (await getKeys(store, 'a', 'b')) as [SessionKey, SessionKey]
    await lease(store, 'one', [[a], [b]])
    await store.resetSession('a', 2000)
    await store.deleteSession('b')
    t.strictSame(await change(store, 'acknowledged', 'one', ['a', 'b']), [], 'its lease no longer exists')
    t.strictSame(await getAvailableIds(store), [])
    await store.endSession('a', 'completed', 3000)
    await createEndedSession(store, 'b', 4000)
    t.strictSame(await getAvailableIds(store), ['a', 'b'])
    t.strictSame(await lease(store, 'one', [[a], [b]]), [], 'its former keys lease nothing')
  })

  test('a sweep keeps sessions that a consumer has not acknowledged, during its retention time', async (t, store) => {
    const nowMs = Date.now()
    const endMs = nowMs - 10_000
    await store.createConsumer(createConsumer({ idPrefix: 'held-', sinceMs: endMs, holdMs: 20_000 }))
    for (const id of ['held-1', 'held-2', 'other']) await createEndedSession(store, id, endMs, 1)
    await createEndedSession(store, 'held-old', endMs - 1, 1)
    await createEndedSession(store, 'held-bad', endMs, 1)
    await store.resetSession('held-bad', endMs)
    await store.endSession('held-bad', 'aborted', endMs)
    t.match(await store.countSessions(nowMs), { expired: 3 })
    t.strictSame((await store.sweep(nowMs)).sort(), ['held-bad', 'held-old', 'other'])
    await lease(store, 'one', [await getKeys(store, 'held-1'), await getKeys(store, 'held-2')])
    t.strictSame(await store.sweep(nowMs), [], 'a lease alone does not permit removal')
    await change(store, 'acknowledged', 'one', ['held-1'])
    t.strictSame(await store.sweep(nowMs), ['held-1'])
    await store.deleteConsumer('trainer')
    await store.createConsumer(createConsumer({ holdMs: 5_000 }))
    t.strictSame(await store.sweep(nowMs), ['held-2'], 'its retention time has passed')
  })

  test('groups are found once they are complete, in the order of their completion', async (t, store) => {
    await store.createConsumer(createConsumer())
    const groups = { a1: 'a', b1: 'b', a2: 'a', b2: 'b', c1: 'c', a3: 'a', b3: 'b' }
    for (const [index, id] of Object.keys(groups).entries()) await createEndedSession(store, id, 1000 + index)
    const group = async (...ids: (keyof typeof groups)[]) => {
      const keys = await getKeys(store, ...ids)
      const members = ids.map((id, index) => ({ key: keys[index]!, group: groups[id] }))
      await store.putIntoGroups('trainer', members)
    }
    const query = { consumer: 'trainer', leaseId: 'new', size: 2, limit: 10, except: [], timeoutMs: DAY_MS }
    const find = (fields: Partial<GroupQuery> = {}) =>
      store.findGroups({ ...query, nowMs: Date.now(), ...fields })
    const getIds = ({ units }: GroupsPage) =>
      units.map((unit) => unit.map(({ session }) => session.sessionId).join(' '))
    await group('a3', 'b1', 'c1')
    t.strictSame(await getAvailableIds(store, { ungrouped: true }), ['a1', 'a2', 'b2', 'b3'])
    t.strictSame(getIds(await find()), [])
    await group('a1', 'a2', 'b2', 'b3')
    t.strictSame(await getAvailableIds(store, { ungrouped: true }), [])
    t.strictSame(getIds(await find()), ['a1 a2', 'b1 b2'])
    t.strictSame(getIds(await find({ limit: 1 })), ['a1 a2'])
    t.strictSame(getIds(await find({ size: 3 })), ['a1 a2 a3', 'b1 b2 b3'])
    const [a1] = await getKeys(store, 'a1')
    t.strictSame(getIds(await find({ except: [a1!.tree] })), ['b1 b2', 'a2 a3'])
    t.match(await store.countForConsumer('trainer', Date.now()), { available: 7, leased: 0, discarded: 0 })
    t.strictSame(await change(store, 'released', null), [], 'sessions of incomplete groups were never leased')
    t.match(await getAvailable(store), [{ deliveries: 1 }, {}, {}, {}, {}, {}, {}])
    await lease(store, 'one', [await getKeys(store, 'b1', 'b2')])
    t.strictSame(getIds(await find()), ['a1 a2'], 'the other groups are leased')
    t.strictSame(
      getIds(await find({ leaseId: 'one' })),
      ['a1 a2', 'b1 b2'],
      'its own lease does not exclude them',
    )
    await change(store, 'released', 'one')
    t.match((await find()).units[1], [{ deliveries: 2 }, { deliveries: 2 }])
    await store.deleteSession('a1')
    t.strictSame(getIds(await find()), ['b1 b2', 'a2 a3'])

    t.test('an incomplete group is stale after its timeout, and can be discarded', async (t) => {
      t.strictSame((await find({ size: 3, timeoutMs: Date.now() })).stale, [])
      // The deleted member counts until its rows are removed.
      const stale = async () => (await find({ size: 3 })).stale.sort()
      await until(async () => (await stale()).length === 2)
      t.strictSame(await stale(), ['a', 'c'], 'b was released recently')
      const nowMs = Date.now()
      t.equal(await store.discardGroups('trainer', ['c', 'none'], nowMs), 1)
      t.equal((await getAvailableIds(store)).includes('c1'), false)
      t.match(await store.countForConsumer('trainer', nowMs), { acknowledged: 1, discarded: 1 })
      await t.rejects(store.discardGroups('none', [], nowMs), { code: 'consumer_not_found' })
      await t.rejects(store.putIntoGroups('none', []), { code: 'consumer_not_found' })
    })
  })

  test('sessions without a reward can be omitted', async (t, store) => {
    await store.createConsumer(createConsumer())
    for (const id of ['a', 'b']) await createEndedSession(store, id, 1000)
    await store.setReward('b', { reward: 0, components: {} }, 2000)
    t.strictSame(await getAvailableIds(store, { rewarded: true }), ['b'])
    t.strictSame(await getAvailableIds(store), ['a', 'b'])
  })

  test('leases and acknowledgements of another store are added, and an acknowledgement stays', async (t, store) => {
    await store.createConsumer(createConsumer())
    for (const id of ['a', 'b', 'c']) await createEndedSession(store, id, 1000)
    const untilMs = Date.now() + LONG_MS
    const createDelivery = (leasedUntilMs: number | null, consumer = 'trainer') => {
      return { consumer, leaseId: 'elsewhere', leasedUntilMs, deliveries: 2 }
    }
    await store.putSessionStates('a', [createDelivery(null), createDelivery(null, 'unknown')])
    await store.putSessionStates('b', [createDelivery(untilMs)])
    await store.putSessionStates('none', [createDelivery(null)])
    t.strictSame(await store.listSessionStates('a'), [createDelivery(null)])
    t.strictSame(await store.listSessionStates('b'), [createDelivery(untilMs)])
    t.strictSame(await store.listSessionStates('c'), [])
    t.strictSame(await getAvailableIds(store), ['c'])
    t.strictSame(await getAvailableIds(store, { leaseId: 'elsewhere' }), ['b', 'c'])
    await store.putSessionStates('a', [createDelivery(untilMs)])
    t.strictSame(
      await store.listSessionStates('a'),
      [createDelivery(null)],
      'a lease does not replace an acknowledgement',
    )
    await store.putSessionStates('b', [createDelivery(untilMs + 1)])
    t.strictSame(await store.listSessionStates('b'), [createDelivery(untilMs)], 'nor does it replace a lease')
    await store.putSessionStates('b', [{ ...createDelivery(null), deliveries: 5 }])
    t.strictSame(
      await store.listSessionStates('b'),
      [createDelivery(null)],
      'an acknowledgement replaces a lease',
    )
    t.match(await store.countForConsumer('trainer', Date.now()), {
      available: 1,
      leased: 0,
      acknowledged: 2,
    })
    await store.resetSession('a', 2000)
    t.strictSame(await store.listSessionStates('a'), [], 'a session that was reset is new')
  })

  test('the store lists imported items, also after their deletion', async (t, store) => {
    const item = { kind: 'session', name: 'a', createdAtMs: 1000 } as const
    t.equal(await store.wasImported(item), false)
    await createEndedSession(store, 'a', 1000)
    for (let times = 0; times < 2; times += 1) await store.setImported(item, true)
    await store.deleteSession('a')
    t.equal(await store.wasImported(item), true)
    for (const other of [{ kind: 'consumer' }, { name: 'b' }, { createdAtMs: 1001 }] as const)
      t.equal(await store.wasImported({ ...item, ...other }), false)
    await store.setImported(item, false)
    t.equal(await store.wasImported(item), false)
  })

  test('for any sequence of steps, each session is acknowledged once and none is lost', async (t, store) => {
    let last = 0
    await fc.assert(
      fc.asyncProperty(fc.array(fc.nat({ max: 6 }), { maxLength: 40 }), async (steps) => {
        last += 1
        const idPrefix = `p${last}-`
        const consumer = `trainer ${last}`
        await store.createConsumer(createConsumer({ name: consumer, idPrefix }))
        const made: string[] = []
        const acknowledged: string[] = []
        const leases: { leaseId: string; ids: string[] }[] = []
        const nowMs = () => Date.now()
        const take = async (leaseId: string) => {
          const query = { consumer, leaseId, after: FIRST_END, limit: 2, nowMs: nowMs() }
          const found = await store.availableSessions(query)
          const units = found.map(({ key }) => [key])
          const { trees } = await store.leaseSessions({
            consumer,
            leaseId,
            units,
            leaseMs: LONG_MS,
            nowMs: nowMs(),
          })
          const ids = found
            .filter(({ key }) => trees.includes(key.tree))
            .map(({ session }) => session.sessionId)
          return { leaseId, ids }
        }
        const settle = async (
          to: LeaseChange['to'],
          lease: { leaseId: string; ids: string[] } | undefined,
        ) => {
          if (lease === undefined) return []
          return store.changeLease({
            ...{
              consumer,
              leaseId: lease.leaseId,
              sessionIds: lease.ids,
              to,
              leaseMs: LONG_MS,
              nowMs: nowMs(),
            },
          })
        }
        for (const [index, step] of steps.entries()) {
          if (step <= 2) {
            made.push(`${idPrefix}${index}`)
            await createEndedSession(store, made.at(-1)!, 1000 + index)
          } else if (step <= 4) leases.push(await take(`l${index}`))
          else if (step === 5) acknowledged.push(...(await settle('acknowledged', leases.pop())))
          else await settle('released', leases.shift())
        }
        // The trainer restarts: sessions that it has not acknowledged are delivered again.
        await store.changeLease({
          ...{ consumer, leaseId: null, sessionIds: null, to: 'released', leaseMs: 0, nowMs: nowMs() },
        })
        for (
          let lease = await take('end');
          lease.ids.length > 0;
          lease = await take(`end${acknowledged.length}`)
        )
          acknowledged.push(...(await settle('acknowledged', lease)))
        t.strictSame(acknowledged.sort(), made.sort())
      }),
      { numRuns: IS_FULL ? 25 : 8 },
    )
  })
}
