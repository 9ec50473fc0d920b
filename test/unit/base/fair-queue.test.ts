import fc from 'fast-check'
import t from 'tap'
import { FairQueue } from '../../../src/base/fair-queue.ts'

t.test('accounts are served in rotation, each with its oldest item first', async (t) => {
  const queue = new FairQueue<string>()
  for (const item of ['a1', 'a2', 'a3', 'b1', 'c1', 'c2']) queue.push(item[0]!, item)
  t.equal(queue.next, 'a1')
  const items = Array.from({ length: 3 }, () => queue.shift())
  queue.push('b', 'b2')
  t.strictSame(
    [...items, ...Array.from({ length: 5 }, () => queue.shift())],
    'a1 b1 c1 a2 c2 b2 a3'.split(' ').concat(undefined as never),
  )
  t.equal(queue.size, 0)
})

t.test('an account whose oldest item is not admitted keeps its position', async (t) => {
  const queue = new FairQueue<string>()
  for (const item of ['a1', 'a2', 'b1', 'c1']) queue.push(item[0]!, item)
  const notFirstOfA = (item: string) => item !== 'a1'
  t.equal(queue.shift(notFirstOfA), 'b1')
  t.equal(queue.next, 'a1')
  t.strictSame([queue.shift(notFirstOfA), queue.shift(notFirstOfA), queue.size], ['c1', undefined, 2])
  t.strictSame([queue.shift(), queue.shift()], ['a1', 'a2'])
})

t.test(
  'no item is dropped; an item waits for at most one of each other account and its own predecessors',
  async () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom('a', 'b', 'c', 'd')), (accounts) => {
        const queue = new FairQueue<{ account: string; index: number }>()
        for (const [index, account] of accounts.entries()) queue.push(account, { account, index })
        const order = accounts.map(() => queue.shift()!)
        return order.every(({ account, index }, i) => {
          const before = accounts.slice(0, index).filter((each) => each === account).length
          const own = order.slice(0, i).filter((each) => each.account === account)
          return own.length === before && i <= (before + 1) * new Set(accounts).size - 1
        })
      }),
    )
  },
)
