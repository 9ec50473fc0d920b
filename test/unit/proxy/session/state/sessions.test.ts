import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { setImmediate as nextTick } from 'node:timers/promises'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { intercept } from '../../../../../src/base/interceptor.ts'
import {
  Sessions,
  type SessionsOptions,
  type TurnAllocation,
} from '../../../../../src/proxy/session/state/sessions.ts'
import type { SweepBacklog } from '../../../../../src/proxy/session/state/sweeper.ts'
import type { OpenTurn, TurnStore } from '../../../../../src/proxy/store/port/turn-store.ts'
import { allocateTurn } from '../../../../helpers/session-turn-runner.ts'
import { openMemoryStore } from '../../../../helpers/store-in-process.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

/** Opens a store that counts reads, and that a test can make fail or wait. */
async function openObservedStore() {
  const observed = {
    creations: 0,
    sweeps: 0,
    sweepFails: false,
    creationFails: false,
    gate: undefined as Promise<void> | undefined,
  }
  const store = intercept(await openMemoryStore(), {
    createSession: async (proceed) => {
      observed.creations += 1
      if (observed.creationFails) throw new ProxyError('store_failed', 'disk full')
      await observed.gate
      return proceed()
    },
    sweep: async (proceed) => {
      observed.sweeps += 1
      if (observed.sweepFails) throw new ProxyError('store_failed', 'disk full')
      return proceed()
    },
  })
  return { store, observed }
}

type Setup = Partial<SessionsOptions> & { opened?: Awaited<ReturnType<typeof openObservedStore>> }

async function setUp(t: Test, { opened, ...options }: Setup = {}) {
  const { store, observed } = opened ?? (await openObservedStore())
  const ended: string[] = []
  const sweepFailures: ProxyError[] = []
  const deferredSweeps: SweepBacklog[] = []
  let nowMs = 1_000
  const hooks = {
    onEnded: (sessionId: string) => void ended.push(sessionId),
    onSweepFailed: (error: ProxyError) => void sweepFailures.push(error),
    onSweepDeferred: (pending: SweepBacklog) => void deferredSweeps.push(pending),
  }
  const clock = () => nowMs
  const sessions = new Sessions(store, hooks, {
    strict: false,
    defaultTtlMs: null,
    clock,
    settleMs: 5,
    ...options,
  })
  t.teardown(() => sessions.close())
  const advance = (ms: number) => {
    nowMs += ms
  }
  return { sessions, store, observed, ended, sweepFailures, deferredSweeps, advance }
}

async function record(
  store: TurnStore,
  allocation: TurnAllocation,
  turnId = `${allocation.sessionId}-${allocation.index}`,
) {
  const turn: OpenTurn = {
    turnId,
    sessionId: allocation.sessionId,
    index: allocation.index,
    dialect: 'chat',
    startedAtMs: 0,
    lastMessage: undefined,
    tools: null,
    params: '{}',
    promptPieces: [],
    retryCount: 0,
  }
  await store.openTurn(turn)
}

const never = new AbortController().signal

t.test('creating a session again returns it unchanged', async (t) => {
  const { sessions } = await setUp(t, { defaultTtlMs: 60_000 })
  const first = await sessions.create({ sessionId: 's', metadata: { a: 1 } })
  t.match(first, {
    created: true,
    session: { sessionId: 's', metadata: { a: 1 }, ttlMs: 60_000, createdAtMs: 1_000 },
  })
  const second = await sessions.create({ sessionId: 's', metadata: { a: 2 } })
  t.match(second, { created: false, session: { metadata: { a: 1 } } })
})

t.test('a session without an id gets one, and may live indefinitely', async (t) => {
  const { sessions } = await setUp(t, { generateId: () => 'generated', defaultTtlMs: 60_000 })
  t.match(await sessions.create({ ttlMs: null }), { session: { sessionId: 'generated', ttlMs: null } })
})

t.test('an invalid id creates nothing', async (t) => {
  const { sessions, observed } = await setUp(t)
  await t.rejects(async () => sessions.create({ sessionId: 'x'.repeat(513) }), { code: 'invalid_request' })
  await t.rejects(allocateTurn(sessions, 'health'), { code: 'invalid_request', param: 'session_id' })
  t.equal(observed.creations, 0)
})

