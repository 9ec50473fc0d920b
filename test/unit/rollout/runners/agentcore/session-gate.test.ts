import { setImmediate as nextIteration } from 'node:timers/promises'
import t from 'tap'
import { SessionGate } from '../../../../../src/rollout/runners/agentcore/session-gate.ts'

const NEVER = new AbortController().signal

t.test('at most the limit enter, and the first in the queue is next', async (t) => {
  const gate = new SessionGate(2)
  const leave = await gate.enter(NEVER)
  await gate.enter(NEVER)
  const order: number[] = []
  const next = [1, 2].map((number) => gate.enter(NEVER).then((go) => order.push(number) && go))
  await nextIteration()
  t.strictSame({ inside: gate.inside, waiting: gate.waiting, order }, { inside: 2, waiting: 2, order: [] })
  leave()
  leave()
  await next[0]
  await nextIteration()
  t.strictSame(order, [1], 'a slot that is released twice is one slot')
  t.equal(gate.inside, 2)
})

t.test('a cancelled caller leaves the queue', async (t) => {
  const gate = new SessionGate(1)
  const leave = await gate.enter(NEVER)
  const controller = new AbortController()
  const waiting = gate.enter(controller.signal)
  controller.abort(new Error('cancelled'))
  await t.rejects(waiting, { message: 'cancelled' })
  leave()
  t.strictSame([gate.inside, gate.waiting], [0, 0])
})
