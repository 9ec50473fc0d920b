import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { Logger } from '../../../../../src/base/logger.ts'
import type { EventSink, GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import type { GenerationRequest } from '../../../../../src/protocol/canonical/request.ts'
import { createLocalBackend } from '../../../../../src/proxy/engines/dispatch/local-backend.ts'
import type { EngineClient, EngineHealth } from '../../../../../src/proxy/engines/port/engine-client.ts'
import type { ExpectedTokenizer } from '../../../../../src/proxy/engines/port/expected-tokenizer.ts'
import { chatRequest, collect, noAbort } from '../../../../conformance/engine-client.ts'
import { type EventStream, pull, push } from '../../../../helpers/event-stream.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { createListingLogger } from '../../../../helpers/listing-logger.ts'
import { silentLogger } from '../../../../helpers/silent-logger.ts'

const INTERVAL_MS = 5_000
const unreachable = () => new ProxyError('engine_unreachable', 'connection refused')
const lost = () => new ProxyError('engine_lost', 'connection lost')

/** A scriptable engine client. */
class ScriptedClient implements EngineClient {
  readonly kind = 'vllm'
  readonly takesTokenIds = true
  readonly name: string
  requestCount = 0
  checks = 0
  /** Thrown by generate before its first event. */
  failure: (() => Error) | undefined
  health: () => Promise<EngineHealth> = async () => ({ models: [{ id: 'qwen' }] })
  start: Partial<GenerationEvent> = {}

  constructor(name: string) {
    this.name = name
  }

  generate(_request: GenerationRequest, sink: EventSink): Promise<void> {
    return push(this.script(), sink)
  }

  script: () => EventStream = async function* (this: ScriptedClient) {
    this.requestCount += 1
    if (this.failure) throw this.failure()
    yield [{ type: 'start', engine: this.name, ...this.start } as GenerationEvent]
    yield [
      { type: 'delta', content: 'a' },
      { type: 'end', finishReason: 'stop' },
    ]
  }

  checkHealth(signal: AbortSignal): Promise<EngineHealth> {
    this.checks += 1
    const aborted = new Promise<never>((_, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason))
    })
    return Promise.race([this.health(), aborted])
  }

  async close(): Promise<void> {}
}

function setUp(...names: string[]) {
  return setUpWith(silentLogger, ...names)
}

function setUpWith(logger: Logger, ...names: string[]) {
  return setUpFor({ logger }, ...names)
}

function setUpFor(more: { logger: Logger; tokenizer?: ExpectedTokenizer }, ...names: string[]) {
  const clock = new FakeClock()
  const clients = names.map((name) => new ScriptedClient(name))
  const options = { clients, clock, ...more, healthIntervalMs: INTERVAL_MS, waitMs: 30_000 }
  const backend = createLocalBackend(options)
  const serve = (sessionId: string) => collect(pull(backend, { ...chatRequest({}), sessionId }, noAbort))
  const settle = () => new Promise((resolve) => setImmediate(resolve))
  return { clock, clients, backend, serve, settle }
}

t.test('an unavailable engine at the top of the list fails no session and is tried only once', async (t) => {
  const { clients, serve, backend } = setUp('dead', 'alive')
  clients[0]!.failure = unreachable
  for (const session of ['a', 'b', 'c']) t.match(await serve(session), [{ engine: 'alive' }, {}, {}])
  t.equal(clients[0]!.requestCount, 1)
  t.match(backend.getStatus().members, [{ healthy: false, error: 'connection refused' }, { healthy: true }])
})

t.test('an engine that was unreachable is used again after a successful health check', async (t) => {
  const { clients, serve, backend, clock, settle } = setUp('a')
  await settle()
  clients[0]!.failure = unreachable
  const waiting = serve('s')
  await settle()
  t.equal(backend.getStatus().queued, 1)
  clients[0]!.failure = undefined
  clock.advance(INTERVAL_MS)
  t.match(await waiting, [{ engine: 'a' }, {}, {}])
  t.strictSame(backend.getStatus().members[0]?.error, undefined)
})

