import t from 'tap'
import type { EventSink } from '../../../../../src/protocol/canonical/events.ts'
import { createLocalBackend } from '../../../../../src/proxy/engines/dispatch/local-backend.ts'
import type { EngineClient } from '../../../../../src/proxy/engines/port/engine-client.ts'
import { chatRequest, collect, noAbort } from '../../../../conformance/engine-client.ts'
import { pull } from '../../../../helpers/event-stream.ts'
import { FakeClock } from '../../../../helpers/fake-clock.ts'
import { createListingLogger } from '../../../../helpers/listing-logger.ts'

/** Creates a pool with one engine, which serves a request until `finish` is called. */
async function setUp() {
  const { logger, lines } = createListingLogger()
  const { promise: finished, resolve: finish } = Promise.withResolvers<void>()
  const { promise: started, resolve: start } = Promise.withResolvers<void>()
  let closes = 0
  const client = {
    ...{ name: 'http://e', kind: 'vllm', takesTokenIds: true },
    checkHealth: async () => ({ models: [] }),
    generate: async (_request: unknown, sink: EventSink) => {
      start()
      await finished
      await sink.write([{ type: 'end', finishReason: 'stop' }])
    },
    close: async () => {
      closes += 1
    },
  } as unknown as EngineClient
  const backend = createLocalBackend({ clients: [client], clock: new FakeClock(), logger })
  const { engines } = backend
  const request = collect(pull(backend, chatRequest({}), noAbort))
  await started
  const transitions = () =>
    lines
      .filter(({ event }) => event === 'engine_state')
      .map(({ level, engine, previous_state, state }) => `${level} ${engine} ${previous_state} ${state}`)
  const complete = async () => {
    finish()
    await request
  }
  return { backend, engines, engine: engines.list()[0]!, complete, transitions, closes: () => closes }
}

const SETTINGS = { weight: 1, modelName: null }

t.test(
  'a draining engine serves again when it is registered, and is otherwise closed once idle',
  async (t) => {
    const { engines, engine, complete, transitions, closes } = await setUp()
    engines.retire(engine)
    engines.retire(engine)
    engines.renew(engine, SETTINGS)
    engines.renew(engine, SETTINGS)
    engines.retire(engine)
    t.equal(engines.size, 1)
    await complete()
    t.strictSame([engines.size, closes()], [0, 1])
    t.strictSame(transitions(), [
      'debug http://e serving draining',
      'debug http://e draining serving',
      'debug http://e serving draining',
      'debug http://e draining closed',
    ])
  },
)

t.test('a removed engine cannot serve again', async (t) => {
  const { engines, engine, complete } = await setUp()
  await complete()
  engines.retire(engine)
  t.throws(() => engines.renew(engine, SETTINGS), { code: 'ERR_ASSERTION' })
  t.equal(engine.state, 'closed')
})

t.test('closing the backend closes each engine once, whether it serves or drains', async (t) => {
  for (const drains of [false, true]) {
    const { backend, engines, engine, complete, transitions, closes } = await setUp()
    if (drains) engines.retire(engine)
    await backend.close()
    await complete()
    await backend.close()
    t.equal(closes(), 1)
    t.equal(transitions().at(-1), `debug http://e ${drains ? 'draining' : 'serving'} closed`)
  }
})
