import t, { type Test } from 'tap'
import { ProxyError } from '../../../../../../src/base/errors.ts'
import type { GenerationEvent } from '../../../../../../src/protocol/canonical/events.ts'
import { Sessions } from '../../../../../../src/proxy/session/state/sessions.ts'
import { type RequestMetadata, TurnRunner } from '../../../../../../src/proxy/session/turn/run-turn.ts'
import { type EventStream, readResponse as read } from '../../../../../helpers/event-stream.ts'
import { completeResponse, ScriptedBackend, untilAborted } from '../../../../../helpers/scripted-backend.ts'
import { type SessionRequest, SessionTurnRunner } from '../../../../../helpers/session-turn-runner.ts'
import { silentLogger } from '../../../../../helpers/silent-logger.ts'
import { openMemoryStore } from '../../../../../helpers/store-in-process.ts'

const never = new AbortController().signal
const createGoneError = () => new ProxyError('agent_gone', 'left')

/** Starts an engine that sends the first half of each response, and the rest on a signal. */
async function setUp(t: Test, retryGraceMs = 0) {
  const { promise: signalled, resolve: finish } = Promise.withResolvers<void>()
  async function* script(_request: unknown, signal: AbortSignal): EventStream {
    const [start, first, ...rest] = completeResponse()
    yield [start!, first!]
    await Promise.race([signalled, untilAborted(signal)])
    yield rest
  }
  const backend = new ScriptedBackend(script)
  const store = await openMemoryStore()
  const hooks = { onEnded() {}, onSweepFailed() {}, onSweepDeferred() {} }
  const sessions = new Sessions(store, hooks, { strict: false, defaultTtlMs: null, settleMs: 1_000 })
  t.teardown(() => sessions.close())
  const runner = new SessionTurnRunner(
    new TurnRunner({ sessions, backend, store, logger: silentLogger, retryGraceMs }),
    sessions,
  )
  const turns = () => Array.fromAsync(store.readTurns('s'))
  return { backend, runner, store, sessions, turns, finish }
}

function createRequest(metadata: Partial<RequestMetadata> = {}, stream = true): SessionRequest {
  const body = { model: 'm', messages: [{ role: 'user', content: 'hello' }] }
  return {
    sessionId: 's',
    dialect: 'chat',
    request: { kind: 'chat', body },
    stream,
    metadata: { retryCount: 0, sendsRetryCount: true, hasAgentKey: false, ...metadata },
  } as SessionRequest
}

const getText = (events: GenerationEvent[]) =>
  events.map((event) => (event.type === 'delta' ? event.content : '')).join('')

for (const [when, before] of [
  ['that does not exist yet', async () => {}],
  [
    'whose keys are not loaded',
    async (sessions: Sessions) => {
      await sessions.create({ sessionId: 's' })
    },
  ],
] as const) {
  t.test(`concurrent attempts with one idempotency key in a session ${when} are one request`, async (t) => {
    const { backend, runner, sessions, turns, finish } = await setUp(t)
    await before(sessions)
    const start = (idempotencyKey: string) =>
      runner.begin(createRequest({ sendsRetryCount: false, idempotencyKey }), never)
    const started = await Promise.all([start('k'), start('k'), start('k'), start('other')])
    t.equal(new Set(started.slice(0, 3).map(({ turnId }) => turnId)).size, 1)
    const responses = Promise.all(started.map(read))
    finish()
    for (const events of await responses) t.equal(getText(events), 'hi there')
    t.equal(backend.requests.length, 2)
    t.equal((await turns()).length, 2)
  })
}

t.test('responses to one request with an idempotency key are adjacent', async (t) => {
  const { runner, turns, finish } = await setUp(t)
  const withKey = createRequest({ idempotencyKey: 'k' })
  const choices = [0, 1].map((index) =>
    runner.begin({ ...withKey, choice: { index, of: 2, call: 'c' } }, never),
  )
  const started = await Promise.all([...choices, runner.begin(createRequest(), never)])
  finish()
  await Promise.all(started.map(read))
  const order = (await turns()).map(({ turnId }) => turnId)
  t.strictSame(
    order,
    started.map(({ turnId }) => turnId),
    'no other event comes between',
  )
})

t.test('an attempt that cannot start leaves its key to the next one', async (t) => {
  const { runner, sessions } = await setUp(t)
  await sessions.create({ sessionId: 's' })
  await sessions.complete('s')
  const start = () => runner.begin(createRequest({ sendsRetryCount: false, idempotencyKey: 'k' }), never)
  const outcomes = await Promise.allSettled([start(), start()])
  t.match(outcomes, [{ reason: { code: 'session_ended' } }, { reason: { code: 'session_ended' } }])
})

