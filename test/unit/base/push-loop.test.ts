import { setImmediate } from 'node:timers/promises'
import t from 'tap'
import { PushLoop } from '../../../src/base/push-loop.ts'

/** Creates a loop whose pushes return the result of `push`, and a log of its calls. */
function setUp(push: (loop: PushLoop) => Promise<void> | undefined) {
  const calls: string[] = []
  const loop: PushLoop = new PushLoop({
    push: () => {
      calls.push('push')
      return push(loop)
    },
    fail: (thrown) => calls.push(`fail ${(thrown as Error).message}`),
    pause: () => calls.push('pause'),
    resume: () => calls.push('resume'),
  })
  return { loop, calls }
}

t.test('items scheduled in one task are pushed together after it', async (t) => {
  const { loop, calls } = setUp(() => undefined)
  loop.schedule()
  loop.schedule()
  t.strictSame(calls, [])
  await setImmediate()
  t.strictSame(calls, ['push'])
})

t.test('a blocked receiver receives nothing until it accepts more', async (t) => {
  const accepted = Promise.withResolvers<void>()
  const results = [accepted.promise]
  const { loop, calls } = setUp(() => results.shift())
  loop.schedule()
  await setImmediate()
  loop.schedule()
  await setImmediate()
  t.strictSame(calls, ['push', 'pause'])
  accepted.resolve()
  await setImmediate()
  t.strictSame(calls, ['push', 'pause', 'resume', 'push'])
})

t.test('exceptions and rejected promises of a push are failures', async (t) => {
  const { loop, calls } = setUp(() => {
    throw new Error('thrown')
  })
  loop.schedule()
  await setImmediate()
  t.strictSame(calls, ['push', 'fail thrown'])
  const rejected = setUp(() => Promise.reject(new Error('rejected')))
  rejected.loop.schedule()
  await setImmediate()
  t.strictSame(rejected.calls, ['push', 'pause', 'fail rejected'])
})

t.test('a closed loop pushes nothing more, also when it is closed during a push', async (t) => {
  const { loop, calls } = setUp((open) => {
    open.close()
    return Promise.resolve()
  })
  loop.schedule()
  await setImmediate()
  loop.schedule()
  await setImmediate()
  t.strictSame(calls, ['push'])
  t.ok(loop.isClosed)
})
