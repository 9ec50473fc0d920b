import t from 'tap'
import type { Member } from '../../../../../src/proxy/engines/dispatch/placement.ts'
import { Scheduler } from '../../../../../src/proxy/engines/dispatch/scheduler.ts'

const WAIT_MS = 30_000

function member(id: string, more: Partial<Member> = {}): Member {
  return { id, maxConcurrency: 2, healthy: true, draining: false, models: [], ...more }
}

function createScheduler(...members: Member[]): Scheduler {
  const scheduler = new Scheduler({ queueLimit: 3, waitMs: WAIT_MS })
  for (const one of members) scheduler.addMember(one)
  return scheduler
}

const createRequest = (requestId: string, sessionId = `session of ${requestId}`, more = {}) => ({
  requestId,
  sessionId,
  ...more,
})

t.test('new sessions are distributed over idle members', (t) => {
  const scheduler = createScheduler(member('a'), member('b'))
  t.same(scheduler.submit(createRequest('1'), 0), { outcome: 'assigned', memberId: 'a' })
  scheduler.release('1')
  t.same(scheduler.submit(createRequest('2'), 0), { outcome: 'assigned', memberId: 'b' })
  t.end()
})

t.test('consecutive sessions, each ended before the next, are distributed', (t) => {
  const scheduler = createScheduler(member('a'), member('b'), member('c'))
  const served = ['1', '2', '3', '4', '5', '6'].map((id) => {
    const submission = scheduler.submit(createRequest(id, id), 0)
    scheduler.release(id)
    scheduler.releaseSession(id)
    return submission.outcome === 'assigned' && submission.memberId
  })
  t.same(served, ['a', 'b', 'c', 'a', 'b', 'c'])
  t.end()
})

t.test('a session returns to its member', (t) => {
  const scheduler = createScheduler(member('a'), member('b'))
  scheduler.submit(createRequest('1', 's'), 0)
  t.same(
    scheduler.submit(createRequest('2', 's'), 0),
    { outcome: 'assigned', memberId: 'a' },
    'while a request is in flight',
  )
  scheduler.release('1')
  scheduler.release('2')
  t.same(
    scheduler.submit(createRequest('3', 's'), 0),
    { outcome: 'assigned', memberId: 'a' },
    'and afterwards',
  )
  scheduler.release('3')
  scheduler.removeMember('a')
  scheduler.addMember(member('a'))
  t.same(
    scheduler.submit(createRequest('4', 's'), 0),
    { outcome: 'assigned', memberId: 'a' },
    'even after an outage',
  )
  t.end()
})

t.test('a session leaves a member that is unhealthy, draining or gone, and stays at the new one', (t) => {
  for (const change of [{ healthy: false }, { draining: true }, undefined]) {
    const scheduler = createScheduler(member('a'), member('b'))
    scheduler.submit(createRequest('1', 's'), 0)
    if (change === undefined) scheduler.removeMember('a')
    else scheduler.updateMember('a', change)
    t.same(scheduler.submit(createRequest('2', 's'), 0), { outcome: 'assigned', memberId: 'b' })
    if (change !== undefined) scheduler.updateMember('a', { healthy: true, draining: false })
    t.same(scheduler.submit(createRequest('3', 's'), 0), { outcome: 'assigned', memberId: 'b' })
    t.equal(scheduler.getStats().moves, 1, 'one migration')
  }
  t.end()
})

t.test('requests above the limit wait in order, and one too many is rejected', (t) => {
  const scheduler = createScheduler(member('a'))
  for (const id of ['1', '2']) t.equal(scheduler.submit(createRequest(id), 0).outcome, 'assigned')
  for (const id of ['3', '4', '5']) t.equal(scheduler.submit(createRequest(id), 0).outcome, 'waiting')
  t.same(scheduler.submit(createRequest('6'), 0), { outcome: 'queue_full' })
  t.same(scheduler.release('2'), [{ requestId: '3', memberId: 'a' }])
  t.same(scheduler.release('1'), [{ requestId: '4', memberId: 'a' }])
  t.equal(scheduler.getStats().waiting, 1)
  t.end()
})