t.test('a sleeping or paused engine gets no new requests, and finishes its own', async (t) => {
  const { clients, serve, backend, clock, settle } = setUp('a', 'b')
  const [a, b] = clients
  await settle()
  const running = serve('s')
  const served = await running
  const home = served[0] as { engine: string }
  const [first, other] = home.engine === 'a' ? [a!, b!] : [b!, a!]
  first.health = async () => ({ models: [{ id: 'qwen' }], unavailable: 'asleep' })
  clock.advance(INTERVAL_MS)
  await settle()
  t.match(await serve('s'), [{ engine: other.name }, {}, {}], 'its session goes to an engine that is awake')
  other.health = async () => ({ models: [{ id: 'qwen' }], unavailable: 'paused' })
  clock.advance(INTERVAL_MS)
  await settle()
  t.match(
    backend
      .getStatus()
      .members.map(({ name, healthy, unavailable }) => [name, healthy, unavailable])
      .sort(),
    [
      [first.name, true, 'asleep'],
      [other.name, true, 'paused'],
    ].sort(),
  )
  let ended = false
  const waiting = serve('s').finally(() => {
    ended = true
  })
  for (let passed = 0; passed < 120_000; passed += INTERVAL_MS) {
    clock.advance(INTERVAL_MS)
    await settle()
  }
  t.notOk(ended, 'requests wait while all sleep, for longer than for unavailable engines')
  t.equal(backend.getStatus().queued, 1)
  first.health = async () => ({ models: [{ id: 'qwen' }] })
  clock.advance(INTERVAL_MS)
  t.match(await waiting, [{ engine: first.name }, {}, {}], 'and continue when one is awake')
})

t.test(
  'an engine that returns with another tokenizer gets no requests, and the error names the tokenizer',
  async (t) => {
    const tokenizer = { name: 'Qwen/Qwen3', ids: [1, 2, 3], decode: (ids: readonly number[]) => ids.join('') }
    const { clients, serve, clock, settle, backend } = setUpFor({ logger: silentLogger, tokenizer }, 'a')
    const [a] = clients
    await settle()
    a!.health = async () => ({ models: [{ id: 'qwen' }], textIds: [1, 2, 3] })
    clock.advance(INTERVAL_MS)
    await settle()
    t.match(await serve('s'), [{ engine: 'a' }, {}, {}])
    t.match(backend.getStatus().members, [{ healthy: true, tokenizer: 'same' }])
    a!.health = async () => ({ models: [{ id: 'llama' }], textIds: [1, 7, 3] })
    clock.advance(INTERVAL_MS)
    await settle()
    t.match(backend.getStatus().members, [{ healthy: false, tokenizer: 'other' }])
    const failing = t.rejects(serve('s'), {
      code: 'engine_unreachable',
      message:
        /: a: the tokenizer of llama is not that of --tokenizer Qwen\/Qwen3: id 2 of a text is 7 here and 2 there$/,
    })
    for (let passed = 0; passed <= 35_000; passed += 1_000) {
      clock.advance(1_000)
      await settle()
    }
    await failing
    t.equal(a!.requestCount, 1)
    a!.health = async () => ({ models: [{ id: 'qwen' }], textIds: [12, 3] })
    clock.advance(INTERVAL_MS)
    await settle()
    t.match(backend.getStatus().members, [
      { healthy: true, tokenizer: 'split', warning: /splits text differently/ },
    ])
    t.match(
      await serve('s'),
      [{ engine: 'a' }, {}, {}],
      'a tokenizer with other merges has the same meaning of ids',
    )
  },
)

t.test('a request that loses engines before its first event tries two, not all', async (t) => {
  const { clients, serve } = setUp('a', 'b', 'c')
  for (const client of clients) client.failure = lost
  await t.rejects(serve('s'), { code: 'engine_lost' })
  t.same(clients.map((client) => client.requestCount).sort(), [0, 1, 1])
})

