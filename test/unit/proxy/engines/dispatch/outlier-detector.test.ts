import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { isEngineFault, OutlierDetector } from '../../../../../src/proxy/engines/dispatch/outlier-detector.ts'

const failed = new ProxyError('engine_failed', 'HTTP 500')
const reject = (status: number, retryAfterS?: number) =>
  new ProxyError('engine_rejected', 'no', { status, retryAfterS })

/** Creates a detector of `memberCount` members with a clock; each request takes 1 ms. */
function setUp(memberCount: number) {
  const detector = new OutlierDetector()
  let nowMs = 0
  return {
    detector,
    advance(ms: number) {
      nowMs += ms
    },
    fail(memberId: string, error = failed, startedMsAgo = 1) {
      nowMs += 1
      return detector.reportFailure(memberId, error, {
        dispatchedAtMs: nowMs - startedMsAgo,
        nowMs,
        memberCount,
      })
    },
    ejectedForMs: (memberId: string) => detector.getEjectionMs(memberId, nowMs),
  }
}

t.test('the third consecutive failure ejects a member, and a success in between resets the count', (t) => {
  const { fail, detector, ejectedForMs } = setUp(2)
  t.same([fail('a'), fail('a')], [undefined, undefined])
  detector.reportSuccess('a')
  t.same([fail('a'), fail('a')], [undefined, undefined])
  t.same(fail('a'), { forMs: 10_000, failures: 3 })
  t.equal(ejectedForMs('a'), 10_000)
  t.equal(ejectedForMs('b'), 0)
  t.equal(fail('a'), undefined, 'a failure of an earlier request extends nothing')
  t.end()
})

t.test('requests that fail together count once', (t) => {
  const { fail } = setUp(2)
  for (let request = 0; request < 100; request += 1) t.equal(fail('a', failed, 1_000), undefined)
  t.end()
})

t.test('each ejection lasts twice as long, up to five minutes, until the member stays in rotation', (t) => {
  const { fail, advance, detector } = setUp(2)
  const lasted: number[] = []
  while (lasted.length < 7) {
    const forMs = fail('a')?.forMs
    if (forMs === undefined) continue
    lasted.push(forMs / 1_000)
    advance(forMs)
  }
  t.same(lasted, [10, 20, 40, 80, 160, 300, 300])
  t.equal(fail('a')?.forMs, 300_000, 'on probation, one failure is enough')
  advance(300_000)
  detector.reportSuccess('a')
  advance(300_001)
  t.same([fail('a'), fail('a'), fail('a')?.forMs], [undefined, undefined, 10_000])
  t.end()
})

t.test('at most half of the members are ejected, and never the only one', (t) => {
  for (const [memberCount, most] of [
    [1, 0],
    [2, 1],
    [3, 1],
    [4, 2],
    [5, 2],
  ] as const) {
    const { fail } = setUp(memberCount)
    const ejected = Array.from({ length: memberCount }, (_, member) => {
      const outcomes = [1, 2, 3, 4].map(() => fail(`m${member}`))
      return outcomes.some((outcome) => outcome !== undefined)
    })
    t.equal(ejected.filter(Boolean).length, most, `of ${memberCount}`)
  }
  t.end()
})

t.test(
  'a 429 ejects immediately, for the time in its Retry-After, and does not increase the back-off',
  (t) => {
    const { fail, advance } = setUp(2)
    t.same(fail('a', reject(429, 7)), { forMs: 7_000, failures: 1 })
    advance(7_000)
    t.equal(fail('a', reject(429))?.forMs, 10_000)
    advance(10_000)
    t.equal(fail('a', reject(429, 86_400))?.forMs, 300_000)
    advance(300_000)
    t.same([fail('a'), fail('a'), fail('a')?.forMs], [undefined, undefined, 10_000])
    t.end()
  },
)

t.test('an error of the request never counts', (t) => {
  for (const status of [400, 403, 404, 413, 422]) t.notOk(isEngineFault(reject(status)), String(status))
  for (const status of [401, 408, 429]) t.ok(isEngineFault(reject(status)), String(status))
  t.notOk(isEngineFault(new ProxyError('context_length_exceeded', 'too long')))
  t.notOk(isEngineFault(new ProxyError('engine_unreachable', 'refused')), 'health checks detect this')
  const { fail } = setUp(2)
  for (let request = 0; request < 10; request += 1) t.equal(fail('a', reject(400)), undefined)
  t.end()
})

t.test('a member that was removed starts without a history', (t) => {
  const { fail, detector, ejectedForMs } = setUp(2)
  for (let request = 0; request < 3; request += 1) fail('a')
  detector.forget('a')
  t.equal(ejectedForMs('a'), 0)
  t.same([fail('a'), fail('a'), fail('a')?.forMs], [undefined, undefined, 10_000])
  t.end()
})
