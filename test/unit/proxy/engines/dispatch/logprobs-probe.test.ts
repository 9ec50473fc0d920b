/** The mode of an engine's logprobs is measured before its first request, in the slot of that request. */
import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import type { EventSink, GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import type { TokenLogprob } from '../../../../../src/protocol/canonical/messages.ts'
import type { GenerationRequest } from '../../../../../src/protocol/canonical/request.ts'
import { createLocalBackend } from '../../../../../src/proxy/engines/dispatch/local-backend.ts'
import type { LogprobsMode } from '../../../../../src/proxy/engines/dispatch/logprobs-probe.ts'
import type { EngineClient, EngineHealth } from '../../../../../src/proxy/engines/port/engine-client.ts'
import { chatRequest, collect, noAbort } from '../../../../conformance/engine-client.ts'
import { type EventStream, pull, push } from '../../../../helpers/event-stream.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { silentLogger } from '../../../../helpers/silent-logger.ts'

const LOGITS = { sea: 3, lake: 2, pond: 1.5, bay: 0 }
const INTERVAL_MS = 5_000

/** A client of an engine that reports its best tokens in the given mode. */
class ModalClient implements EngineClient {
  readonly takesTokenIds = true
  readonly name = 'engine'
  kind: EngineClient['kind'] = 'vllm'
  mode: LogprobsMode
  measured = 0
  /** Whether the engine rejects requests for logprobs. */
  rejectsLogprobs = false
  requestedModel: string | undefined
  served = 0
  /** Awaited before a measuring request gets its response. */
  gate: Promise<void> | undefined
  failure: (() => Error) | undefined
  startFields: Partial<GenerationEvent> = {}
  health: () => Promise<EngineHealth> = async () => ({ models: [{ id: 'qwen' }] })

  constructor(mode: LogprobsMode) {
    this.mode = mode
  }

  generate(request: GenerationRequest, sink: EventSink, signal: AbortSignal): Promise<void> {
    return push(this.#respond(request, signal), sink)
  }

  async *#respond(request: GenerationRequest, signal: AbortSignal): EventStream {
    const start = { type: 'start', engine: this.name, ...this.startFields } as GenerationEvent
    const end: GenerationEvent = { type: 'end', finishReason: 'stop' }
    const isMeasuring = request.body.logprobs === true
    if (isMeasuring) {
      this.measured += 1
      this.requestedModel = request.body.model
      await this.gate
      signal.throwIfAborted()
      if (this.rejectsLogprobs) throw new ProxyError('engine_rejected', 'no logprobs here')
    } else this.served += 1
    if (this.failure) throw this.failure()
    if (!isMeasuring) return yield [start, end]
    const { temperature, top_k: topK } = request.body
    const top = this.#best(Number(temperature), topK === 2 ? 2 : 4)
    yield [start, { type: 'delta', logprobsContent: [{ ...top[0]!, top_logprobs: top }] }, end]
  }

  #best(temperature: number, count: number): TokenLogprob[] {
    const heat = this.mode === 'raw_logprobs' ? 1 : temperature
    const logits = Object.entries(LOGITS).map(([token, logit]) => ({ token, logit: logit / heat }))
    const left = this.mode === 'processed_logprobs' ? logits.slice(0, count) : logits
    const sum = Math.log(left.reduce((total, { logit }) => total + Math.exp(logit), 0))
    return left.map(({ token, logit }) => ({ token, logprob: logit - sum, bytes: null, top_logprobs: [] }))
  }

  checkHealth(): Promise<EngineHealth> {
    return this.health()
  }

  async close(): Promise<void> {}
}

