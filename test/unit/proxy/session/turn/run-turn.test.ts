import { mock } from 'node:test'
import t, { type Test } from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { intercept } from '../../../../../src/base/interceptor.ts'
import type { EventSink, GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { Sessions } from '../../../../../src/proxy/session/state/sessions.ts'
import { TurnRunner } from '../../../../../src/proxy/session/turn/run-turn.ts'
import { WeightAnnouncement } from '../../../../../src/proxy/session/turn/weight-announcement.ts'
import type { TurnRecord, TurnStore } from '../../../../../src/proxy/store/port/turn-store.ts'
import { readResponse as read } from '../../../../helpers/event-stream.ts'
import {
  completeResponse,
  respond,
  type Script,
  ScriptedBackend,
  untilAborted,
} from '../../../../helpers/scripted-backend.ts'
import { type SessionRequest, SessionTurnRunner } from '../../../../helpers/session-turn-runner.ts'
import { silentLogger } from '../../../../helpers/silent-logger.ts'
import { openMemoryStore } from '../../../../helpers/store-in-process.ts'

const never = new AbortController().signal

async function setUp(
  t: Test,
  script?: Script,
  existing?: TurnStore,
  weights = new WeightAnnouncement(),
  settleMs = 1_000,
) {
  const store = existing ?? (await openMemoryStore())
  const backend = new ScriptedBackend(script)
  const hooks = {
    onEnded: (id: string) => backend.releaseSession(id),
    onSweepFailed() {},
    onSweepDeferred() {},
  }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null, settleMs })
  t.teardown(() => sessions.close())
  const runner = new SessionTurnRunner(
    new TurnRunner({ sessions, backend, store, logger: silentLogger, weights }),
    sessions,
  )
  return { backend, sessions, store, runner }
}

function createRequest(overrides: Partial<SessionRequest> = {}): SessionRequest {
  const request = {
    kind: 'chat',
    body: { model: 'm', messages: [{ role: 'user', content: 'hello' }] },
  } as const
  const metadata = { retryCount: 0, hasAgentKey: false }
  return {
    sessionId: 's',
    dialect: 'chat',
    request,
    stream: true,
    metadata,
    ...overrides,
  } as SessionRequest
}

/** Records the types of each batch. */
function recordTypes(types: string[]): EventSink {
  return { write: (batch) => void types.push(batch.map(({ type }) => type).join()) as undefined }
}

async function getTurns(store: TurnStore): Promise<TurnRecord[]> {
  return Array.fromAsync(store.readTurns('s'))
}

/**
 * Waits until earlier writes are committed: the store delays openings until a write that may depend on them.
 */
async function commitDelayed(store: TurnStore): Promise<void> {
  await store.deleteSession('another')
}

t.test("a request becomes a completed turn with the agent's view of it", async (t) => {
  const { runner, store, backend } = await setUp(t)
  const turn = await runner.begin(createRequest({ metadata: { retryCount: 2, hasAgentKey: false } }), never)
  t.same(await read(turn), completeResponse())
  const [record, ...others] = await getTurns(store)
  t.same(others, [])
  t.match(record, {
    turnId: turn.turnId,
    index: 0,
    status: 'completed',
    lastMessage: { depth: 1, json: '{"role":"user","content":"hello"}' },
    tools: null,
    params: '{"model":"m"}',
    promptPieces: { length: 0 },
    completionText: 'hi there',
    toolCalls: '[]',
    finishReason: 'stop',
    model: 'scripted',
    engine: 'scripted',
    exact: true,
    inexactReason: null,
    weightVersionStart: '7',
    weightVersionEnd: '7',
    retryCount: 2,
    error: null,
  })
  t.same(record?.promptTokenIds, Int32Array.of(1, 2, 3))
  t.same(record?.completionTokenIds, Int32Array.of(10, 11, 12))
  t.same(record?.completionLogprobs, Float64Array.of(-0.5, -0.25, -1))
  t.match(backend.requests[0], { requestId: turn.turnId, sessionId: 's', stream: true, kind: 'chat' })
})

