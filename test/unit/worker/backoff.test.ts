import t from 'tap'
import { computeBackoffLimitMs, keepConnected } from '../../../src/worker/backoff.ts'
import { FakeClock } from '../../helpers/fake-clock.ts'

/** Runs all tasks that wait only for promises. */
const settle = () => new Promise((resolve) => setImmediate(resolve))

/** Creates connections that last for the given times, and records when each was dialled. */
function setUp(random: () => number, getDelayMs: () => number = () => 0) {
  const clock = new FakeClock()
  const controller = new AbortController()
  const dialledAtMs: number[] = []
  const connection = async () => {
    dialledAtMs.push(clock.nowMs())
    const delayMs = getDelayMs()
    clock.advance(delayMs)
    return delayMs
  }
  const done = keepConnected({ connect: connection, clock, random, signal: controller.signal })
  return { clock, controller, dialledAtMs, done }
}

t.test('the limits of the waits double from 1 s to 60 s', async (t) => {
  t.strictSame(
    [0, 1, 2, 3, 4, 5, 6, 7, 50].map(computeBackoffLimitMs),
    [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, 60_000, 60_000, 60_000],
  )
})

t.test('each wait is drawn independently between zero and its limit', async (t) => {
  const draws = [0.5, 0, 0.25]
  const { clock, dialledAtMs, controller, done } = setUp(() => draws.shift() ?? 1)
  await settle()
  clock.advance(500)
  await settle()
  clock.advance(0)
  await settle()
  clock.advance(1_000)
  await settle()
  t.strictSame(dialledAtMs, [0, 500, 500, 1_500])
  controller.abort()
  await done
})

t.test('dialling never stops by itself', async (t) => {
  const { clock, dialledAtMs, controller, done } = setUp(() => 1)
  for (let i = 0; i < 100; i += 1) {
    await settle()
    clock.advance(60_000)
  }
  t.ok(dialledAtMs.length >= 100)
  controller.abort()
  await done
})

t.test(
  'a connection that lasted makes the next wait short again; one that broke immediately does not',
  async (t) => {
    const delayMs = [0, 0, 9_999, 10_000, 0]
    const { clock, dialledAtMs, controller, done } = setUp(
      () => 1,
      () => delayMs.shift() ?? 0,
    )
    for (let i = 0; i < 100; i += 1) {
      await settle()
      clock.advance(500)
    }
    const waits = dialledAtMs.slice(1, 5).map((atMs, i) => atMs - dialledAtMs[i]! - [0, 0, 9_999, 10_000][i]!)
    t.same(
      waits.map((waitMs) => Math.round(waitMs / 1_000)),
      [1, 2, 4, 1],
    )
    controller.abort()
    await done
  },
)

t.test('stopping ends a wait immediately and leaves no timer', async (t) => {
  const { clock, controller, done } = setUp(() => 1)
  await settle()
  t.equal(clock.pending, 1)
  controller.abort()
  await done
  t.equal(clock.pending, 0)
})