t.test('a request for an unknown session creates it, unless sessions are strict', async (t) => {
  const { sessions, store } = await setUp(t)
  const allocation = await allocateTurn(sessions, 's')
  t.equal(allocation.index, 0)
  t.ok(await store.getSession('s'))
  const strict = await setUp(t, { strict: true })
  await t.rejects(allocateTurn(strict.sessions, 's'), { code: 'session_not_found', status: 404 })
  await strict.sessions.create({ sessionId: 's', samplingParams: { temperature: 0.5 } })
  t.match(await allocateTurn(strict.sessions, 's'), {
    index: 0,
    config: { samplingParams: { temperature: 0.5 } },
  })
})

t.test(
  'concurrent requests get gapless indexes in order of arrival, and create the session once',
  async (t) => {
    const { sessions, observed } = await setUp(t)
    const gate = Promise.withResolvers<void>()
    observed.gate = gate.promise
    const allocations = Array.from({ length: 20 }, () => allocateTurn(sessions, 's'))
    gate.resolve()
    t.strictSame(
      (await Promise.all(allocations)).map((allocation) => allocation.index),
      Array.from({ length: 20 }, (_, index) => index),
    )
    t.equal(observed.creations, 1)
  },
)

t.test('indexes continue after the last recorded one after a restart', async (t) => {
  const before = await setUp(t)
  for (let index = 0; index < 3; index += 1) {
    const allocation = await allocateTurn(before.sessions, 's')
    await record(before.store, allocation)
    allocation.reportClosed()
  }
  const { sessions } = await setUp(t, { opened: before })
  t.equal((await allocateTurn(sessions, 's')).index, 3)
})

t.test('an index whose turn could not be recorded goes to the next request', async (t) => {
  const { sessions, store } = await setUp(t)
  const first = await allocateTurn(sessions, 's')
  await record(store, first)
  const [freed, alsoFreed] = [await allocateTurn(sessions, 's'), await allocateTurn(sessions, 's')]
  freed.freeIndex()
  alsoFreed.freeIndex()
  t.equal((await allocateTurn(sessions, 's')).index, 1)
})

t.test('an index below a later recorded turn is not reused, also after a restart', async (t) => {
  const before = await setUp(t)
  const { sessions, store } = before
  const [freed, recorded] = [await allocateTurn(sessions, 's'), await allocateTurn(sessions, 's')]
  freed.freeIndex()
  await record(store, recorded)
  t.equal((await allocateTurn(sessions, 's')).index, 2)
  const later = await setUp(t, { opened: before })
  t.equal((await allocateTurn(later.sessions, 's')).index, 2, 'the turn count is 1')
})

t.test('an index from before a reset is never reused', async (t) => {
  const { sessions } = await setUp(t)
  const before = await allocateTurn(sessions, 's')
  before.reportClosed()
  await sessions.reset('s')
  const after = await allocateTurn(sessions, 's')
  before.freeIndex()
  t.equal(after.index, 0)
  t.equal((await allocateTurn(sessions, 's')).index, 1)
})

t.test('indexes continue after the last recorded one when an idle session was evicted', async (t) => {
  const { sessions, store } = await setUp(t, { memoryBytes: 0 })
  const [freed, recorded] = [await allocateTurn(sessions, 's'), await allocateTurn(sessions, 's')]
  await record(store, recorded)
  freed.freeIndex()
  freed.reportClosed()
  recorded.reportClosed()
  t.equal((await allocateTurn(sessions, 's')).index, 2)
})

t.test('a store that fails a request does not fail the next one', async (t) => {
  const { sessions, observed } = await setUp(t)
  observed.creationFails = true
  await t.rejects(allocateTurn(sessions, 's'), { code: 'store_failed' })
  observed.creationFails = false
  t.equal((await allocateTurn(sessions, 's')).index, 0)
})

t.test('a clock that is set forward deletes nothing, but elapsed time does', async (t) => {
  let steadyMs = 0
  let setForwardMs = 0
  const clock = () => 1_000_000 + steadyMs + setForwardMs
  const { sessions, observed } = await setUp(t, { clock, steadyClock: () => steadyMs })
  for (const sessionId of ['a', 'b']) await sessions.create({ sessionId, ttlMs: 60_000 })
  setForwardMs = 31 * 24 * 3_600_000
  t.same(await sessions.sweep(), [])
  t.equal(observed.sweeps, 0, 'the store is not swept needlessly')
  await sessions.create({ sessionId: 'later', ttlMs: 60_000 })
  steadyMs = 60_000
  t.same(await sessions.sweep(), ['a', 'b'], 'data written since then stays until the clocks agree')
  setForwardMs = -3_600_000
  t.same(await sessions.sweep(), [])
})

