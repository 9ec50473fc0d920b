import t from 'tap'
import {
  type EarlierAttempt,
  mayBeRetry,
  selectOriginalAttempt,
} from '../../../../../../src/proxy/session/turn/retries/select-original-attempt.ts'

function createAttempt(turnId: string, overrides: Partial<EarlierAttempt> = {}): EarlierAttempt {
  return { turnId, retryCount: 0, response: 'complete', isDisconnected: false, wasRead: false, ...overrides }
}

const running = (turnId: string) => createAttempt(turnId, { response: 'running' })
const disconnected = (turnId: string) => createAttempt(turnId, { isDisconnected: true })
const interrupted = (turnId: string) => createAttempt(turnId, { response: 'none', isDisconnected: true })
const failed = (turnId: string) => createAttempt(turnId, { response: 'none' })

const selectId = (retryCount: number, ...attempts: EarlierAttempt[]) =>
  selectOriginalAttempt({ retryCount }, attempts)?.turnId

t.test('a retry is served from the only attempt of its request, in flight or recorded', async (t) => {
  t.equal(selectId(1, running('a')), 'a')
  t.equal(selectId(1, createAttempt('a')), 'a')
  t.equal(selectId(2, disconnected('a')), 'a')
  t.equal(selectId(1), undefined)
})

t.test('a retry of an attempt without a result is sampled again', async (t) => {
  t.equal(selectId(1, failed('a')), undefined)
  t.equal(selectId(1, createAttempt('a'), failed('b')), undefined, 'a sibling of it was completed')
})

t.test(
  'among siblings with the same request a retry gets one whose connection broke, and no other',
  async (t) => {
    t.equal(selectId(1, createAttempt('a'), disconnected('b'), createAttempt('c')), 'b')
    t.equal(selectId(1, createAttempt('a'), createAttempt('b')), undefined, 'either could be it')
    t.equal(selectId(1, running('a'), running('b')), undefined)
    t.equal(selectId(1, running('a'), createAttempt('b')), undefined)
  },
)

t.test(
  'a retry of an attempt during which the proxy crashed is sampled again, and takes no sibling',
  async (t) => {
    t.equal(selectId(1, interrupted('a')), undefined)
    t.equal(selectId(1, createAttempt('a'), interrupted('b')), undefined)
  },
)

t.test('two lost responses go to the retries of two requests, one each', async (t) => {
  t.equal(selectId(1, disconnected('a'), disconnected('b')), 'b')
  t.equal(selectId(1, disconnected('a'), createAttempt('b', { answeredCount: 1 })), 'a')
})

t.test('a response that a retry received goes to the next attempt of that request', async (t) => {
  t.equal(selectId(2, createAttempt('a', { answeredCount: 1 })), 'a')
  t.equal(selectId(1, createAttempt('a', { answeredCount: 1 })), undefined, 'it is another request')
})

t.test('a response with a continuation was delivered', async (t) => {
  t.equal(selectId(1, createAttempt('a', { wasRead: true })), undefined)
})

t.test('a retry of a retry gets the result of the second attempt', async (t) => {
  t.equal(selectId(2, failed('a'), createAttempt('b', { retryCount: 1 })), 'b')
})

t.test(
  'a node that repeats a request identifies its first attempt, whatever the client declares',
  async (t) => {
    const attempts = [
      createAttempt('a', { nodeMessageId: 'm' }),
      createAttempt('b', { nodeMessageId: 'n', response: 'none' }),
      createAttempt('c', { idempotencyKey: 'x' }),
    ]
    const selectId = (lostMessageId: string, idempotencyKey?: string) =>
      selectOriginalAttempt({ retryCount: 0, sendsRetryCount: true, lostMessageId, idempotencyKey }, attempts)
        ?.turnId
    t.ok(mayBeRetry({ retryCount: 0, sendsRetryCount: true, lostMessageId: 'm' }, new Set()))
    t.equal(selectId('m'), 'a')
    t.equal(selectId('n'), undefined)
    t.equal(selectId('unsigned'), undefined)
    t.equal(selectId('n', 'x'), 'c')
  },
)

t.test('an idempotency key identifies the request, among siblings and with any count', async (t) => {
  const attempts = [
    createAttempt('a', { idempotencyKey: 'x' }),
    createAttempt('b', { idempotencyKey: 'y' }),
    createAttempt('c', { idempotencyKey: 'z', response: 'none' }),
  ]
  t.equal(selectOriginalAttempt({ retryCount: 0, idempotencyKey: 'x' }, attempts)?.turnId, 'a')
  t.equal(selectOriginalAttempt({ retryCount: 2, idempotencyKey: 'y' }, attempts)?.turnId, 'b')
  t.equal(selectOriginalAttempt({ retryCount: 1, idempotencyKey: 'z' }, attempts), undefined)
  t.equal(selectOriginalAttempt({ retryCount: 1, idempotencyKey: 'w' }, attempts), undefined)
  t.equal(
    selectOriginalAttempt({ retryCount: 1 }, attempts),
    undefined,
    'a client that sent keys sends them again',
  )
})

t.test(
  'only possible retries are looked up: a count above 0, or an idempotency key that was or may have been used',
  async (t) => {
    t.notOk(mayBeRetry({ retryCount: 0, sendsRetryCount: true, idempotencyKey: 'x' }, new Set(['x'])))
    t.ok(mayBeRetry({ retryCount: 1, sendsRetryCount: true }, new Set()))
    t.notOk(mayBeRetry({ retryCount: 0 }, undefined))
    t.ok(mayBeRetry({ retryCount: 0, idempotencyKey: 'x' }, undefined))
    t.ok(mayBeRetry({ retryCount: 0, idempotencyKey: 'x' }, new Set(['x'])))
    t.notOk(mayBeRetry({ retryCount: 0, idempotencyKey: 'x' }, new Set(['y'])))
  },
)
