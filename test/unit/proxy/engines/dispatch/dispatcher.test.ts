import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { Dispatcher, type DispatcherOptions } from '../../../../../src/proxy/engines/dispatch/dispatcher.ts'
import type { Member } from '../../../../../src/proxy/engines/dispatch/placement.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { createListingLogger } from '../../../../helpers/listing-logger.ts'

const WAIT_MS = 30_000
const member = (id: string, maxConcurrency = 1): Member => ({
  id,
  maxConcurrency,
  healthy: true,
  draining: false,
  models: [],
})
const createRequest = (requestId: string) => ({ requestId, sessionId: `session of ${requestId}` })

function setUp(...setup: (Member | Partial<DispatcherOptions>)[]) {
  const members = setup.filter((one) => 'id' in one)
  const options = Object.assign({}, ...setup.filter((one) => !('id' in one)))
  const clock = new FakeClock()
  const absent = () => ({ code: 'no_worker', message: 'no worker is connected' }) as const
  const dispatcher = new Dispatcher({
    queueLimit: 2,
    waitMs: WAIT_MS,
    createAbsentError: absent,
    clock,
    ...options,
  })
  for (const one of members) dispatcher.addMember(one)
  const signal = new AbortController().signal
  const acquire = async (requestId: string) => await dispatcher.acquire(createRequest(requestId), signal)
  return { clock, dispatcher, acquire }
}

t.test('a lease is granted immediately, or when another one is released', async (t) => {
  const { acquire, dispatcher } = setUp(member('a'))
  const first = await acquire('1')
  t.equal(first.memberId, 'a')
  const second = acquire('2')
  t.equal(dispatcher.getStats().waiting, 1)
  first.release()
  t.equal((await second).memberId, 'a')
})

t.test('releasing a lease twice frees one slot', async (t) => {
  const { acquire, dispatcher } = setUp(member('a', 2))
  const first = await acquire('1')
  await acquire('2')
  first.release()
  first.release()
  t.equal(dispatcher.getStats().members[0]?.inFlight, 1)
})

t.test('a full queue rejects a request with queue_full', async (t) => {
  const { acquire } = setUp()
  void acquire('1').catch(() => {})
  void acquire('2').catch(() => {})
  await t.rejects(acquire('3'), { code: 'queue_full', status: 503, retryAfterS: 1 })
})

t.test('a request that no member can serve fails after the wait limit, and no timer is left', async (t) => {
  const { acquire, clock } = setUp()
  const waiting = acquire('1')
  clock.advance(WAIT_MS - 1_000)
  t.equal(clock.pending, 1)
  clock.advance(1_000)
  await t.rejects(waiting, { code: 'no_worker', status: 503 })
  t.equal(clock.pending, 0)
})

t.test('a request that waits for a busy member is not subject to the wait limit', async (t) => {
  const { acquire, clock } = setUp(member('a'))
  const first = await acquire('1')
  const second = acquire('2')
  clock.advance(10 * WAIT_MS)
  first.release()
  t.equal((await second).memberId, 'a')
})

t.test('an aborted request leaves the queue with the reason of the signal', async (t) => {
  const { dispatcher } = setUp()
  const controller = new AbortController()
  const waiting = dispatcher.acquire(createRequest('1'), controller.signal)
  const reason = new Error('agent left')
  controller.abort(reason)
  await t.rejects(Promise.resolve(waiting), reason)
  t.equal(dispatcher.getStats().waiting, 0)
  t.throws(() => dispatcher.acquire(createRequest('2'), controller.signal), reason, 'and never enters it')
})

t.test('the lease of a removed member is void', async (t) => {
  const { acquire, dispatcher } = setUp(member('a'))
  const lease = await acquire('1')
  t.same(dispatcher.removeMember('a'), ['1'])
  dispatcher.addMember(member('a'))
  await acquire('2')
  lease.release()
  t.equal(dispatcher.getStats().members[0]?.inFlight, 1)
})