t.test('a single engine that dropped the connection is tried once more', async (t) => {
  const { clients, serve } = setUp('a')
  clients[0]!.failure = () => {
    clients[0]!.failure = undefined
    return lost()
  }
  t.match(await serve('s'), [{ engine: 'a' }, {}, {}])
})

t.test('a healthy engine that no request reaches is tried three times, and not indefinitely', async (t) => {
  const { clients, serve, clock, settle } = setUp('a')
  await settle()
  clients[0]!.failure = unreachable
  let ended = false
  const failing = t.rejects(serve('s'), { code: 'engine_unreachable' }).then(() => {
    ended = true
  })
  for (let check = 0; check < 10 && !ended; check += 1) {
    clock.advance(INTERVAL_MS)
    await settle()
  }
  await failing
  t.equal(clients[0]!.requestCount, 3)
})

t.test('a request has no fail-over if the fault is its own, or the engine was silent', async (t) => {
  const errors = [
    new ProxyError('engine_timeout', 'silent'),
    ...[400, 404, 422].map((status) => new ProxyError('engine_rejected', 'no', { status })),
  ]
  for (const error of errors) {
    const { clients, serve } = setUp('a', 'b')
    for (const client of clients) client.failure = () => error
    await t.rejects(serve('s'), error)
    t.equal(clients[0]!.requestCount + clients[1]!.requestCount, 1)
  }
})

const FAILING = {
  'HTTP 500': new ProxyError('engine_failed', 'HTTP 500'),
  'HTTP 429': new ProxyError('engine_rejected', 'busy', { status: 429, retryAfterS: 20 }),
  'HTTP 401': new ProxyError('engine_rejected', 'no key', { status: 401 }),
}
for (const [response, error] of Object.entries(FAILING)) {
  t.test(`an engine with response ${response} fails no session, is ejected, and returns`, async (t) => {
    const { clients, serve, backend, clock, settle } = setUp('failing', 'well')
    const [failing] = clients
    await settle()
    failing!.failure = () => error
    for (let session = 0; session < 20; session += 1)
      t.match(await serve(`s${session}`), [{ engine: 'well' }, {}, {}])
    t.equal(failing!.requestCount, error.status === 429 ? 1 : 3)
    t.match(
      backend.getStatus().members.map(({ healthy, ejectedForMs }) => [healthy, ejectedForMs]),
      [
        [true, error.status === 429 ? 20_000 : 10_000],
        [true, undefined],
      ],
    )
    failing!.failure = undefined
    clock.advance(20_000)
    t.equal(backend.getStatus().members[0]!.ejectedForMs, undefined)
    t.match(await serve('fresh'), [{ engine: 'failing' }, {}, {}])
  })
}

t.test('an engine that fails to count a prompt is replaced by another one', async (t) => {
  const { clients, backend } = setUp('failing', 'well')
  const counted: EngineClient[] = clients
  counted[0]!.countTokens = async () => {
    throw FAILING['HTTP 500']
  }
  counted[1]!.countTokens = async () => 7
  t.equal(await backend.countTokens({ messages: [] }, noAbort), 7)
})

t.test('a request that every engine fails tries at most three, and one engine once', async (t) => {
  for (const [names, attempts] of [
    [['a'], 1],
    [['a', 'b'], 2],
    [['a', 'b', 'c', 'd'], 3],
  ] as const) {
    const { clients, serve } = setUp(...names)
    for (const client of clients) client.failure = () => new ProxyError('engine_failed', client.name)
    await t.rejects(serve('s'), { code: 'engine_failed' })
    t.equal(
      clients.reduce((sum, client) => sum + client.requestCount, 0),
      attempts,
    )
  }
})

t.test('a single engine is never ejected', async (t) => {
  const { clients, serve, backend } = setUp('only')
  clients[0]!.failure = () => new ProxyError('engine_failed', 'HTTP 500')
  for (let request = 0; request < 10; request += 1) await t.rejects(serve('s'), { code: 'engine_failed' })
  t.equal(backend.getStatus().members[0]!.ejectedForMs, undefined)
  t.equal(clients[0]!.requestCount, 10)
})