t.test(
  'a retry joins its original attempt while that runs, and both get the complete response',
  async (t) => {
    const { backend, runner, turns, finish } = await setUp(t)
    const first = await runner.begin(createRequest(), never)
    const reading = read(first)
    await Promise.resolve()
    const second = await runner.begin(createRequest({ retryCount: 1 }), never)
    t.equal(second.turnId, first.turnId)
    const joined = read(second)
    finish()
    t.equal(getText(await reading), 'hi there')
    t.equal(getText(await joined), 'hi there')
    t.equal(backend.requests.length, 1, 'the engine received one request')
    t.match(await turns(), [{ status: 'completed', annotations: '{"answered_retries":[1]}', retryCount: 0 }])
  },
)

t.test('the first connection may close once a retry has joined', async (t) => {
  const { runner, turns, finish } = await setUp(t)
  const agent = new AbortController()
  const first = await runner.begin(createRequest(), agent.signal)
  const reading = read(first)
  const joined = read(await runner.begin(createRequest({ retryCount: 1 }), never))
  agent.abort(createGoneError())
  finish()
  t.equal(getText(await joined), 'hi there')
  await reading
  await first.markUndelivered()
  t.match(await turns(), [{ status: 'completed' }], 'the retry has the response')
})

t.test('a response that neither attempt received is aborted, and the next retry gets it', async (t) => {
  const { runner, turns, finish } = await setUp(t)
  const first = await runner.begin(createRequest(), never)
  const reading = read(first)
  const second = await runner.begin(createRequest({ retryCount: 1 }), never)
  const joined = read(second)
  finish()
  await Promise.all([reading, joined])
  await first.markUndelivered()
  t.match(await turns(), [{ status: 'completed' }])
  await second.markUndelivered()
  t.match(await turns(), [{ status: 'aborted', error: { code: 'agent_gone' } }])
  const third = await runner.begin(createRequest({ retryCount: 2 }), never)
  t.equal(getText(await read(third)), 'hi there')
  t.match(await turns(), [{ status: 'completed', error: null, annotations: '{"answered_retries":[1,2]}' }])
  await second.markUndelivered()
  t.match(await turns(), [{ status: 'completed' }], 'late events of an earlier connection have no effect')
})

for (const when of ['in flight', 'recorded'])
  t.test(`two equal requests whose retries arrive together have one response each: ${when}`, async (t) => {
    const { backend, runner, turns, finish } = await setUp(t, 60_000)
    const agents = [new AbortController(), new AbortController()]
    const begun = await Promise.all(
      agents.map(({ signal }) => runner.begin(createRequest({}, false), signal)),
    )
    const readings = Promise.all(begun.map(read))
    for (const agent of agents) agent.abort(createGoneError())
    if (when === 'recorded') {
      finish()
      await readings
      for (const turn of begun) await turn.markUndelivered()
    }
    const retry = createRequest({ retryCount: 1 }, false)
    const retries = await Promise.all([runner.begin(retry, never), runner.begin(retry, never)])
    t.strictSame(retries.map(({ turnId }) => turnId).sort(), begun.map(({ turnId }) => turnId).sort())
    finish()
    await Promise.all([...retries.map(read), readings])
    t.match(await turns(), [{ status: 'completed' }, { status: 'completed' }])
    t.equal(backend.requests.length, 2)
  })

t.test('a retry of a request that is being cancelled is sampled again', async (t) => {
  const { backend, runner, store, turns, finish } = await setUp(t)
  const { script } = backend
  const { promise: started, resolve: reportStart } = Promise.withResolvers<void>()
  const { promise: cancelled, resolve: release } = Promise.withResolvers<void>()
  backend.script = async function* (_request, signal) {
    reportStart()
    await untilAborted(signal).catch(() => cancelled)
    signal.throwIfAborted()
    yield []
  }
  const agent = new AbortController()
  const reading = read(await runner.begin(createRequest(), agent.signal))
  await started
  agent.abort(createGoneError())
  backend.script = script
  const outlines = store.readOutlines.bind(store)
  store.readOutlines = async function* (sessionId) {
    yield* outlines(sessionId)
    // The engine request ends only once the retry has been compared with the turns in flight.
    setImmediate(release)
  }
  const retry = runner.begin(createRequest({ retryCount: 1 }), never)
  await t.rejects(reading, { code: 'agent_gone' })
  finish()
  t.equal(getText(await read(await retry)), 'hi there')
  t.match(await turns(), [{ status: 'aborted' }, { status: 'completed', retryCount: 1 }])
})