t.test('weights announced during a generation are not its initial weights', async (t) => {
  const weights = new WeightAnnouncement()
  weights.announced = 'v0'
  const bare = completeResponse().map((event) =>
    event.type === 'start' ? { ...event, weightVersion: undefined } : event,
  ) as GenerationEvent[]
  const script: Script = async function* (request) {
    // The request waited for an engine until now.
    weights.announced = 'v1'
    request.onDispatched?.()
    weights.announced = 'v2'
    yield bare
  }
  const { runner, store } = await setUp(t, script, undefined, weights)
  await read(await runner.begin(createRequest({ stream: false }), never))
  t.match(await getTurns(store), [{ weightVersionStart: 'v1', weightVersionEnd: 'v2' }])
})

t.test(
  'versions of each token, which a stream reports at its end, determine the initial weights',
  async (t) => {
    const script: Script = async function* () {
      yield [{ type: 'start', engine: 'e', weightVersion: 'v1' }]
      const weight_versions = [
        { version: 'v2', start: 0, end: 1 },
        { version: 'v3', start: 1, end: 2 },
      ]
      yield [
        { type: 'delta', content: 'ab', tokenIds: [1, 2], logprobs: [-1, -1], details: { weight_versions } },
      ]
      yield [{ type: 'end', finishReason: 'stop', weightVersion: 'v3' }]
    }
    const { runner, store } = await setUp(t, script)
    await read(await runner.begin(createRequest(), never))
    t.match(await getTurns(store), [{ weightVersionStart: 'v2', weightVersionEnd: 'v3' }])
  },
)

t.test('the last version of a turn that failed after its weights had changed is unknown', async (t) => {
  for (const [weightsChanged, expected] of [
    [true, null],
    [false, 'v1'],
  ] as const) {
    const script: Script = async function* () {
      yield [{ type: 'start', engine: 'e', weightVersion: 'v1' }]
      yield [{ type: 'delta', content: 'ab', tokenIds: [1, 2], logprobs: [-1, -1] }]
      const error = new ProxyError('engine_lost', 'cut')
      throw Object.assign(error, { weightsChanged })
    }
    const { runner, store } = await setUp(t, script)
    await t.rejects(runner.begin(createRequest(), never).then(read), { code: 'engine_lost' })
    t.match(await getTurns(store), [{ weightVersionStart: 'v1', weightVersionEnd: expected }])
  }
})

t.test('the end of a response is deferred until the turn is in the store', async (t) => {
  const steps: string[] = []
  const store = intercept(await openMemoryStore(), {
    closeTurn: async (proceed) => {
      steps.push('commit begins')
      await proceed()
      steps.push('commit ends')
    },
  })
  const { runner } = await setUp(t, undefined, store)
  await (await runner.begin(createRequest(), never)).deliver(recordTypes(steps))
  t.same(steps, ['start', 'delta', 'delta', 'commit begins', 'commit ends', 'end'])
})

t.test('an end that arrives in one batch with all other events is deferred as well', async (t) => {
  const { runner } = await setUp(t, async function* () {
    yield completeResponse()
  })
  const batches: string[] = []
  await (await runner.begin(createRequest(), never)).deliver(recordTypes(batches))
  t.same(batches, ['start,delta,delta', 'end'])
})

t.test('a turn that cannot be stored fails the request before its response ends', async (t) => {
  const store = intercept(await openMemoryStore(), {
    closeTurn: () => Promise.reject(new ProxyError('store_failed', 'the disk is full')),
  })
  const { runner } = await setUp(t, undefined, store)
  const types: string[] = []
  const turn = await runner.begin(createRequest(), never)
  await t.rejects(turn.deliver(recordTypes(types)), { code: 'store_failed' })
  t.notOk(types.join().includes('end'))
})