const HOUR_MS = 3_600_000

t.test(
  'a start with a clock that is weeks ahead deletes nothing for an hour, and logs this once',
  async (t) => {
    const opened = await openObservedStore()
    const names = Array.from({ length: 50 }, (_, index) => `s${index}`)
    const { sessions: before } = await setUp(t, { opened })
    for (const sessionId of names) await before.create({ sessionId, ttlMs: 24 * HOUR_MS })
    let steadyMs = 0
    let setForwardMs = 31 * 24 * HOUR_MS
    const clock = () => 1_000 + steadyMs + setForwardMs
    const { sessions, deferredSweeps, observed } = await setUp(t, {
      opened,
      clock,
      steadyClock: () => steadyMs,
    })
    t.same(await sessions.sweep(), [])
    steadyMs = HOUR_MS - 60_000
    t.same(await sessions.sweep(), [])
    t.same(deferredSweeps, [{ sessions: 50, expired: 50, restMs: HOUR_MS }])
    t.same(sessions.deferredSweep, { sessions: 50, expired: 50, restMs: 60_000 })
    setForwardMs = 0
    t.same(await sessions.sweep(), [])
    t.equal(sessions.deferredSweep, undefined, 'the clock was set right')
    setForwardMs = 31 * 24 * HOUR_MS
    t.same(await sessions.sweep(), [])
    t.match(sessions.deferredSweep, { restMs: HOUR_MS }, 'an hour starts again')
    steadyMs += HOUR_MS
    observed.sweepFails = true
    await t.rejects(sessions.sweep(), { code: 'store_failed' })
    observed.sweepFails = false
    t.same((await sessions.sweep()).toSorted(), names.toSorted(), 'after the hour all are swept')
    t.equal(sessions.deferredSweep, undefined)
  },
)

const MINUTE_MS = 60_000

/**
 * Starts after `downMs` without a proxy on a store with the sessions of `counts`: how many with which time to
 * live.
 */
async function startLater(t: Test, downMs: number, counts: readonly (readonly [number, number])[]) {
  const opened = await openObservedStore()
  const { sessions: before } = await setUp(t, { opened })
  for (const [count, ttlMs] of counts) {
    for (let i = 0; i < count; i += 1) await before.create({ ttlMs })
  }
  let steadyMs = 0
  const clock = () => 1_000 + downMs + steadyMs
  const advance = (ms: number) => {
    steadyMs += ms
  }
  return { ...(await setUp(t, { opened, clock, steadyClock: () => steadyMs })), advance }
}

t.test(
  'a quarter of all sessions that expired before the start, or a few, are swept immediately',
  async (t) => {
    const handful = await startLater(t, HOUR_MS, [[20, 1]])
    t.equal((await handful.sessions.sweep()).length, 20, 'although there are no others')
    const quarter = await startLater(t, HOUR_MS, [
      [25, 1],
      [75, 2 * HOUR_MS],
    ])
    t.equal((await quarter.sessions.sweep()).length, 25, '25 of 100')
    const more = await startLater(t, HOUR_MS, [
      [26, 1],
      [74, 2 * HOUR_MS],
    ])
    t.same(await more.sessions.sweep(), [])
    t.match(more.deferredSweeps, [{ sessions: 100, expired: 26 }])
  },
)

t.test(
  'sessions that expire while a proxy runs are swept in any number, also beside deferred ones',
  async (t) => {
    const { sessions, deferredSweeps, advance } = await startLater(t, HOUR_MS, [
      [60, 1],
      [40, 2 * HOUR_MS],
    ])
    t.same(await sessions.sweep(), [], 'nothing has run out since the start')
    for (let i = 0; i < 200; i += 1) await sessions.create({ ttlMs: MINUTE_MS })
    advance(MINUTE_MS)
    t.equal((await sessions.sweep()).length, 200)
    for (let i = 0; i < 400; i += 1) await sessions.create({ ttlMs: HOUR_MS })
    t.same(await sessions.sweep(), [], 'their small share has no effect now')
    t.match(sessions.deferredSweep, { sessions: 500, expired: 60, restMs: HOUR_MS - MINUTE_MS })
    advance(HOUR_MS - MINUTE_MS)
    t.equal((await sessions.sweep()).length, 60 + 40, 'after an hour all are swept')
    t.equal(deferredSweeps.length, 1)
  },
)