function setUp(mode: LogprobsMode = 'raw_logprobs', measuresLogprobs = true) {
  const client = new ModalClient(mode)
  const clock = new FakeClock()
  const options = { clients: [client], clock, logger: silentLogger, healthIntervalMs: INTERVAL_MS }
  const backend = createLocalBackend({ ...options, measuresLogprobs })
  const serve = async (requestId = 'r', signal = noAbort) => {
    const events = await collect(pull(backend, { ...chatRequest({}), requestId, sessionId: 's' }, signal))
    const [start] = events
    return start?.type === 'start' ? start.sampling?.logprobsMode : undefined
  }
  const settle = () => new Promise((resolve) => setImmediate(resolve))
  return { client, clock, backend, serve, settle }
}

for (const mode of ['raw_logprobs', 'temperature_logprobs', 'processed_logprobs'] as const)
  t.test(`the first turn has ${mode} recorded already`, async (t) => {
    const { client, serve } = setUp(mode)
    t.equal(await serve(), mode)
    t.equal(await serve(), mode)
    t.match({ measured: client.measured, served: client.served }, { measured: 2, served: 2 })
  })

t.test('concurrent requests wait for one measurement', async (t) => {
  const { client, serve } = setUp()
  t.strictSame(await Promise.all([serve('a'), serve('b'), serve('c')]), Array(3).fill('raw_logprobs'))
  t.equal(client.measured, 2)
})

t.test('the mode that the engine reports has precedence', async (t) => {
  const { client, serve } = setUp()
  client.startFields = { sampling: { logprobsMode: 'raw_logits' } }
  t.equal(await serve(), 'raw_logits')
})

t.test('other servers, and engines of a backend without this option, are not measured', async (t) => {
  const { client, serve } = setUp()
  client.kind = 'openai'
  t.equal(await serve(), undefined)
  const other = setUp('raw_logprobs', false)
  t.equal(await other.serve(), undefined)
  t.strictSame([client.measured, other.client.measured], [0, 0])
})

t.test('an engine that rejects the measurement serves, and is tried with three requests', async (t) => {
  const { client, serve } = setUp()
  client.rejectsLogprobs = true
  for (const measured of [2, 4, 6, 6, 6]) {
    t.equal(await serve(), undefined)
    t.equal(client.measured, measured)
  }
})

t.test(
  'a failed measurement is retried by the next request, with a model that the engine lists',
  async (t) => {
    const { client, serve } = setUp()
    client.failure = () => new ProxyError('engine_failed', 'overloaded')
    await t.rejects(serve(), { code: 'engine_failed' })
    client.failure = undefined
    t.equal(await serve(), 'raw_logprobs')
    t.equal(client.requestedModel, 'qwen')
  },
)

t.test('an engine that returns after an outage may have other options', async (t) => {
  const { client, clock, serve, settle } = setUp()
  t.equal(await serve(), 'raw_logprobs')
  client.mode = 'processed_logprobs'
  const { health } = client
  client.health = async () => {
    throw new ProxyError('engine_unreachable', 'connection refused')
  }
  clock.advance(INTERVAL_MS)
  await settle()
  client.health = health
  clock.advance(INTERVAL_MS)
  await settle()
  t.equal(await serve(), 'processed_logprobs')
})

t.test('a pause finds the slot occupied until the measurement is over', async (t) => {
  const { client, backend, serve, settle } = setUp()
  const gate = Promise.withResolvers<void>()
  client.gate = gate.promise
  const first = serve('first')
  await settle()
  backend.pause()
  t.match(backend.getStatus().members, [{ inFlight: 1 }], 'a caller that waits for idle engines waits')
  gate.resolve()
  t.equal(await first, 'raw_logprobs')
  t.match(backend.getStatus().members, [{ inFlight: 0 }])
})

t.test('a cancelled request ends its measurement, and the next one restarts it', async (t) => {
  const { client, serve, settle } = setUp()
  const gate = Promise.withResolvers<void>()
  client.gate = gate.promise
  const leaving = new AbortController()
  const first = serve('first', leaving.signal)
  await settle()
  const second = serve('second')
  await settle()
  leaving.abort(new Error('the agent left'))
  await t.rejects(first, /the agent left/)
  gate.resolve()
  t.equal(await second, 'raw_logprobs')
  t.equal(client.measured, 4)
})