t.test(
  'a turn whose end was rejected is closed when the store accepts it, unless another proxy owns its session',
  async (t) => {
    t.teardown(() => mock.timers.reset())
    mock.timers.enable({ apis: ['setTimeout'] })
    for (const [error, closings, status] of [
      [new ProxyError('store_failed', 'the disk is full'), 2, 'failed'],
      [new ProxyError('session_moved', 'it is elsewhere'), 1, 'open'],
    ] as const) {
      const writes = { closings: 0, error: error as ProxyError | undefined }
      const store = intercept(await openMemoryStore(), {
        closeTurn: (proceed) => {
          writes.closings += 1
          return writes.error ? Promise.reject(writes.error) : proceed()
        },
      })
      const { runner } = await setUp(t, () => respond(completeResponse().slice(0, 2)), store)
      await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'engine_lost' })
      await commitDelayed(store)
      t.match(await getTurns(store), [{ status: 'open' }])
      writes.error = undefined
      mock.timers.tick(60_000)
      await commitDelayed(store)
      t.equal(writes.closings, closings)
      t.match(await getTurns(store), [{ status }])
    }
  },
)

for (const [code, status, error] of [
  ['session_moved', 'aborted', { code: 'session_moved' }],
  ['store_failed', 'completed', null],
] as const) {
  t.test(`after ${code} at a turn's end, the other turn of its session is ${status}`, async (t) => {
    let rejectedId = ''
    const store = intercept(await openMemoryStore(), {
      closeTurn: (proceed, { turnId }) =>
        turnId === rejectedId ? Promise.reject(new ProxyError(code, 'not recorded')) : proceed(),
    })
    const { promise: announced, resolve: finish } = Promise.withResolvers<void>()
    const script: Script = async function* ({ requestId }, signal) {
      if (requestId !== rejectedId) await Promise.race([announced, untilAborted(signal)])
      yield completeResponse()
    }
    const { runner } = await setUp(t, script, store)
    const other = await runner.begin(createRequest(), never)
    const others = read(other).then(
      () => null,
      (failure: unknown) => failure,
    )
    const rejected = await runner.begin(createRequest(), never)
    rejectedId = rejected.turnId
    await t.rejects(read(rejected), { code })
    finish()
    t.match(await others, error)
  })
}

t.test('a turn whose opening failed is not acknowledged, even if its closing seems to succeed', async (t) => {
  const store = intercept(await openMemoryStore(), {
    openTurn: () => Promise.reject(new ProxyError('store_failed', 'the disk was full for a moment')),
  })
  const { runner } = await setUp(t, undefined, store)
  await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'store_failed' })
})

t.test('a turn whose opening failed is not closed again, because it has no row', async (t) => {
  t.teardown(() => mock.timers.reset())
  mock.timers.enable({ apis: ['setTimeout'] })
  let closings = 0
  const createError = () => new ProxyError('store_failed', 'the disk is full')
  const store = intercept(await openMemoryStore(), {
    openTurn: () => Promise.reject(createError()),
    closeTurn: () => {
      closings += 1
      return Promise.reject(createError())
    },
  })
  const { runner } = await setUp(t, undefined, store)
  await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'store_failed' })
  // The end of the turn as completed was rejected, then its end as failed.
  const before = closings
  mock.timers.tick(60_000)
  t.equal(closings, before)
})

t.test('requests that could not be recorded leave no gap in the later indexes', async (t) => {
  let isFull = true
  const store = intercept(await openMemoryStore(), {
    openTurn: (proceed) =>
      isFull ? Promise.reject(new ProxyError('store_failed', 'the disk is full')) : proceed(),
  })
  const { runner } = await setUp(t, undefined, store)
  for (let attempts = 0; attempts < 3; attempts += 1) {
    await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'store_failed' })
  }
  isFull = false
  for (let turns = 0; turns < 2; turns += 1) await read(await runner.begin(createRequest(), never))
  t.same(
    (await getTurns(store)).map(({ index }) => index),
    [0, 1],
  )
})

t.test(
  'an agent that disconnects cancels the engine; the turn is aborted and has the tokens so far',
  async (t) => {
    const agent = new AbortController()
    let engineSignal: AbortSignal | undefined
    const { runner, store } = await setUp(t, async function* (_request, signal) {
      engineSignal = signal
      yield completeResponse().slice(0, 2)
      await untilAborted(signal)
    })
    const turn = await runner.begin(createRequest(), agent.signal)
    const write = () => agent.abort(new ProxyError('agent_gone', 'left')) as undefined
    await t.rejects(turn.deliver({ write }), { code: 'agent_gone' })
    t.equal(engineSignal?.aborted, true)
    const [record] = await getTurns(store)
    t.match(record, {
      status: 'aborted',
      completionText: 'hi',
      finishReason: null,
      error: { code: 'agent_gone' },
    })
    t.same(record?.completionTokenIds, Int32Array.of(10))
  },
)