t.test('the retry of a request that failed after its first event goes to another engine', async (t) => {
  const { clients, serve } = setUp('a', 'b')
  const [a] = clients
  a!.script = async function* () {
    yield [{ type: 'start', engine: 'a' } as GenerationEvent]
    throw new ProxyError('engine_failed', 'out of memory')
  }
  await t.rejects(serve('s'), { code: 'engine_failed' })
  t.match(await serve('s'), [{ engine: 'b' }, {}, {}])
})

t.test('an engine whose health check fails while it is ejected returns without a history', async (t) => {
  const { clients, serve, backend, clock, settle } = setUp('a', 'b')
  const [a] = clients
  await settle()
  a!.failure = () => new ProxyError('engine_failed', 'HTTP 500')
  for (const session of ['1', '2', '3', '4', '5', '6']) await serve(session)
  t.ok(backend.getStatus().members[0]!.ejectedForMs)
  a!.health = async () => {
    throw new ProxyError('engine_unreachable', 'connection refused')
  }
  clock.advance(INTERVAL_MS)
  await settle()
  Object.assign(a!, { failure: undefined, health: async () => ({ models: [{ id: 'qwen' }] }) })
  clock.advance(INTERVAL_MS)
  await settle()
  t.match(backend.getStatus().members[0], { healthy: true, ejectedForMs: undefined })
  t.match(await serve('fresh'), [{ engine: 'a' }, {}, {}])
})

t.test('an engine whose health check fails gets no requests until one succeeds', async (t) => {
  const { clients, serve, clock, settle } = setUp('a', 'b')
  clients[0]!.health = async () => {
    throw new ProxyError('engine_failed', 'HTTP 503')
  }
  clock.advance(INTERVAL_MS)
  await settle()
  clock.advance(INTERVAL_MS)
  await settle()
  for (const session of ['1', '2']) t.match(await serve(session), [{ engine: 'b' }, {}, {}])
  clients[0]!.health = async () => ({ models: [] })
  clock.advance(INTERVAL_MS)
  await settle()
  t.match(await serve('3'), [{ engine: 'a' }, {}, {}])
})

t.test('an engine is unhealthy after three consecutive silent checks, not after one', async (t) => {
  const { clients, backend, clock, settle } = setUp('a')
  await settle()
  clients[0]!.health = () => new Promise(() => {})
  const healthy: boolean[] = []
  for (let check = 0; check < 3; check += 1) {
    clock.advance(INTERVAL_MS) // The check starts,
    clock.advance(5_000) // and gets no response.
    await settle()
    healthy.push(backend.getStatus().members[0]!.healthy)
  }
  t.same(healthy, [true, true, false])
  t.equal(backend.getStatus().members[0]!.error, 'no response within 5 s')
})

t.test("an engine that responds while the proxy's event loop is busy stays healthy", async (t) => {
  const { clients, backend, clock, settle } = setUp('a')
  await settle()
  let completeCheck = () => {}
  clients[0]!.health = () =>
    new Promise((resolve) => {
      completeCheck = () => resolve({ models: [{ id: 'qwen' }] })
    })
  for (let check = 0; check < 3; check += 1) {
    clock.advance(INTERVAL_MS) // The check starts,
    clock.stall(20_000) // its response arrives while no code reads it,
    completeCheck() // and is read long after the timeout.
    await settle()
  }
  t.ok(backend.getStatus().members[0]!.healthy)
})

t.test("an engine's failure and its recovery are logged once each", async (t) => {
  const { logger, lines } = createListingLogger()
  const { clients, serve, clock, settle } = setUpWith(logger, 'a', 'b')
  await settle()
  clients[0]!.failure = unreachable
  clients[0]!.health = async () => {
    throw unreachable()
  }
  await serve('s')
  clock.advance(INTERVAL_MS)
  await settle()
  clients[0]!.health = async () => ({ models: [{ id: 'm' }] })
  clock.advance(INTERVAL_MS)
  await settle()
  const shown = lines.filter(({ level }) => level !== 'debug')
  t.match(shown, [
    { event: 'engine_down', level: 'warn', engine: 'a', reason: 'connection refused' },
    { event: 'engine_up', level: 'info', engine: 'a', models: ['m'] },
  ])
  t.equal(shown.length, 2)
})

