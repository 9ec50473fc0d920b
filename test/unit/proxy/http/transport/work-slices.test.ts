import { setImmediate as nextTurn } from 'node:timers/promises'
import t from 'tap'
import { TimeSliceScheduler } from '../../../../../src/proxy/http/transport/time-slices.ts'

/** Creates slices of 20 ms on a clock that only work advances, and a log of the work. */
function slicesWithClock() {
  let nowMs = 0
  const done: string[] = []
  const slices = new TimeSliceScheduler({ sliceMs: 20, nowMs: () => nowMs })
  const run = async (name: string, stepsMs: number[]) => {
    for (const [index, stepMs] of stepsMs.entries()) {
      await (index === 0 ? slices.waitForFirst(name[0]!) : slices.waitForNext(name[0]!))
      nowMs += stepMs
      done.push(`${name}${index + 1}`)
    }
  }
  /** Submits a request; resolves when its initial steps are done. */
  const come = async (name: string, ...stepsMs: number[]) => {
    void run(name, stepsMs)
    await microtasks()
  }
  return { done, come }
}

async function microtasks(): Promise<void> {
  for (let index = 0; index < 10; index += 1) await undefined
}

t.test(
  'an iteration of the event loop starts steps until its time slice is over, and the next continues',
  async (t) => {
    const { done, come } = slicesWithClock()
    for (const name of ['a', 'b', 'c', 'd', 'e']) await come(name, 10)
    t.strictSame(done, ['a1', 'b1'])
    await nextTurn()
    t.strictSame(done, ['a1', 'b1', 'c1', 'd1'], 'first come, first served')
    await nextTurn()
    t.strictSame(done, ['a1', 'b1', 'c1', 'd1', 'e1'])
  },
)

t.test('a step of any length is run, and alone', async (t) => {
  const { done, come } = slicesWithClock()
  await come('a', 1_000)
  await come('b', 1_000)
  await come('c', 1)
  t.strictSame(done, ['a1'])
  await nextTurn()
  t.strictSame(done, ['a1', 'b1'])
  await nextTurn()
  t.strictSame(done, ['a1', 'b1', 'c1'])
})

t.test('a request that has started continues before others start', async (t) => {
  const { done, come } = slicesWithClock()
  await come('a', 30, 30, 30)
  await come('b', 5, 5)
  await come('c', 5)
  for (let turn = 0; turn < 4; turn += 1) await nextTurn()
  t.strictSame(done, ['a1', 'a2', 'a3', 'b1', 'b2', 'c1'])
})

t.test('a new request queues behind the waiting ones', async (t) => {
  const { done, come } = slicesWithClock()
  await come('a', 15)
  await come('b', 15)
  await come('c', 15)
  await nextTurn()
  t.strictSame(done, ['a1', 'b1', 'c1'])
  await come('d', 30)
  await come('e', 1)
  await come('f', 1)
  await nextTurn()
  await nextTurn()
  t.strictSame(done.slice(3), ['d1', 'e1', 'f1'])
})

t.test('each iteration has its own time slice', async (t) => {
  const { done, come } = slicesWithClock()
  await come('a', 30)
  await nextTurn()
  await come('b', 30)
  t.strictSame(done, ['a1', 'b1'], 'no request waited')
})

t.test('requests start round-robin across callers', async (t) => {
  const { done, come } = slicesWithClock()
  for (const name of ['now', 'x-1.', 'x-2.', 'x-3.', 'y-1.', 'z-1.']) await come(name, 20, 20)
  for (let turn = 0; turn < 12; turn += 1) await nextTurn()
  t.strictSame(
    done.filter((step) => step.endsWith('.1')),
    ['x-1.1', 'y-1.1', 'z-1.1', 'x-2.1', 'x-3.1'],
  )
})