t.test('a sink that fails fails the turn', async (t) => {
  const { runner, store } = await setUp(t)
  const turn = await runner.begin(createRequest(), never)
  const write = () => {
    throw new ProxyError('engine_failed', 'it cannot be written')
  }
  await t.rejects(turn.deliver({ write }), { code: 'engine_failed' })
  t.match(await getTurns(store), [{ status: 'failed', error: { code: 'engine_failed' } }])
})

t.test('an engine that fails leaves a failed turn with the cause and the tokens so far', async (t) => {
  const { runner, store } = await setUp(t, async function* () {
    yield completeResponse().slice(0, 2)
    throw new ProxyError('engine_lost', 'connection reset')
  })
  await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'engine_lost' })
  const [record] = await getTurns(store)
  t.match(record, {
    status: 'failed',
    error: { code: 'engine_lost', message: 'connection reset' },
    completionText: 'hi',
  })
})

t.test('if one id is invalid, none is recorded, and the turn is not exact', async (t) => {
  const full = completeResponse()
  const [start, end] = [full[0]!, full.at(-1)!]
  const delta: GenerationEvent = {
    type: 'delta',
    content: 'hi',
    tokenIds: [5, -1, 7],
    logprobs: [-1, -1, -1],
  }
  const { runner, store } = await setUp(t, () => respond([start, delta, end]))
  await read(await runner.begin(createRequest(), never))
  const [record] = await getTurns(store)
  t.match(record, { status: 'completed', completionText: 'hi', exact: false })
  t.strictSame([...record!.completionTokenIds], [])
})

t.test('an engine that ends without a finish reason has failed', async (t) => {
  const { runner, store } = await setUp(t, () => respond(completeResponse().slice(0, 3)))
  await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'engine_lost' })
  t.match(await getTurns(store), [{ status: 'failed' }])
})

t.test('a response nested too deeply to be serialized fails, and its turn is still closed', async (t) => {
  const deep = JSON.parse(`{"a":${'['.repeat(50_000)}${']'.repeat(50_000)}}`)
  for (const event of [
    { type: 'delta', content: 'x', extra: deep },
    { type: 'end', finishReason: 'stop', usage: deep },
  ] as GenerationEvent[]) {
    const { runner, store } = await setUp(t, async function* () {
      yield [event]
    })
    await t.rejects(read(await runner.begin(createRequest(), never)), {
      code: 'engine_failed',
      cause: RangeError,
    })
    t.match(await getTurns(store), [{ status: 'failed', error: { code: 'engine_failed' } }])
  }
})

t.test('a turn whose record cannot be serialized is closed without its response', async (t) => {
  for (const [events, code] of [
    [completeResponse(), 'internal'],
    [completeResponse().slice(0, 2), 'engine_lost'],
  ] as const) {
    const annotations = {
      get text(): string {
        throw new RangeError('Invalid string length')
      },
    }
    const start = { ...events[0], annotations } as GenerationEvent
    const { runner, sessions, store } = await setUp(t, () => respond([start, ...events.slice(1)]))
    await t.rejects(read(await runner.begin(createRequest(), never)), { code })
    t.match(await getTurns(store), [
      { status: 'failed', error: { code }, completionText: null, exact: false, inexactReason: /serialized/ },
    ])
    t.strictSame(sessions.listInFlightTurns(), [])
    t.equal(await runner.drain(60_000), true)
  }
})

t.test('unknown fields of an engine are recorded with the response', async (t) => {
  const unknownFields = { extra: { citations: [1] } }
  const { runner, store } = await setUp(t, () =>
    respond(
      completeResponse().map((event) => (event.type === 'delta' ? { ...event, ...unknownFields } : event)),
    ),
  )
  await read(await runner.begin(createRequest(), never))
  const { runner: plain, store: bare } = await setUp(t)
  await read(await plain.begin(createRequest(), never))
  t.strictSame(
    [...(await getTurns(store)), ...(await getTurns(bare))].map(({ annotations }) => JSON.parse(annotations)),
    [{ answer: unknownFields }, {}],
  )
})

