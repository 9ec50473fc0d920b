import fc from 'fast-check'
import t from 'tap'
import { type CallKind, RateLimiter } from '../../../../../src/rollout/runners/agentcore/rate-limiter.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'

const NEVER = new AbortController().signal

/** Asks for so many calls of a kind, and notes when each is granted. */
function ask(limiter: RateLimiter, clock: FakeClock, kinds: readonly CallKind[]) {
  const granted: { kind: CallKind; atMs: number }[] = []
  for (const kind of kinds) {
    // A fake clock's tasks and the promises that they resolve come one after the other.
    limiter.acquire(kind, NEVER).then(
      () => granted.push({ kind, atMs: clock.nowMs() }),
      () => {},
    )
  }
  return granted
}

function mostInASecond(granted: readonly { atMs: number }[]): number {
  const inSecondFrom = (fromMs: number) =>
    granted.filter(({ atMs }) => atMs >= fromMs && atMs < fromMs + 1_000).length
  return Math.max(0, ...granted.map(({ atMs }) => inSecondFrom(atMs)))
}

const times = <T>(count: number, value: T): T[] => Array.from({ length: count }, () => value)

/** Moves the clock in steps, so that what waits can go on in between. */
async function run(clock: FakeClock, forMs: number): Promise<void> {
  for (let passedMs = 0; passedMs < forMs; passedMs += 10) {
    clock.advance(10)
    await Promise.resolve()
    await Promise.resolve()
  }
}

/** Moves the clock from task to task, so that what is granted is noted at its time. */
async function runToEnd(clock: FakeClock): Promise<void> {
  while (clock.advanceToNext()) {
    await Promise.resolve()
    await Promise.resolve()
  }
}

t.test('calls are spread evenly: 400 of them take 16 s at 25 a second', async (t) => {
  const clock = new FakeClock()
  const granted = ask(new RateLimiter(25, clock), clock, times(400, 'start'))
  await runToEnd(clock)
  t.equal(granted.length, 400)
  t.equal(mostInASecond(granted), 25)
  t.ok(granted.at(-1)!.atMs <= 16_000)
})

t.test('no second has more calls than the rate, however late timers are', async (t) => {
  const lateness = fc.array(fc.integer({ min: 0, max: 250 }), { minLength: 60, maxLength: 120 })
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 1, max: 40 }), lateness, async (rate, stalls) => {
      const clock = new FakeClock()
      const granted = ask(new RateLimiter(rate, clock), clock, times(150, 'start'))
      for (const stallMs of stalls) {
        clock.stall(stallMs)
        await Promise.resolve()
        await Promise.resolve()
      }
      return mostInASecond(granted) <= rate
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
  const granted = ask(new RateLimiter(25, early), clock, times(30, 'start'))
  await runToEnd(clock)
  t.equal(granted.length, 30)
  t.ok(mostInASecond(granted) <= 25)
})

t.test('kinds take turns, so that polls keep no session from being started or stopped', async (t) => {
  const clock = new FakeClock()
  const granted = ask(new RateLimiter(10, clock), clock, [
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

t.test('within a kind the first to ask goes first', async (t) => {
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

t.test(
  'throttling halves the rate, once for calls that were on their way together, and it recovers',
  async (t) => {
    const clock = new FakeClock()
    const limiter = new RateLimiter(20, clock)
    limiter.throttled()
    limiter.throttled()
    t.equal(limiter.rate, 10)
    clock.advance(1_000)
    t.equal(limiter.rate, 11)
    limiter.throttled()
    t.equal(limiter.rate, 5.5)
    clock.advance(60_000)
    t.equal(limiter.rate, 20)
  },
)

t.test('a service that throttles on and on is still asked now and then', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(32, clock)
  for (let times = 0; times < 50; times += 1) {
    limiter.throttled()
    clock.advance(1_000)
  }
  t.ok(limiter.rate >= 1)
})

t.test('who gives up is not counted, and those behind move up', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(10, clock)
  const gone = new AbortController()
  const first = limiter.acquire('start', gone.signal)
  const granted = ask(limiter, clock, ['start'])
  gone.abort(new Error('called off'))
  await t.rejects(first, { message: 'called off' })
  await run(clock, 10)
  t.equal(granted.length, 1)
  await t.rejects(limiter.acquire('start', gone.signal), { message: 'called off' })
})

t.test('a process that was busy makes up for a tenth of a second, not for more', async (t) => {
  const clock = new FakeClock()
  const granted = ask(new RateLimiter(100, clock), clock, times(200, 'start'))
  clock.stall(1_000)
  await run(clock, 10)
  t.ok(granted.length <= 13, `${granted.length} calls`)
})

t.test('a lower rate that somebody else asked for counts for all', async (t) => {
  const clock = new FakeClock()
  const limiter = new RateLimiter(25, clock)
  limiter.lowerTo(5)
  limiter.lowerTo(9)
  t.equal(limiter.rate, 5)
})