t.test(
  'sessions that expired shortly before the start, after the last sweep, are not deferred',
  async (t) => {
    const shortly = await startLater(t, 5 * MINUTE_MS, [[100, 1]])
    t.equal((await shortly.sessions.sweep()).length, 100)
    const before = await startLater(t, 5 * MINUTE_MS + 1, [[100, 1]])
    t.equal((await before.sessions.sweep()).length, 0)
  },
)

for (const method of ['complete', 'abort'] as const) {
  t.test(`${method} rejects later requests, and a repetition has the same result`, async (t) => {
    const { sessions, ended } = await setUp(t)
    await sessions.create({ sessionId: 's' })
    const status = method === 'complete' ? 'completed' : 'aborted'
    t.match(await sessions[method]('s'), { status, endedAtMs: 1_000 })
    await t.rejects(allocateTurn(sessions, 's'), { code: 'session_ended', status: 409 })
    t.match(await sessions.complete('s'), { status })
    t.match(await sessions.abort('s'), { status })
    t.equal(ended[0], 's')
  })
}

t.test('changes of a missing session report that', async (t) => {
  const { sessions, ended } = await setUp(t)
  await t.rejects(sessions.complete('s'), { code: 'session_not_found', message: 'Session not found' })
  await t.rejects(sessions.abort('s'), { code: 'session_not_found' })
  await t.rejects(sessions.reset('s'), { code: 'session_not_found' })
  await t.rejects(sessions.setReward('s', { reward: 1, components: {} }), { code: 'session_not_found' })
  await t.rejects(sessions.get('s'), { code: 'session_not_found' })
  await t.rejects(sessions.wait('s', 10, never), { code: 'session_not_found' })
  t.equal(await sessions.delete('s'), false)
  t.same(
    ended.filter((id) => id !== 's'),
    [],
  )
})

for (const method of ['complete', 'abort', 'reset', 'delete'] as const) {
  t.test(`${method} cancels requests in flight and waits until their turns are closed`, async (t) => {
    const { sessions, store } = await setUp(t, { settleMs: 60_000 })
    const [one, two] = await Promise.all([allocateTurn(sessions, 's'), allocateTurn(sessions, 's')])
    let isChanged = false
    const change = sessions[method]('s').then(() => {
      isChanged = true
    })
    await once(one.signal, 'abort')
    t.match(one.signal.reason, { code: 'turn_cancelled', status: 409 })
    t.ok(two.signal.aborted)
    one.reportClosed()
    one.reportClosed()
    await nextTick()
    t.equal(isChanged, false, 'one request is not done yet')
    t.equal((await store.getSession('s'))?.status, 'active')
    two.reportClosed()
    await change
  })
}

t.test('a change waits a limited time for requests that never end', async (t) => {
  const { sessions } = await setUp(t, { settleMs: 1 })
  await allocateTurn(sessions, 's')
  t.match(await sessions.complete('s'), { status: 'completed' })
})

t.test('a request that arrives while the session is completed finds it ended', async (t) => {
  const { sessions } = await setUp(t)
  const before = await allocateTurn(sessions, 's')
  const completion = sessions.complete('s')
  const after = t.rejects(allocateTurn(sessions, 's'), { code: 'session_ended' })
  before.reportClosed()
  await Promise.all([completion, after])
})

t.test('a request that arrives during a reset is the first one after it', async (t) => {
  const { sessions, store } = await setUp(t)
  const before = await allocateTurn(sessions, 's')
  await record(store, before)
  const reset = sessions.reset('s')
  const after = allocateTurn(sessions, 's')
  before.reportClosed()
  t.match(await reset, { status: 'active', turnCount: 0 })
  t.match(await after, { index: 0, signal: { aborted: false } })
})

t.test('a reset reopens an ended session', async (t) => {
  const { sessions } = await setUp(t)
  await sessions.create({ sessionId: 's' })
  await sessions.setReward('s', { reward: 1, components: {} })
  await sessions.abort('s')
  t.match(await sessions.reset('s'), { status: 'active', reward: null, endedAtMs: null })
  t.equal((await allocateTurn(sessions, 's')).index, 0)
})

t.test('a request that arrives while the session is deleted creates it again', async (t) => {
  const { sessions, store, observed, ended } = await setUp(t)
  const before = await allocateTurn(sessions, 's')
  await record(store, before)
  const deletion = sessions.delete('s')
  const after = allocateTurn(sessions, 's')
  before.reportClosed()
  t.equal(await deletion, true)
  t.equal((await after).index, 0)
  t.equal(observed.creations, 2)
  t.same(ended, ['s'])
})

