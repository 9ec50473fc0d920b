import { setImmediate as nextIteration } from 'node:timers/promises'
import t from 'tap'
import { yieldToEventLoop } from '../../../src/base/yield-to-event-loop.ts'

t.test(
  'one waiting task continues in each iteration of the event loop, in the order of their requests',
  async (t) => {
    const log: string[] = []
    const tasks = ['a', 'b', 'c'].map(async (name) => {
      for (let slice = 1; slice <= 2; slice += 1) {
        await yieldToEventLoop()
        log.push(`${name}${slice}`)
      }
    })
    const perIteration: number[] = []
    while (log.length < 6) {
      const before = log.length
      await nextIteration()
      perIteration.push(log.length - before)
    }
    await Promise.all(tasks)
    t.strictSame(log, ['a1', 'b1', 'c1', 'a2', 'b2', 'c2'])
    t.ok(
      perIteration.every((count) => count <= 1),
      `${perIteration}`,
    )
  },
)
