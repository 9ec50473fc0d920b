import t from 'tap'
import { CloseRetries } from '../../../../../src/proxy/session/turn/close-retries.ts'
import type { TurnOutcome } from '../../../../../src/proxy/store/port/turn-store.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'

t.test('a turn whose closing was rejected is closed once the store accepts it', async (t) => {
  const clock = new FakeClock()
  const attempts: string[] = []
  let isFull = true
  const store = {
    async closeTurn({ turnId }: TurnOutcome) {
      attempts.push(turnId)
      if (isFull) throw new Error('database or disk is full')
    },
  }
  const turns = new CloseRetries(store, clock)
  for (const turnId of ['a', 'b']) turns.add(() => ({ turnId }) as TurnOutcome)
  const advance = async () => {
    clock.advance(60_000)
    await new Promise(setImmediate)
  }
  await advance()
  t.strictSame(attempts, ['a', 'b'])
  isFull = false
  await advance()
  t.strictSame(attempts, ['a', 'b', 'a', 'b'])
  await advance()
  t.strictSame(attempts, ['a', 'b', 'a', 'b'], 'a closed turn is not retried')
  t.equal(clock.pending, 0, 'no timer runs when there is nothing left to close')
})

t.test('a runner that stops does not retry', async (t) => {
  const clock = new FakeClock()
  const turns = new CloseRetries({ closeTurn: () => Promise.reject(new Error('closed')) }, clock)
  turns.add(() => ({ turnId: 'a' }) as TurnOutcome)
  turns.stop()
  t.equal(clock.pending, 0)
})
