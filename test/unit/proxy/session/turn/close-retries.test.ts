import t from 'tap'
import { CloseRetries } from '../../../../../src/proxy/session/turn/close-retries.ts'
import type { TurnOutcome } from '../../../../../src/proxy/store/port/turn-store.ts'
import { anOutcome } from '../../../../conformance/turn-store.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'

/** Creates a store that is full at first, and the retries of its turns. */
function setUp() {
  const clock = new FakeClock()
  const attempts: TurnOutcome[] = []
  const store = {
    isFull: true,
    async closeTurn(outcome: TurnOutcome) {
      attempts.push(outcome)
      if (store.isFull) throw new Error('database or disk is full')
    },
  }
  const turns = new CloseRetries(store, clock)
  return {
    clock,
    store,
    turns,
    /** Runs the next attempts. @returns the outcomes that the store received */
    retry: async () => {
      attempts.length = 0
      clock.advance(5_000)
      await new Promise(setImmediate)
      return [...attempts]
    },
  }
}

const getIds = (outcomes: readonly TurnOutcome[]) => outcomes.map(({ turnId }) => turnId)

t.test('a turn whose closing was rejected is closed once the store accepts it', async (t) => {
  const { clock, store, turns, retry } = setUp()
  for (const turnId of ['a', 'b']) turns.add(anOutcome(turnId))
  t.strictSame(getIds(await retry()), ['a', 'b'])
  store.isFull = false
  t.strictSame(getIds(await retry()), ['a', 'b'])
  t.strictSame(await retry(), [], 'a closed turn is not retried')
  t.equal(clock.pending, 0, 'no timer runs when there is nothing left to close')
})

t.test('a turn is closed with its error and annotations, but without its response', async (t) => {
  const { turns, retry } = setUp()
  const end = {
    epoch: 3,
    status: 'failed',
    endedAtMs: 7,
    error: { code: 'store_failed', message: 'full' },
  } as const
  turns.add(anOutcome('a', end))
  const message = 'x'.repeat(10_000)
  const error = { code: 'engine_failed', message }
  turns.add(anOutcome('b', { ...end, annotations: JSON.stringify({ message }), error }))
  const [short, long] = await retry()
  t.match(short, { ...end, sessionId: 's', annotations: '{"prompt":{"from":"t0"}}', exact: false })
  t.match(short, { completionText: null, toolCalls: '[]', usage: null })
  t.strictSame(
    [short!.promptTokenIds, short!.completionTokenIds, short!.completionLogprobs].map(({ length }) => length),
    [0, 0, 0],
  )
  t.match(long, { status: 'failed', annotations: '{}', error: { code: 'engine_failed' } })
  t.equal(long!.error!.message.length, 4_000)
  t.not((await retry())[0]!.completionTokenIds, short!.completionTokenIds, 'the store owns its arrays')
})

t.test('a store that still fails receives few turns at a time, each time others', async (t) => {
  const { store, turns, retry } = setUp()
  const ids = Array.from({ length: 50 }, (_, index) => `t${index}`)
  for (const turnId of ids) turns.add(anOutcome(turnId))
  const first = getIds(await retry())
  t.strictSame(first, ids.slice(0, 32))
  store.isFull = false
  t.strictSame(getIds(await retry()), [...ids.slice(32), ...first])
})

t.test('the number of turns is limited', async (t) => {
  const { store, turns, retry } = setUp()
  for (let index = 0; index < 10_050; index += 1) turns.add(anOutcome(`t${index}`))
  store.isFull = false
  t.equal((await retry()).length, 10_000)
})

t.test('a runner that stops does not retry', async (t) => {
  const { clock, turns } = setUp()
  turns.add(anOutcome('a'))
  turns.stop()
  turns.add(anOutcome('b'))
  t.equal(clock.pending, 0)
})
