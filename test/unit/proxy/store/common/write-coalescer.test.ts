import { setTimeout as sleep } from 'node:timers/promises'
import t from 'tap'
import { WriteCoalescer } from '../../../../../src/proxy/store/common/write-coalescer.ts'
import { aTurn } from '../../../../conformance/turn-store.ts'

function holder() {
  const sent: string[] = []
  const openings = new WriteCoalescer(async ({ turnId }) => {
    sent.push(turnId)
    if (turnId === 'bad') throw new Error('refused')
  })
  return { openings, sent }
}

t.test('an opening is sent after a short delay, and its caller gets the result', async (t) => {
  const { openings, sent } = holder()
  const opened = [openings.enqueue(aTurn('a')), openings.enqueue(aTurn('bad'))]
  t.strictSame(sent, [])
  await opened[0]
  await t.rejects(opened[1]!, { message: 'refused' })
  t.strictSame(sent, ['a', 'bad'])
})

t.test('a turn of 25 ms is not sent before its end', async (t) => {
  const { openings, sent } = holder()
  void openings.enqueue(aTurn('a'))
  await sleep(25)
  t.equal(openings.take('s', 'a')?.turn.turnId, 'a')
  t.strictSame(sent, [])
})

t.test('an opening that was taken is sent by no other task', async (t) => {
  const { openings, sent } = holder()
  const opened = openings.enqueue(aTurn('a'))
  const pending = openings.take('s', 'a')
  t.equal(pending?.turn.turnId, 'a')
  t.equal(openings.take('s', 'a'), undefined)
  openings.sendAll()
  pending?.settle(Promise.resolve())
  await opened
  t.strictSame(sent, [])
})

t.test('delayed openings of a session are sent before another of its turns is closed', async (t) => {
  const { openings, sent } = holder()
  const turns = ['a', 'b', 'c'].map((turnId) => aTurn(turnId))
  for (const turn of [...turns, aTurn('elsewhere', { sessionId: 'other' })]) void openings.enqueue(turn)
  t.equal(openings.take('s', 'b')?.turn.turnId, 'b')
  t.strictSame(sent, ['a', 'c'])
  t.equal(openings.take('s', 'elsewhere'), undefined, 'that another session has')
  openings.sendAll()
  t.strictSame(sent, ['a', 'c', 'elsewhere'])
})

t.test('a second turn with the id of a delayed one does not replace it', async (t) => {
  const { openings, sent } = holder()
  void openings.enqueue(aTurn('a'))
  await openings.enqueue(aTurn('a', { index: 1 }))
  t.strictSame(sent, ['a', 'a'])
  t.equal(openings.take('s', 'a'), undefined)
})
