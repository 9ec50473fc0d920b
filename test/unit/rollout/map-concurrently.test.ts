import t from 'tap'
import { mapConcurrently } from '../../../src/rollout/map-concurrently.ts'

t.test('each item is processed once, a limited number concurrently, started in order', async (t) => {
  const started: [string, number][] = []
  let running = 0
  let most = 0
  await mapConcurrently(['a', 'b', 'c', 'd', 'e'], 2, async (item, index) => {
    started.push([item, index])
    running += 1
    most = Math.max(most, running)
    await new Promise((resolve) => setImmediate(resolve))
    running -= 1
  })
  t.strictSame(started, [
    ['a', 0],
    ['b', 1],
    ['c', 2],
    ['d', 3],
    ['e', 4],
  ])
  t.equal(most, 2)
})

t.test('after an error no item is started, running ones are awaited, and the error is thrown', async (t) => {
  const ended: number[] = []
  const work = mapConcurrently([0, 1, 2, 3], 2, async (item) => {
    if (item === 0) throw new Error('first')
    await new Promise((resolve) => setImmediate(resolve))
    ended.push(item)
    throw new Error('second')
  })
  await t.rejects(work, { message: 'first' })
  t.strictSame(ended, [1])
})

t.test('an empty list is done immediately', async () => {
  await mapConcurrently([], 8, async () => {})
})