t.test('a request whose model has no capacity does not block the next one', (t) => {
  const scheduler = createScheduler(
    member('q', { models: ['qwen'], maxConcurrency: 1 }),
    member('l', { models: ['llama'], maxConcurrency: 1 }),
  )
  scheduler.submit(createRequest('1', 's1', { model: 'qwen' }), 0)
  scheduler.submit(createRequest('2', 's2', { model: 'llama' }), 0)
  scheduler.submit(createRequest('3', 's3', { model: 'qwen' }), 0)
  scheduler.submit(createRequest('4', 's4', { model: 'llama' }), 0)
  t.same(scheduler.release('2'), [{ requestId: '4', memberId: 'l' }])
  t.end()
})

t.test('waiting requests start when a member can serve them', (t) => {
  const waiting = (...members: Member[]) => {
    const scheduler = createScheduler(...members)
    t.equal(scheduler.submit(createRequest('1'), 0).outcome, 'waiting')
    return scheduler
  }
  const started = [{ requestId: '1', memberId: 'a' }]
  t.same(waiting().addMember(member('a')), started, 'a member is added')
  t.same(
    waiting(member('a', { healthy: false })).updateMember('a', { healthy: true }),
    started,
    'one recovers',
  )
  const full = createScheduler(member('a', { maxConcurrency: 1 }))
  full.submit(createRequest('0'), 0)
  full.submit(createRequest('1'), 0)
  t.same(full.updateMember('a', { maxConcurrency: 2 }), started, 'a limit is raised')
  const bound = createScheduler(
    member('q', { models: ['qwen'], healthy: false }),
    member('a', { models: ['llama'] }),
  )
  bound.submit(createRequest('1', 's', { model: 'qwen' }), 0)
  t.same(bound.removeMember('q').assigned, started, 'the only member that listed their model is gone')
  t.end()
})

t.test('sessions without an end are evicted eventually, but not those with requests', (t) => {
  const scheduler = createScheduler(member('a'))
  const serve = (sessionId: string) => {
    scheduler.submit(createRequest(sessionId, sessionId), 0)
    scheduler.release(sessionId)
  }
  serve('busy')
  for (let i = 0; i < 100_010; i += 1) {
    serve(`s${i}`)
    if (i % 1_000 === 0) serve('busy')
  }
  t.match(scheduler.getStats(), { sessions: 100_000, members: [{ sessions: 100_000 }] })
  scheduler.addMember(member('b'))
  scheduler.submit(createRequest('1', 'busy'), 0)
  scheduler.submit(createRequest('2', 's0'), 0)
  t.same(
    scheduler.getStats().members.map(({ inFlight }) => inFlight),
    [1, 1],
    'the busy session keeps its member, the old one is new again and goes to an idle member',
  )
  t.end()
})

t.test('a removed member returns its running requests as lost, and forgets them', (t) => {
  const scheduler = createScheduler(member('a'), member('b'))
  scheduler.submit(createRequest('1', 's'), 0)
  scheduler.submit(createRequest('2', 's'), 0)
  scheduler.submit(createRequest('3', 'other'), 0)
  t.same(scheduler.removeMember('a').lost, ['1', '2'])
  t.same(scheduler.release('1'), [], 'their release has no effect')
  t.same(scheduler.getStats().members, [{ ...member('b'), inFlight: 1, sessions: 1, lastStart: 3 }])
  t.same(scheduler.removeMember('a'), { lost: [], assigned: [] }, 'nor does a second removal')
  t.end()
})

t.test('a request that a member failed goes to another one, or waits for it, with a limit', (t) => {
  const scheduler = createScheduler(member('a'), member('b', { maxConcurrency: 1 }))
  const second = createRequest('1', 's', { avoid: ['a'] })
  scheduler.submit(createRequest('0', 'other', { avoid: ['a'] }), 0)
  t.equal(scheduler.submit(second, 0).outcome, 'waiting', 'b could serve it once it has capacity')
  t.same(scheduler.removeMember('b').assigned, [{ requestId: '1', memberId: 'a' }], 'no other member is left')
  t.end()
})

t.test('a request expires when no member could serve it for the whole wait limit', (t) => {
  const scheduler = createScheduler()
  scheduler.submit(createRequest('1'), 0)
  scheduler.submit(createRequest('2'), 10)
  t.same(scheduler.expire(WAIT_MS - 1), [])
  t.same(scheduler.expire(WAIT_MS), ['1'])
  t.same(scheduler.expire(WAIT_MS + 10), ['2'])
  t.same(scheduler.addMember(member('a')), [], 'an expired request is gone')
  t.end()
})