t.test('weight versions of health checks are used if the response has none', async (t) => {
  const { clients, serve, clock, settle } = setUp('a')
  await settle()
  clients[0]!.health = async () => ({ models: [], weightVersion: 'v1' })
  clock.advance(INTERVAL_MS)
  await settle()
  const versions = async () =>
    (await serve('s')).flatMap((event) => (event.type === 'delta' ? [] : [event.weightVersion]))
  t.same(await versions(), ['v1', 'v1'])
  clients[0]!.start = { weightVersion: 'v2' }
  t.same(await versions(), ['v2', undefined], 'and are not used if it has one')
})

/** Creates a client of an engine that reported v1; `report` completes the waiting checks. */
async function setUpReporting() {
  const { clients, serve, backend, clock, settle } = setUp('a')
  const client = clients[0]!
  let waiting: ((health: EngineHealth) => void)[] = []
  client.health = async () => ({ models: [], weightVersion: 'v1' })
  clock.advance(INTERVAL_MS)
  await settle()
  clock.advance(INTERVAL_MS)
  await settle()
  client.health = () => new Promise((resolve) => waiting.push(resolve))
  const report = async (weightVersion: string) => {
    const checks = waiting
    waiting = []
    for (const respond of checks) respond({ models: [], weightVersion })
    await settle()
  }
  const versions = async () =>
    (await serve('s')).flatMap((event) => (event.type === 'delta' ? [] : [event.weightVersion]))
  return { client, backend, clock, settle, report, versions }
}

t.test('an engine that does not respond to a new check has no version until it reports one', async (t) => {
  const { backend, clock, settle, report, versions } = await setUpReporting()
  t.same(await versions(), ['v1', 'v1'])
  backend.pause()
  const resumed = backend.resume()
  await settle()
  clock.advance(INTERVAL_MS)
  await resumed
  t.same(await versions(), [undefined, undefined], 'requests are dispatched, with an unknown version')
  t.equal(backend.getStatus().members[0]?.weightVersion, undefined)
  t.match(backend.getStatus().members, [{ healthy: true }])
  clock.advance(INTERVAL_MS)
  await report('v2')
  t.same(await versions(), ['v2', 'v2'])
})

t.test('a check that started before a change of weights is discarded', async (t) => {
  const { backend, clock, settle, report, versions } = await setUpReporting()
  clock.advance(INTERVAL_MS)
  const resumed = backend.resume()
  await report('v1')
  t.same(await versions(), [undefined, undefined])
  await settle()
  await report('v2')
  await resumed
  t.same(await versions(), ['v2', 'v2'])
})

t.test(
  'a turn during which weights may have changed ends with an unknown version instead of its first one',
  async (t) => {
    const { backend, report, settle } = await setUpReporting()
    const events = pull(backend, chatRequest({}), noAbort)[Symbol.asyncIterator]()
    t.match((await events.next()).value, [{ type: 'start', weightVersion: 'v1' }])
    const refreshed = backend.refresh()
    t.match((await events.next()).value, [{ type: 'delta' }, { type: 'end', weightVersion: null }])
    await settle()
    await report('v2')
    await refreshed
  },
)

/** Returns the versions of a complete response if `meanwhile` runs before it arrives. */
async function getVersions(version: string | undefined, meanwhile: (engine: ReportingEngine) => unknown) {
  const engine = await setUpReporting()
  const { client, backend } = engine
  const { promise: over, resolve } = Promise.withResolvers<void>()
  client.script = async function* () {
    await over
    const end = { type: 'end', finishReason: 'stop', ...(version && { weightVersion: version }) } as const
    yield [{ type: 'start', engine: 'a' }, { type: 'delta', content: 'a' }, end]
  }
  const response = collect(pull(backend, chatRequest({}), noAbort))
  await engine.settle()
  await meanwhile(engine)
  resolve()
  return (await response).flatMap((event) => (event.type === 'delta' ? [] : [event.weightVersion]))
}

