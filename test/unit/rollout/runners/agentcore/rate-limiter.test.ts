import fc from 'fast-check'
import t from 'tap'
import {
  type ApiRequestKind,
  RateLimiter,
} from '../../../../../src/rollout/runners/agentcore/rate-limiter.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'

const NEVER = new AbortController().signal

/** Acquires one grant for each of `kinds`, and records when it was granted. */
function acquireAll(limiter: RateLimiter, clock: FakeClock, kinds: readonly ApiRequestKind[]) {
  const granted: { kind: ApiRequestKind; atMs: number }[] = []
  for (const kind of kinds) {
    // A fake clock's tasks and the promises that they resolve run one after the other.
    limiter.acquire(kind, NEVER).then(
      () => granted.push({ kind, atMs: clock.nowMs() }),
      () => {},
    )
  }
  return granted
}

function countMostInASecond(granted: readonly { atMs: number }[]): number {
  const inSecondFrom = (fromMs: number) =>
    granted.filter(({ atMs }) => atMs >= fromMs && atMs < fromMs + 1_000).length
  return Math.max(0, ...granted.map(({ atMs }) => inSecondFrom(atMs)))
}

const times = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value)

/** Moves the clock in steps, so that waiting tasks can continue in between. */
async function run(clock: FakeClock, forMs: number): Promise<void> {
  for (let passedMs = 0; passedMs < forMs; passedMs += 10) {
    clock.advance(10)
    await Promise.resolve()
    await Promise.resolve()
  }
}

/** Moves the clock from task to task, so that each grant is recorded at its time. */
async function runToEnd(clock: FakeClock): Promise<void> {
  while (clock.advanceToNext()) {
    await Promise.resolve()
    await Promise.resolve()
  }
}

t.test('requests are spread evenly: 400 of them take 16 s at 25 a second', async (t) => {
  const clock = new FakeClock()
  const granted = acquireAll(new RateLimiter(25, clock), clock, times(400, 'start'))
  await runToEnd(clock)
  t.equal(granted.length, 400)
  t.equal(countMostInASecond(granted), 25)
  t.ok(granted.at(-1)!.atMs <= 16_000)
})

t.test('no second has more requests than the rate, for any delay of timers', async (t) => {
  const lateness = fc.array(fc.integer({ min: 0, max: 250 }), { minLength: 60, maxLength: 120 })
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 40 }), lateness, async (rate, stalls) => {
      const clock = new FakeClock()
      const granted = acquireAll(new RateLimiter(rate, clock), clock, times(150, 'start'))
      for (const stallMs of stalls) {
        clock.stall(stallMs)
        await Promise.resolve()
        await Promise.resolve()
      }
      return countMostInASecond(granted) <= rate
    }),
    { numRuns: 100 },
  )
  t.pass()
})

t.test('a timer that fires early grants nothing yet', async (t) => {
  const clock = new FakeClock()
  const early = {
    nowMs: () => clock.nowMs(),
    after: (delayMs: number, task: () => void) => clock.after(Math.max(0.5, delayMs - 0.5), task),
  }
  const granted = acquireAll(new RateLimiter(25, early), clock, times(30, 'start'))
  await runToEnd(clock)
  t.equal(granted.length, 30)
  t.ok(countMostInASecond(granted) <= 25)
})

t.test('kinds alternate, so that polls do not delay starts and stops of sessions', async (t) => {
  const clock = new FakeClock()
  const granted = acquireAll(new RateLimiter(10, clock), clock, [
    ...times(50, 'poll' as const),
    'start',
    'stop',
    'start',
  ])
  await run(clock, 1_000)
  t.strictSame(
    granted
      .slice(0, 6)
      .map(({ kind }) => kind)
      .sort(),
    ['poll', 'poll', 'start', 'start', 'stop', 'poll'].sort(),
  )
})

t.test('requests of one kind are granted in order', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(10, clock)
  const order: number[] = []
  for (let number = 0; number < 5; number += 1) {
    limiter.acquire('start', NEVER).then(
      () => order.push(number),
      () => {},
    )
  }
  await run(clock, 1_000)
  t.strictSame(order, [0, 1, 2, 3, 4])
})

t.test('throttling halves the rate, once for concurrent requests, and it recovers', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(20, clock)
  limiter.reportThrottled()
  limiter.reportThrottled()
  t.equal(limiter.rate, 10)
  clock.advance(1_000)
  t.equal(limiter.rate, 11)
  limiter.reportThrottled()
  t.equal(limiter.rate, 5.5)
  clock.advance(60_000)
  t.equal(limiter.rate, 20)
})

t.test('a service that keeps throttling still receives a request at intervals', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(32, clock)
  for (let times = 0; times < 50; times += 1) {
    limiter.reportThrottled()
    clock.advance(1_000)
  }
  t.ok(limiter.rate >= 1)
})

t.test('a cancelled request is not counted, and later ones move up', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(10, clock)
  const controller = new AbortController()
  const first = limiter.acquire('start', controller.signal)
  const granted = acquireAll(limiter, clock, ['start'])
  controller.abort(new Error('cancelled'))
  await t.rejects(first, { message: 'cancelled' })
  await run(clock, 10)
  t.equal(granted.length, 1)
  await t.rejects(limiter.acquire('start', controller.signal), { message: 'cancelled' })
})

t.test('a busy process catches up for a tenth of a second, not for more', async (t) => {
  const clock = new FakeClock()
  const granted = acquireAll(new RateLimiter(100, clock), clock, times(200, 'start'))
  clock.stall(1_000)
  await run(clock, 10)
  t.ok(granted.length <= 13, `${granted.length} requests`)
})

t.test('a lower rate that another process requested applies to all', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(25, clock)
  limiter.lowerTo(5)
  limiter.lowerTo(9)
  t.equal(limiter.rate, 5)
})