t.test('the time of the first token is that of the first delta, not of a later one', async (t) => {
  let now = 0
  const [start, ...rest] = completeResponse()
  const store = await openMemoryStore()
  const sessions = new Sessions(
    store,
    { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} },
    { strict: false, defaultTtlMs: null },
  )
  t.teardown(() => sessions.close())
  const backend = new ScriptedBackend(async function* () {
    yield [start!]
    for (const event of rest) {
      now += 10
      yield [event]
    }
  })
  const options = { sessions, backend, store, logger: silentLogger, clock: () => now }
  const runner = new SessionTurnRunner(new TurnRunner(options), sessions)
  await read(await runner.begin(createRequest(), never))
  t.match(await getTurns(store), [{ startedAtMs: 0, firstTokenAtMs: 10, endedAtMs: 10 * rest.length }])
})

t.test("tokens are counted for the session's model, and for its session if it exists", async (t) => {
  const { runner, backend, sessions } = await setUp(t)
  const counted: unknown[][] = []
  backend.countTokens = async (...input: unknown[]) => {
    counted.push(input)
    return 3
  }
  const body = { model: 'm', messages: [] }
  await sessions.create({ sessionId: 's', samplingParams: { top_k: 5 }, policy: 'trained' })
  for (const id of ['s', 'unknown', undefined]) await runner.countTokens(id, body, never)
  t.strictSame(counted, [
    [{ ...body, top_k: 5, model: 'trained' }, never, 's'],
    [body, never, undefined],
    [body, never, undefined],
  ])
  t.equal(await sessions.find('unknown'), undefined)
})

t.test('an unexpected error is reported as internal, and the turn is failed', async (t) => {
  const { runner, store } = await setUp(t, async function* () {
    yield completeResponse().slice(0, 1)
    throw new TypeError('a bug')
  })
  await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'internal' })
  t.match(await getTurns(store), [{ status: 'failed', error: { code: 'internal' } }])
})

t.test("the session's sampling parameters override the agent's, on the wire and in the store", async (t) => {
  const { runner, sessions, store, backend } = await setUp(t)
  await sessions.create({ sessionId: 's', samplingParams: { temperature: 1, top_k: 5 } })
  const body = { model: 'm', temperature: 0, seed: 3, messages: [{ role: 'user' as const, content: 'x' }] }
  await read(await runner.begin(createRequest({ request: { kind: 'chat', body } }), never))
  t.match(backend.requests[0]?.body, { temperature: 1, top_k: 5, seed: 3 })
  t.same(JSON.parse((await getTurns(store))[0]!.params), { model: 'm', temperature: 1, top_k: 5, seed: 3 })
  t.equal(body.temperature, 0, "the agent's own body is unchanged")
})

t.test("the session's length limit applies under any name of the agent's field", async (t) => {
  const { runner, sessions, backend } = await setUp(t)
  for (const [limit, field] of [
    ['max_tokens', 'max_completion_tokens'],
    ['max_completion_tokens', 'max_tokens'],
  ] as const) {
    const { session } = await sessions.create({ samplingParams: { [limit]: 5 } })
    const body = { model: 'm', messages: [{ role: 'user' as const, content: 'hello' }], [field]: 500 }
    const request = { kind: 'chat', body } as const
    await read(await runner.begin(createRequest({ sessionId: session.sessionId, request }), never))
    const sent = backend.requests.at(-1)!.body
    t.same([sent[limit], sent[field]], [5, undefined])
  }
})

