import { setImmediate as nextIteration } from 'node:timers/promises'
import t from 'tap'
import { TimeSliceScheduler } from '../../../../../src/proxy/http/transport/time-slices.ts'

/** Creates slices of 20 ms on a clock that only work advances, and a log of the work. */
function setUp() {
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
  const submit = async (name: string, ...stepsMs: number[]) => {
    void run(name, stepsMs)
    await microtasks()
  }
  return { done, submit }
}

async function microtasks(): Promise<void> {
  for (let index = 0; index < 10; index += 1) await undefined
}

t.test(
  'an iteration of the event loop starts steps until its time slice is over, and the next continues',
  async (t) => {
    const { done, submit } = setUp()
    for (const name of ['a', 'b', 'c', 'd', 'e']) await submit(name, 10)
    t.strictSame(done, ['a1', 'b1'])
    await nextIteration()
    t.strictSame(done, ['a1', 'b1', 'c1', 'd1'], 'first come, first served')
    await nextIteration()
    t.strictSame(done, ['a1', 'b1', 'c1', 'd1', 'e1'])
  },
)

t.test('a step of any length is run, and alone', async (t) => {
  const { done, submit } = setUp()
  await submit('a', 1_000)
  await submit('b', 1_000)
  await submit('c', 1)
  t.strictSame(done, ['a1'])
  await nextIteration()
  t.strictSame(done, ['a1', 'b1'])
  await nextIteration()
  t.strictSame(done, ['a1', 'b1', 'c1'])
})

t.test('a request that has started continues before others start', async (t) => {
  const { done, submit } = setUp()
  await submit('a', 30, 30, 30)
  await submit('b', 5, 5)
  await submit('c', 5)
  for (let i = 0; i < 4; i += 1) await nextIteration()
  t.strictSame(done, ['a1', 'a2', 'a3', 'b1', 'b2', 'c1'])
})

t.test('a new request queues behind the waiting ones', async (t) => {
  const { done, submit } = setUp()
  await submit('a', 15)
  await submit('b', 15)
  await submit('c', 15)
  await nextIteration()
  t.strictSame(done, ['a1', 'b1', 'c1'])
  await submit('d', 30)
  await submit('e', 1)
  await submit('f', 1)
  await nextIteration()
  await nextIteration()
  t.strictSame(done.slice(3), ['d1', 'e1', 'f1'])
})

t.test('each iteration has its own time slice', async (t) => {
  const { done, submit } = setUp()
  await submit('a', 30)
  await nextIteration()
  await submit('b', 30)
  t.strictSame(done, ['a1', 'b1'], 'no request waited')
})

t.test('requests start round-robin across callers', async (t) => {
  const { done, submit } = setUp()
  for (const name of ['now', 'x-1.', 'x-2.', 'x-3.', 'y-1.', 'z-1.']) await submit(name, 20, 20)
  for (let i = 0; i < 12; i += 1) await nextIteration()
  t.strictSame(
    done.filter((step) => step.endsWith('.1')),
    ['x-1.1', 'y-1.1', 'z-1.1', 'x-2.1', 'x-3.1'],
  )
})
