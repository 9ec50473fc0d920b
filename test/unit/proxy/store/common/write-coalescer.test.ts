import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { WriteCoalescer } from '../../../../../src/proxy/store/common/write-coalescer.ts'
import { aTurn } from '../../../../conformance/turn-store.ts'

function setUp() {
  const sent: string[] = []
  const coalescer = new WriteCoalescer(async ({ turnId }) => {
    sent.push(turnId)
    if (turnId === 'bad') throw new Error('refused')
  })
  return { coalescer, sent }
}

t.test('an opening is sent after a short delay, and its caller gets the result', async (t) => {
  const { coalescer, sent } = setUp()
  const opened = [coalescer.enqueue(aTurn('a')), coalescer.enqueue(aTurn('bad'))]
  t.strictSame(sent, [])
  await opened[0]
  await t.rejects(opened[1]!, { message: 'refused' })
  t.strictSame(sent, ['a', 'bad'])
})

t.test('a turn of 25 ms is not sent before its end', async (t) => {
  const { coalescer, sent } = setUp()
  void coalescer.enqueue(aTurn('a'))
  await sleep(25)
  t.equal(coalescer.take('s', 'a')?.turn.turnId, 'a')
  t.strictSame(sent, [])
})

t.test('an opening that was taken is sent by no other task', async (t) => {
  const { coalescer, sent } = setUp()
  const opened = coalescer.enqueue(aTurn('a'))
  const pending = coalescer.take('s', 'a')
  t.equal(pending?.turn.turnId, 'a')
  t.equal(coalescer.take('s', 'a'), undefined)
  coalescer.sendAll()
  pending?.settle(Promise.resolve())
  await opened
  t.strictSame(sent, [])
})

t.test('delayed openings of a session are sent before another of its turns is closed', async (t) => {
  const { coalescer, sent } = setUp()
  const turns = ['a', 'b', 'c'].map((turnId) => aTurn(turnId))
  for (const turn of [...turns, aTurn('elsewhere', { sessionId: 'other' })]) void coalescer.enqueue(turn)
  t.equal(coalescer.take('s', 'b')?.turn.turnId, 'b')
  t.strictSame(sent, ['a', 'c'])
  t.equal(coalescer.take('s', 'elsewhere'), undefined, 'it is of another session')
  coalescer.sendAll()
  t.strictSame(sent, ['a', 'c', 'elsewhere'])
})

t.test('a second turn with the id of a delayed one does not replace it', async (t) => {
  const { coalescer, sent } = setUp()
  void coalescer.enqueue(aTurn('a'))
  await coalescer.enqueue(aTurn('a', { index: 1 }))
  t.strictSame(sent, ['a', 'a'])
  t.equal(coalescer.take('s', 'a'), undefined)
})