t.test('a pause defers new requests until resume', async (t) => {
  const { acquire, dispatcher } = setUp(member('a'))
  dispatcher.pause()
  const waiting = acquire('1')
  t.equal(dispatcher.getStats().waiting, 1)
  dispatcher.resume()
  t.equal((await waiting).memberId, 'a')
})

const PAUSE_LIMIT_MS = 3_600_000

t.test('a pause beyond its limit rejects requests until resume', async (t) => {
  const { acquire, clock, dispatcher } = setUp(member('a'))
  dispatcher.pause()
  const waiting = acquire('1')
  clock.advance(PAUSE_LIMIT_MS - 1)
  t.equal(dispatcher.getStats().waiting, 1, 'a request waits that long')
  clock.advance(1)
  await t.rejects(waiting, { code: 'paused', status: 503 })
  await t.rejects(acquire('2'), { code: 'paused' })
  dispatcher.resume()
  t.equal((await acquire('3')).memberId, 'a')
})

t.test('pausing again restarts the limit, and a resume ends it', async (t) => {
  const { acquire, clock, dispatcher } = setUp(member('a'))
  dispatcher.pause()
  clock.advance(PAUSE_LIMIT_MS - 1)
  dispatcher.pause()
  const waiting = acquire('1')
  clock.advance(PAUSE_LIMIT_MS - 1)
  dispatcher.resume()
  t.equal((await waiting).memberId, 'a')
  clock.advance(PAUSE_LIMIT_MS)
  t.equal(clock.pending, 0, 'no timer is left')
})

t.test('without a limit a pause defers requests for its whole duration', async (t) => {
  const { acquire, clock, dispatcher } = setUp({ pauseLimitMs: 0 }, member('a'))
  dispatcher.pause()
  const waiting = acquire('1')
  clock.advance(100 * PAUSE_LIMIT_MS)
  dispatcher.resume()
  t.equal((await waiting).memberId, 'a')
})

t.test('the start of a pause, its duration and its end are logged', (t) => {
  const { logger, lines } = createListingLogger()
  const { clock, dispatcher } = setUp({ logger })
  dispatcher.pause()
  clock.advance(200_000)
  dispatcher.pause()
  dispatcher.resume()
  dispatcher.resume()
  t.match(lines, [
    { event: 'paused', level: 'info', limit_ms: PAUSE_LIMIT_MS },
    { event: 'still_paused', level: 'warn', paused_ms: 60_000 },
    { event: 'still_paused', level: 'warn', paused_ms: 180_000 },
    { event: 'resumed', level: 'info', paused_ms: 200_000 },
  ])
  t.equal(lines.length, 4)
  t.equal(clock.pending, 0)
  t.end()
})

t.test('close fails waiting and new requests, and lets running ones finish', async (t) => {
  const { acquire, clock, dispatcher } = setUp(member('a'))
  const running = await acquire('1')
  const waiting = acquire('2')
  dispatcher.close()
  await t.rejects(waiting, { code: 'shutting_down' })
  await t.rejects(acquire('3'), { code: 'shutting_down' })
  t.equal(clock.pending, 0)
  running.release()
  t.equal(dispatcher.getStats().members[0]?.inFlight, 0)
})

/** A clock whose timers fire up to half a millisecond early, as those of Node.js do. */
class EarlyClock extends FakeClock {
  override after(delayMs: number, task: () => void): () => void {
    return super.after(Math.max(0, delayMs - 0.5), task)
  }
}

t.test('an ejection ends although its timer fires early', async (t) => {
  const clock = new EarlyClock()
  const { acquire, dispatcher } = setUp({ clock }, member('a', 2), member('b', 2))
  const lease = await acquire('1')
  lease.reportFailure(new ProxyError('engine_rejected', 'busy', { status: 429, retryAfterS: 1 }))
  lease.release()
  const getEjected = () =>
    dispatcher
      .getStats()
      .members.filter(({ ejected }) => ejected)
      .map(({ id }) => id)
  clock.advance(999.75)
  t.strictSame(getEjected(), [lease.memberId], 'it has not ended yet')
  clock.advance(1)
  t.strictSame(getEjected(), [])
  t.equal(clock.pending, 0)
})