t.test('wait resolves when the session ends, for every waiter', async (t) => {
  const { sessions } = await setUp(t)
  await sessions.create({ sessionId: 's' })
  const waits = [sessions.wait('s', 60_000, never), sessions.wait('s', 60_000, never)]
  await sessions.reset('s')
  await sessions.complete('s')
  for (const result of await Promise.all(waits)) {
    t.match(result, { timedOut: false, session: { status: 'completed' } })
  }
  t.match(await sessions.wait('s', 60_000, never), { timedOut: false, session: { status: 'completed' } })
})

t.test('wait reports that its time limit has passed', async (t) => {
  const { sessions } = await setUp(t)
  await sessions.create({ sessionId: 's' })
  t.match(await sessions.wait('s', 0, never), { timedOut: true, session: { status: 'active' } })
})

t.test('a cancelled wait rejects with the reason, and the session continues', async (t) => {
  const { sessions } = await setUp(t)
  await sessions.create({ sessionId: 's' })
  const controller = new AbortController()
  const wait = sessions.wait('s', 60_000, controller.signal)
  controller.abort(new ProxyError('agent_gone', 'left'))
  await t.rejects(wait, { code: 'agent_gone' })
  await t.rejects(sessions.wait('s', 60_000, controller.signal), { code: 'agent_gone' })
  t.equal((await sessions.get('s')).status, 'active')
})

t.test('deleting or sweeping a session ends a wait for it', async (t) => {
  const { sessions, advance, ended } = await setUp(t, { defaultTtlMs: 100 })
  await sessions.create({ sessionId: 'deleted' })
  const first = t.rejects(sessions.wait('deleted', 60_000, never), { code: 'session_not_found' })
  await sessions.delete('deleted')
  await first
  await sessions.create({ sessionId: 'swept' })
  const second = t.rejects(sessions.wait('swept', 60_000, never), { code: 'session_not_found' })
  advance(101)
  await nextTick()
  t.same(await sessions.sweep(), ['swept'])
  await second
  t.same(ended, ['deleted', 'swept'])
})

t.test('a sweep evicts an idle session from memory as well', async (t) => {
  const { sessions, observed, advance } = await setUp(t, { defaultTtlMs: 100 })
  const allocation = await allocateTurn(sessions, 's')
  allocation.reportClosed()
  advance(101)
  await sessions.sweep()
  t.equal((await allocateTurn(sessions, 's')).index, 0)
  t.equal(observed.creations, 2)
})

t.test('a request whose session is swept before its turn was opened is cancelled', async (t) => {
  const { sessions, advance } = await setUp(t, { defaultTtlMs: 100 })
  const allocation = await allocateTurn(sessions, 's')
  advance(101)
  await sessions.sweep()
  t.match(allocation.signal.reason, { code: 'turn_cancelled' })
  allocation.reportClosed()
})

t.test('sweeps run periodically, and a failed one is logged and retried', async (t) => {
  const { sessions, observed, sweepFailures, advance, ended } = await setUp(t, {
    defaultTtlMs: 100,
    sweepIntervalMs: 1,
  })
  await sessions.create({ sessionId: 's' })
  observed.sweepFails = true
  advance(101)
  await until(() => sweepFailures.length > 0)
  t.match(sweepFailures[0], { code: 'store_failed' })
  observed.sweepFails = false
  await until(() => ended.length > 0)
  t.same(ended, ['s'])
})

t.test('the least recently used idle session is evicted; its next request reads the store', async (t) => {
  const { sessions, store, observed } = await setUp(t, { memoryBytes: 2 * 7_000 })
  const use = async (sessionId: string) => {
    const allocation = await allocateTurn(sessions, sessionId)
    await record(store, allocation)
    allocation.reportClosed()
    return allocation.index
  }
  for (const sessionId of ['a', 'b', 'a', 'c']) await use(sessionId)
  t.equal(observed.creations, 3, 'a was in memory when it was used again')
  t.equal(await use('a'), 2)
  t.equal(observed.creations, 3, 'a was used last but one')
  t.equal(await use('b'), 1, 'and continues from its last state')
  t.equal(observed.creations, 4, 'b was not in memory')
})

t.test('a session with a request in flight or a waiter is never evicted', async (t) => {
  const { sessions } = await setUp(t, { memoryBytes: 0 })
  const allocation = await allocateTurn(sessions, 's')
  const wait = sessions.wait('s', 60_000, never)
  for (const other of ['a', 'b', 'c']) (await allocateTurn(sessions, other)).reportClosed()
  const completion = sessions.complete('s')
  await once(allocation.signal, 'abort')
  allocation.reportClosed()
  await completion
  t.match(await wait, { session: { status: 'completed' } })
})