type ReportingEngine = Awaited<ReturnType<typeof setUpReporting>>

t.test('a complete response began with the weights at the time of its request', async (t) => {
  const detected = async ({ clock, report }: ReportingEngine) => {
    clock.advance(INTERVAL_MS)
    await report('v2')
  }
  const announced = async ({ backend, report, settle }: ReportingEngine) => {
    void backend.refresh()
    await settle()
    await report('v2')
  }
  const unknown = async ({ backend, settle }: ReportingEngine) => {
    void backend.refresh()
    await settle()
  }
  t.same(await getVersions(undefined, () => {}), ['v1', 'v1'])
  t.same(await getVersions(undefined, detected), ['v1', 'v2'])
  t.same(await getVersions(undefined, announced), ['v1', 'v2'])
  t.same(await getVersions(undefined, unknown), ['v1', null], 'and ended with unknown weights')
  t.same(
    await getVersions('v2', announced),
    ['v1', 'v2'],
    'also if the engine reports the version of the end',
  )
  t.same(await getVersions('v2', detected), ['v1', 'v2'], 'and no change was announced')
  t.same(await getVersions('v2', () => {}), ['v1', 'v2'], 'nor has a check detected it yet')
})

for (const failure of [unreachable, lost])
  t.test(`an engine that failed with ${failure().code} may return with other weights`, async (t) => {
    const { client, settle, report, clock, backend, versions } = await setUpReporting()
    client.failure = failure
    const over = new AbortController()
    const failed = t.rejects(pull(backend, chatRequest({}), over.signal)[Symbol.asyncIterator]().next())
    await settle()
    t.equal(backend.getStatus().members[0]?.weightVersion, undefined)
    over.abort()
    await failed
    client.failure = undefined
    // A dropped connection has already caused a check.
    if (failure === unreachable) clock.advance(INTERVAL_MS)
    await settle()
    // The backend sends a request twice, and each dropped connection causes one more check of the engine.
    await report('v0')
    await report('v0')
    t.same(await versions(), ['v0', 'v0'])
  })

t.test('models of healthy engines are merged, each once', async (t) => {
  const { clients, backend, clock, settle } = setUp('a', 'b')
  t.same(await backend.listModels(), [{ id: 'qwen' }], 'even before the first health check has ended')
  clients[1]!.health = async () => ({ models: [{ id: 'qwen' }, { id: 'llama', maxModelLen: 8 }] })
  clock.advance(INTERVAL_MS)
  await settle()
  t.same(await backend.listModels(), [{ id: 'qwen' }, { id: 'llama', maxModelLen: 8 }])
})

t.test('the same engine twice is a configuration error', (t) => {
  t.throws(() => setUp('a', 'a'), { code: 'config_invalid' })
  t.end()
})

t.test('close ends the health checks', async (t) => {
  const { clients, backend, clock, settle } = setUp('a')
  await settle()
  await backend.close()
  clock.advance(10 * INTERVAL_MS)
  await settle()
  t.equal(clients[0]!.checks, 1)
  t.equal(clock.pending, 0)
})

t.test('an agent that disconnects ends the wait for the check of an engine that aborted', async (t) => {
  const { clients, backend, settle } = setUp('a')
  const [a] = clients
  await settle()
  a!.failure = () => new ProxyError('engine_aborted', 'aborted')
  const checks = a!.checks
  a!.health = () => new Promise(() => {})
  const leaving = new AbortController()
  const failed = t.rejects(collect(pull(backend, chatRequest({}), leaving.signal)), { message: 'left' })
  await settle()
  t.equal(a!.checks, checks + 1, 'it is checked before another request is dispatched')
  leaving.abort(new Error('left'))
  await failed
})