t.test('a request whose agent may retry continues for a while, and the retry joins it', async (t) => {
  const { backend, runner, turns, finish } = await setUp(t, 60_000)
  const agent = new AbortController()
  const first = await runner.begin(createRequest(), agent.signal)
  const reading = read(first)
  agent.abort(createGoneError())
  const joined = read(await runner.begin(createRequest({ retryCount: 1 }), never))
  finish()
  t.equal(getText(await joined), 'hi there')
  await reading
  t.equal(backend.requests.length, 1)
  t.equal((await turns()).length, 1)
})

t.test('when no retry arrives in time, the request is cancelled', async (t) => {
  const { runner, turns } = await setUp(t, 1)
  const agent = new AbortController()
  const reading = read(await runner.begin(createRequest(), agent.signal))
  agent.abort(createGoneError())
  await t.rejects(reading, { code: 'agent_gone' })
  t.match(await turns(), [{ status: 'aborted', error: { code: 'agent_gone' } }])
})

t.test('a request of a client that does not declare its attempts is cancelled immediately', async (t) => {
  const { runner, turns } = await setUp(t, 60_000)
  const agent = new AbortController()
  const reading = read(await runner.begin(createRequest({ sendsRetryCount: false }), agent.signal))
  agent.abort(createGoneError())
  await t.rejects(reading, { code: 'agent_gone' })
  t.match(await turns(), [{ status: 'aborted' }])
})

t.test('a stream that has started is cancelled immediately, unless it has an idempotency key', async (t) => {
  const { runner, turns, finish } = await setUp(t, 60_000)
  const agent = new AbortController()
  const begin = async (metadata: Partial<RequestMetadata>) => {
    const turn = await runner.begin(createRequest(metadata), agent.signal)
    const { promise: started, resolve } = Promise.withResolvers<undefined>()
    const write = (): undefined => resolve(undefined) as undefined
    const all = turn.deliver({ write })
    await started
    return { all }
  }
  const withoutKey = await begin({})
  const withKey = await begin({ idempotencyKey: 'k' })
  agent.abort(createGoneError())
  await t.rejects(withoutKey.all, { code: 'agent_gone' })
  finish()
  await withKey.all
  t.match(await turns(), [{ status: 'aborted' }, { status: 'completed' }])
})

t.test(
  'few requests of a session continue without their agents: one more is cancelled immediately',
  async (t) => {
    const { runner, finish, turns } = await setUp(t, 60_000)
    const agent = new AbortController()
    const readings = []
    for (let i = 0; i < 10; i += 1)
      readings.push(read(await runner.begin(createRequest({}, false), agent.signal)))
    agent.abort(createGoneError())
    const ended = Promise.allSettled(readings)
    finish()
    await ended
    const statuses = (await turns()).map(({ status }) => status)
    t.equal(statuses.filter((status) => status === 'aborted').length, 2)
  },
)

t.test('a retry of a request that failed is sampled again', async (t) => {
  const { backend, runner, turns, finish } = await setUp(t)
  const script = backend.script
  backend.script = () => {
    throw new ProxyError('engine_lost', 'gone')
  }
  await t.rejects(read(await runner.begin(createRequest(), never)), { code: 'engine_lost' })
  backend.script = script
  finish()
  t.equal(getText(await read(await runner.begin(createRequest({ retryCount: 1 }), never))), 'hi there')
  t.match(await turns(), [{ status: 'failed' }, { status: 'completed', retryCount: 1, annotations: '{}' }])
})

t.test('a retry in a session that was reset finds no earlier turn', async (t) => {
  const { backend, runner, sessions, finish } = await setUp(t)
  finish()
  await read(await runner.begin(createRequest(), never))
  await sessions.reset('s')
  await read(await runner.begin(createRequest({ retryCount: 1 }), never))
  t.equal(backend.requests.length, 2)
})

t.test('with idempotency keys alone, the session is read only when one is repeated', async (t) => {
  const { runner, store, finish } = await setUp(t)
  finish()
  let readings = 0
  const outlines = store.readOutlines.bind(store)
  store.readOutlines = (sessionId) => {
    readings += 1
    return outlines(sessionId)
  }
  const createWithKey = (idempotencyKey: string) => createRequest({ sendsRetryCount: false, idempotencyKey })
  const first = await runner.begin(createWithKey('a'), never)
  await read(first)
  const before = readings
  await read(await runner.begin(createWithKey('b'), never))
  await read(await runner.begin(createWithKey('c'), never))
  t.equal(readings, before)
  t.equal((await runner.begin(createWithKey('a'), never)).turnId, first.turnId)
  t.equal(readings, before + 1)
})