t.test('closing cancels requests, ends waits and rejects later ones', async (t) => {
  const { sessions } = await setUp(t)
  const allocation = await allocateTurn(sessions, 's')
  const wait = t.rejects(sessions.wait('s', 60_000, never), { code: 'shutting_down' })
  await nextTick()
  const closed = sessions.close()
  t.match(allocation.signal.reason, { code: 'shutting_down', status: 503 })
  allocation.reportClosed()
  await Promise.all([closed, wait])
  await t.rejects(allocateTurn(sessions, 's'), { code: 'shutting_down' })
  await t.rejects(sessions.wait('s', 60_000, never), { code: 'shutting_down' })
})

t.test('for any concurrent events, recorded turns are numbered from 0 without gaps', async (t) => {
  const step = fc.record({
    kind: fc.constantFrom('turn', 'turn', 'turn', 'reset', 'delete', 'complete', 'get', 'evict'),
    pauseTicks: fc.nat({ max: 3 }),
    turnTicks: fc.nat({ max: 5 }),
  })
  await fc.assert(
    fc.asyncProperty(fc.array(step, { maxLength: 25 }), async (steps) => {
      const { sessions, store } = await setUp(t, { memoryBytes: 8_000, settleMs: 60_000 })
      const running: Promise<unknown>[] = []
      const run: Record<string, (turnTicks: number) => Promise<unknown>> = {
        turn: (turnTicks) => playTurn(sessions, store, turnTicks),
        reset: () => sessions.reset('s'),
        delete: () => sessions.delete('s'),
        complete: () => sessions.complete('s'),
        get: () => sessions.get('s'),
        evict: () => playTurn(sessions, store, 0, 'other'),
      }
      for (const { kind, pauseTicks, turnTicks } of steps) {
        running.push(run[kind]!(turnTicks).catch(expectRejection))
        await ticks(pauseTicks)
      }
      await Promise.all(running)
      // Commits the openings that the store still delays.
      await store.deleteSession('another')
      const turns = await Array.fromAsync(store.readTurns('s'))
      const numbers = turns.map((turn) => turn.index)
      if (numbers.some((number, index) => number !== index)) throw new Error(`turns are numbered ${numbers}`)
      await sessions.close()
    }),
    { numRuns: limitRuns(100) },
  )
})

/** The life of a turn: opened immediately, and ended some time later or when it is cancelled. */
async function playTurn(sessions: Sessions, store: TurnStore, turnTicks: number, sessionId = 's') {
  const allocation = await allocateTurn(sessions, sessionId)
  // A request does not wait for its opening, which fails if the session is deleted first.
  record(store, allocation, randomUUID()).catch(expectRejection)
  for (let left = turnTicks; left > 0 && !allocation.signal.aborted; left -= 1) await nextTick()
  allocation.reportClosed()
}

function expectRejection(error: ProxyError): void {
  if (error.code !== 'session_not_found' && error.code !== 'session_ended') throw error
}

async function ticks(count: number): Promise<void> {
  for (let left = count; left > 0; left -= 1) await nextTick()
}

async function until(isTrue: () => boolean): Promise<void> {
  while (!isTrue()) await nextTick()
}

t.test(
  "sampling parameters override the agent's values in the engine request, but not in the record",
  async (t) => {
    const { sessions } = await setUp(t)
    for (const field of ['messages', 'tools', 'prompt', 'stream']) {
      await t.rejects(sessions.create({ sessionId: 's', samplingParams: { [field]: [] } }), {
        code: 'invalid_request',
        param: `sampling_params.${field}`,
      })
    }
    t.match(await sessions.create({ samplingParams: { temperature: 0 } }), { created: true })
  },
)

t.test("the proxy's own metadata is in every session, below the values of its creator", async (t) => {
  const { sessions } = await setUp(t, { metadata: () => ({ note: 'embedded', kind: 'proxy' }) })
  await sessions.create({ sessionId: 'made', metadata: { kind: 'trainer' } })
  t.same((await sessions.get('made')).metadata, { note: 'embedded', kind: 'trainer' })
  ;(await allocateTurn(sessions, 'called')).reportClosed()
  t.same((await sessions.get('called')).metadata, { note: 'embedded', kind: 'proxy' })
})