t.test('time at a busy member or in a pause does not count towards the wait limit', (t) => {
  const scheduler = createScheduler(member('a', { maxConcurrency: 1 }))
  scheduler.submit(createRequest('0'), 0)
  scheduler.submit(createRequest('1'), 0)
  t.same(scheduler.expire(WAIT_MS), [], 'busy')
  scheduler.updateMember('a', { healthy: false })
  t.same(scheduler.expire(2 * WAIT_MS - 1), [], 'without a member, but not for long enough')
  scheduler.pause()
  t.same(scheduler.expire(2 * WAIT_MS), [], 'paused')
  scheduler.resume()
  t.same(scheduler.expire(3 * WAIT_MS), ['1'])
  t.end()
})

t.test('while paused, requests wait and running ones finish; resume starts them in order', (t) => {
  const scheduler = createScheduler(member('a'))
  scheduler.submit(createRequest('1'), 0)
  scheduler.pause()
  t.equal(scheduler.submit(createRequest('2'), 0).outcome, 'waiting')
  t.equal(scheduler.submit(createRequest('3'), 0).outcome, 'waiting')
  t.same(scheduler.release('1'), [])
  t.equal(scheduler.getStats().paused, true)
  t.same(scheduler.resume(), [
    { requestId: '2', memberId: 'a' },
    { requestId: '3', memberId: 'a' },
  ])
  t.end()
})

t.test('a withdrawn request is never assigned', (t) => {
  const scheduler = createScheduler()
  scheduler.submit(createRequest('1'), 0)
  t.equal(scheduler.withdraw('1'), true)
  t.equal(scheduler.withdraw('1'), false)
  t.same(scheduler.addMember(member('a')), [])
  t.end()
})

t.test('a released session is forgotten although one of its requests still waits', (t) => {
  const scheduler = createScheduler(member('a', { maxConcurrency: 1 }))
  scheduler.submit(createRequest('1', 's'), 0)
  scheduler.submit(createRequest('2', 's'), 0)
  scheduler.releaseSession('s')
  t.equal(scheduler.getStats().sessions, 0)
  t.same(scheduler.release('1'), [{ requestId: '2', memberId: 'a' }], 'the request is served')
  t.equal(scheduler.getStats().sessions, 0)
  t.same(scheduler.getStats().members[0]?.sessions, 0)
  t.end()
})

t.test('freeing a slot costs the same with any number of waiting requests, and so does expiry', (t) => {
  const countChecks = (waiting: number) => {
    let checks = 0
    const models = new Proxy(['m'], {
      get(target, name) {
        checks += 1
        return Reflect.get(target, name)
      },
    })
    const scheduler = new Scheduler({ queueLimit: waiting, waitMs: WAIT_MS })
    for (let index = 0; index < 16; index += 1) scheduler.addMember(member(`m${index}`, { models }))
    // Sessions have their members, half of which are full; the others have capacity and nearly the same
    // load.
    for (let index = 0; index < 32; index += 1)
      scheduler.submit(createRequest(`r${index}`, `s${index % 16}`, { model: 'm' }), 0)
    for (let index = 0; index < waiting; index += 1)
      scheduler.submit(createRequest(`w${index}`, `s${index % 8}`, { model: 'm' }), 0)
    checks = 0
    t.equal(scheduler.release('r8').length, 1)
    scheduler.expire(1)
    return checks
  }
  t.equal(countChecks(2_000), countChecks(20))
  t.end()
})

t.test('impossible arguments are rejected', (t) => {
  const scheduler = createScheduler(member('a'))
  scheduler.submit(createRequest('1'), 0)
  t.throws(() => scheduler.submit(createRequest('1'), 0), RangeError, 'a request twice')
  t.throws(() => scheduler.addMember(member('a')), RangeError, 'a member twice')
  t.throws(() => scheduler.addMember(member('b', { maxConcurrency: 0 })), RangeError, 'a limit below one')
  t.throws(
    () => scheduler.updateMember('a', { maxConcurrency: Number.NaN }),
    RangeError,
    'a limit that is not a number',
  )
  t.same(
    scheduler.updateMember('unknown', { healthy: true }),
    [],
    'a change of an unknown member has no effect',
  )
  t.end()
})