t.test('a request nested too deeply to be serialized is rejected without a trace', async (t) => {
  const settleMs = 60_000
  const { runner, sessions, store } = await setUp(t, undefined, undefined, undefined, settleMs)
  const deep = JSON.parse(`${'['.repeat(100_000)}${']'.repeat(100_000)}`)
  const messages = [{ role: 'user' as const, content: 'hello' }]
  for (const body of [
    { messages, metadata: deep },
    { messages: [{ ...messages[0]!, extra: deep }] },
    { messages, tools: [{ type: 'function', function: { name: 'f', parameters: deep } }] },
  ]) {
    const request = { kind: 'chat', body } as unknown as SessionRequest['request']
    await t.rejects(runner.begin(createRequest({ request }), never), {
      code: 'invalid_request',
      message: /nested/,
    })
  }
  const startedAt = performance.now()
  await read(await runner.begin(createRequest(), never))
  await sessions.complete('s')
  t.ok(
    performance.now() - startedAt < settleMs / 2,
    'no request is left that the end of the session would wait for',
  )
  t.match(await getTurns(store), [{ index: 0, status: 'completed' }])
})

t.test('ending a session cancels its requests, and their turns are closed when it has ended', async (t) => {
  const { runner, sessions, store } = await setUp(t, async function* (_request, signal) {
    yield completeResponse().slice(0, 1)
    await untilAborted(signal)
  })
  const turn = await runner.begin(createRequest(), never)
  const reading = t.rejects(read(turn), { code: 'turn_cancelled' })
  await sessions.complete('s')
  t.match(await getTurns(store), [{ status: 'aborted', error: { code: 'turn_cancelled' } }])
  await reading
})

t.test('a response that was committed but not delivered is marked as undelivered', async (t) => {
  const { runner, store } = await setUp(t)
  const turn = await runner.begin(createRequest(), never)
  await read(turn)
  await turn.markUndelivered()
  t.match(await getTurns(store), [{ status: 'aborted', error: { code: 'agent_gone' } }])
})

t.test('draining lets running requests finish and rejects new ones', async (t) => {
  const gate = Promise.withResolvers<void>()
  const { runner, store } = await setUp(t, async function* () {
    yield completeResponse().slice(0, 1)
    await gate.promise
    yield completeResponse().slice(1)
  })
  const reading = read(await runner.begin(createRequest(), never))
  const drained = runner.drain(10_000)
  await t.rejects(runner.begin(createRequest(), never), { code: 'shutting_down' })
  gate.resolve()
  t.equal(await drained, true)
  t.equal((await reading).length, 4)
  t.match(await getTurns(store), [{ status: 'completed' }])
})

t.test('requests beyond the grace period are cancelled and recorded as failed', async (t) => {
  const { runner, store } = await setUp(t, async function* (_request, signal) {
    yield completeResponse().slice(0, 1)
    await untilAborted(signal)
  })
  const reading = t.rejects(read(await runner.begin(createRequest(), never)), { code: 'shutting_down' })
  t.equal(await runner.drain(1), false)
  await reading
  t.match(await getTurns(store), [{ status: 'failed', error: { code: 'shutting_down' } }])
})

t.test('a drain does not wait for ever for a turn that the database does not commit', async (t) => {
  const commit = Promise.withResolvers<void>()
  const store = intercept(await openMemoryStore(), { closeTurn: () => commit.promise })
  const { runner, sessions } = await setUp(t, undefined, store, undefined, 20)
  const types: string[] = []
  const delivered = (await runner.begin(createRequest(), never)).deliver(recordTypes(types))
  t.equal(await runner.drain(1), false)
  t.equal(sessions.listInFlightTurns().length, 1)
  t.notOk(types.join().includes('end'), 'the turn is not acknowledged')
  await sessions.close()
  commit.reject(new ProxyError('store_failed', 'the turn store is closed'))
  await t.rejects(delivered, { code: 'shutting_down' })
  t.equal(sessions.listInFlightTurns().length, 0)
})

t.test('a turn that cannot start releases its index, so that nothing waits for it', async (t) => {
  const store = intercept(await openMemoryStore(), {
    openTurn: () => {
      throw new TypeError('a bug')
    },
  })
  const { runner, sessions } = await setUp(t, undefined, store, undefined, 10_000)
  await t.rejects(runner.begin(createRequest(), never), { message: 'a bug' })
  const startedAt = performance.now()
  await sessions.complete('s')
  t.ok(performance.now() - startedAt < 5_000, 'the session settles without waiting for its timeout')
})
