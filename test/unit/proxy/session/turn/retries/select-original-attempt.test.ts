import t from 'tap'
import {
  type EarlierAttempt,
  mayBeRetry,
  selectOriginalAttempt,
} from '../../../../../../src/proxy/session/turn/retries/select-original-attempt.ts'

function tried(turnId: string, overrides: Partial<EarlierAttempt> = {}): EarlierAttempt {
  return { turnId, retryCount: 0, response: 'complete', isDisconnected: false, wasRead: false, ...overrides }
}

const running = (turnId: string) => tried(turnId, { response: 'running' })
const lost = (turnId: string) => tried(turnId, { isDisconnected: true })
const interrupted = (turnId: string) => tried(turnId, { response: 'none', isDisconnected: true })
const failed = (turnId: string) => tried(turnId, { response: 'none' })

const found = (retryCount: number, ...tries: EarlierAttempt[]) =>
  selectOriginalAttempt({ retryCount }, tries)?.turnId

t.test('a retry is served from the only attempt of its request, in flight or recorded', async (t) => {
  t.equal(found(1, running('a')), 'a')
  t.equal(found(1, tried('a')), 'a')
  t.equal(found(2, lost('a')), 'a')
  t.equal(found(1), undefined)
})

t.test('a retry of an attempt without a result is sampled again', async (t) => {
  t.equal(found(1, failed('a')), undefined)
  t.equal(found(1, tried('a'), failed('b')), undefined, 'a sibling of it was completed')
})

t.test(
  'among siblings with the same request a retry gets one whose connection broke, and no other',
  async (t) => {
    t.equal(found(1, tried('a'), lost('b'), tried('c')), 'b')
    t.equal(found(1, tried('a'), tried('b')), undefined, 'either could be it')
    t.equal(found(1, running('a'), running('b')), undefined)
    t.equal(found(1, running('a'), tried('b')), undefined)
  },
)

t.test(
  'a retry of an attempt during which the proxy crashed is sampled again, and takes no sibling',
  async (t) => {
    t.equal(found(1, interrupted('a')), undefined)
    t.equal(found(1, tried('a'), interrupted('b')), undefined)
  },
)

t.test('two lost responses go to the retries of two requests, one each', async (t) => {
  t.equal(found(1, lost('a'), lost('b')), 'b')
  t.equal(found(1, lost('a'), tried('b', { answeredCount: 1 })), 'a')
})

t.test('a response that a retry received goes to the next attempt of that request', async (t) => {
  t.equal(found(2, tried('a', { answeredCount: 1 })), 'a')
  t.equal(found(1, tried('a', { answeredCount: 1 })), undefined, 'it is another request')
})

t.test('a response with a continuation was delivered', async (t) => {
  t.equal(found(1, tried('a', { wasRead: true })), undefined)
})

t.test('a retry of a retry gets the result of the second attempt', async (t) => {
  t.equal(found(2, failed('a'), tried('b', { retryCount: 1 })), 'b')
})

t.test(
  'a node that repeats a request identifies its first attempt, whatever the client declares',
  async (t) => {
    const tries = [
      tried('a', { nodeMessageId: 'm' }),
      tried('b', { nodeMessageId: 'n', response: 'none' }),
      tried('c', { idempotencyKey: 'x' }),
    ]
    const locate = (lostMessageId: string, idempotencyKey?: string) =>
      selectOriginalAttempt({ retryCount: 0, sendsRetryCount: true, lostMessageId, idempotencyKey }, tries)
        ?.turnId
    t.ok(mayBeRetry({ retryCount: 0, sendsRetryCount: true, lostMessageId: 'm' }, new Set()))
    t.equal(locate('m'), 'a')
    t.equal(locate('n'), undefined)
    t.equal(locate('unsigned'), undefined)
    t.equal(locate('n', 'x'), 'c')
  },
)

t.test('an idempotency key identifies the request, among siblings and with any count', async (t) => {
  const tries = [
    tried('a', { idempotencyKey: 'x' }),
    tried('b', { idempotencyKey: 'y' }),
    tried('c', { idempotencyKey: 'z', response: 'none' }),
  ]
  t.equal(selectOriginalAttempt({ retryCount: 0, idempotencyKey: 'x' }, tries)?.turnId, 'a')
  t.equal(selectOriginalAttempt({ retryCount: 2, idempotencyKey: 'y' }, tries)?.turnId, 'b')
  t.equal(selectOriginalAttempt({ retryCount: 1, idempotencyKey: 'z' }, tries), undefined)
  t.equal(selectOriginalAttempt({ retryCount: 1, idempotencyKey: 'w' }, tries), undefined)
  t.equal(
    selectOriginalAttempt({ retryCount: 1 }, tries),
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
