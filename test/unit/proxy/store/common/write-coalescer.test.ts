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

t.test('an opening is sent within moments, and its caller is told what came of it', async (t) => {
  const { openings, sent } = holder()
  const opened = [openings.hold(aTurn('a')), openings.hold(aTurn('bad'))]
  t.strictSame(sent, [])
  await opened[0]
  await t.rejects(opened[1]!, { message: 'refused' })
  t.strictSame(sent, ['a', 'bad'])
})

t.test('an opening that is taken is sent by nobody else', async (t) => {
  const { openings, sent } = holder()
  const opened = openings.hold(aTurn('a'))
  const held = openings.take('s', 'a')
  t.equal(held?.turn.turnId, 'a')
  t.equal(openings.take('s', 'a'), undefined)
  openings.sendAll()
  held?.settle(Promise.resolve())
  await opened
  t.strictSame(sent, [])
})

t.test('what is held of a session is sent before another turn of it is closed', async (t) => {
  const { openings, sent } = holder()
  const turns = ['a', 'b', 'c'].map((turnId) => aTurn(turnId))
  for (const turn of [...turns, aTurn('elsewhere', { sessionId: 'other' })]) void openings.hold(turn)
  t.equal(openings.take('s', 'b')?.turn.turnId, 'b')
  t.strictSame(sent, ['a', 'c'])
  t.equal(openings.take('s', 'elsewhere'), undefined, 'which another session has')
  openings.sendAll()
  t.strictSame(sent, ['a', 'c', 'elsewhere'])
})

t.test('a second turn with an id that is held does not take its place', async (t) => {
  const { openings, sent } = holder()
  void openings.hold(aTurn('a'))
  await openings.hold(aTurn('a', { index: 1 }))
  t.strictSame(sent, ['a', 'a'])
  t.equal(openings.take('s', 'a'), undefined)
})
