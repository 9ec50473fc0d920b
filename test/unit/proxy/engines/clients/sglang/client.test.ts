/**
 * SGLang accepts any model name as its own: an adapter must be named by `lora_path`, otherwise the base
 * weights sample.
 */
import t from 'tap'
import type { GenerationRequest } from '../../../../../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../../../../../src/protocol/token-ids/prompt-ids.ts'
import { CLIENT_OF_KIND } from '../../../../../../src/proxy/engines/clients/client-of-kind.ts'
import { pull } from '../../../../../helpers/event-stream.ts'
import { openEventStream, sendJson, startScriptedServer } from '../../../../../helpers/scripted-server.ts'
import { until } from '../../../../../helpers/until.ts'

t.test(
  'a request for an adapter that SGLang lists names it by lora_path, in chat and in token mode',
  async (t) => {
    const server = await startScriptedServer(({ method, path }, response) => {
      if (method !== 'GET') return sendJson(response, { error: { message: 'enough' } }, 400)
      if (path !== '/v1/models') return sendJson(response, {}, path === '/health' ? 200 : 404)
      const base = { id: 'base', object: 'model', owned_by: 'sglang', root: 'base', parent: null }
      sendJson(response, {
        object: 'list',
        data: [base, { ...base, id: 'critic', root: '/l', parent: 'base' }],
      })
    })
    t.teardown(() => server.close())
    const engine = CLIENT_OF_KIND.sglang({ url: server.url })
    t.teardown(() => engine.close())
    const { signal } = new AbortController()
    const { models } = await engine.checkHealth(signal)
    t.same(
      models.map(({ id, isAdapter = false }) => [id, isAdapter]),
      [
        ['base', false],
        ['critic', true],
      ],
    )
    const getSentAdapter = async (model: string, more: Partial<GenerationRequest>) => {
      const body = { model, messages: [{ role: 'user' as const, content: 'hi' }] }
      const request = { kind: 'chat', body, requestId: 'r', sessionId: 's', stream: false, ...more }
      const batches = pull(engine, request as GenerationRequest, signal)
      await t.rejects(Array.fromAsync(batches), { code: 'engine_rejected' })
      const { path, body: sent } = server.requests.at(-1)!
      return [path, sent.lora_path]
    }
    const tokens = { promptTokenIds: PromptIds.of(1, 2) }
    t.same(await getSentAdapter('critic', tokens), ['/generate', 'critic'])
    t.same(await getSentAdapter('base', tokens), ['/generate', undefined])
    t.same(await getSentAdapter('critic', {}), ['/v1/chat/completions', 'critic'])
    t.same(await getSentAdapter('base', {}), ['/v1/chat/completions', undefined])
  },
)

t.test('weights that were updated from disk keep their served name', async (t) => {
  let names = ['tiny']
  let isUp = true
  const server = await startScriptedServer(({ path }, response) => {
    if (!isUp) return sendJson(response, {}, 503)
    if (path !== '/v1/models') return sendJson(response, {}, path === '/health' ? 200 : 404)
    sendJson(response, { object: 'list', data: names.map((id) => ({ id, object: 'model', parent: null })) })
  })
  t.teardown(() => server.close())
  const engine = CLIENT_OF_KIND.sglang({ url: server.url })
  t.teardown(() => engine.close())
  const { signal } = new AbortController()
  const list = async () => (await engine.checkHealth(signal)).models.map(({ id }) => id)
  t.same(await list(), ['tiny'])
  names = ['models/step-2']
  t.same(await list(), ['models/step-2', 'tiny'])
  isUp = false
  await t.rejects(list())
  isUp = true
  t.same(await list(), ['models/step-2'], 'after an outage it may be another server')
})

t.test("an unlimited top_k has SGLang's value, in chat and in token mode", async (t) => {
  const server = await startScriptedServer((_, response) =>
    sendJson(response, { error: { message: 'x' } }, 400),
  )
  t.teardown(() => server.close())
  const engine = CLIENT_OF_KIND.sglang({ url: server.url })
  t.teardown(() => engine.close())
  const body = { model: 'm', top_k: 0, messages: [{ role: 'user' as const, content: 'hi' }] }
  for (const more of [{}, { promptTokenIds: PromptIds.of(1) }]) {
    const request = { kind: 'chat', body, requestId: 'r', sessionId: 's', stream: false, ...more }
    const batches = pull(engine, request as GenerationRequest, new AbortController().signal)
    await t.rejects(Array.fromAsync(batches))
    const { body: sent } = server.requests.at(-1)!
    t.equal((sent.sampling_params ?? sent).top_k, -1)
  }
})

t.test(
  'a paused SGLang is healthy but receives no requests; a starting one is not reported as paused',
  async (t) => {
    let status = 503
    const server = await startScriptedServer(({ path }, response) => {
      if (path === '/ready') return sendJson(response, {}, status)
      if (path === '/v1/models') return sendJson(response, { data: [{ id: 'tiny' }] })
      // While paused it would respond after 20 s.
      if (path === '/health') return sendJson(response, {}, status)
      sendJson(response, {}, path === '/server_info' ? 200 : 404)
    })
    t.teardown(() => server.close())
    const engine = CLIENT_OF_KIND.sglang({ url: server.url })
    t.teardown(() => engine.close())
    const { signal } = new AbortController()
    const getUnavailability = async () => (await engine.checkHealth(signal)).unavailable
    await t.rejects(getUnavailability(), { code: 'engine_failed' })
    status = 200
    t.equal(await getUnavailability(), undefined)
    status = 503
    t.equal(await getUnavailability(), 'paused')
    status = 200
    t.equal(await getUnavailability(), undefined)
  },
)

t.test('an engine older than the tested version is reported, but not one without a version', async (t) => {
  const cases = {
    vllm: {
      '0.11.2': true,
      '0.10.2': true,
      '0.13.0': false,
      '0.32.0': false,
      '0.33.0rc1': false,
      '0.1.dev1': false,
      dev: false,
    },
    sglang: { '0.5.22': true, '0.5.23': false, '0.6.0': false, '0.0.0.dev1': false, dev: false },
  } as const
  for (const kind of ['vllm', 'sglang'] as const)
    for (const [version, isOld] of Object.entries(cases[kind])) {
      const server = await startScriptedServer(({ path }, response) => {
        if (path === '/version' || path === '/server_info') return sendJson(response, { version })
        sendJson(response, { data: [] }, path === '/v1/models' || path === '/health' ? 200 : 404)
      })
      t.teardown(() => server.close())
      const engine = CLIENT_OF_KIND[kind]({ url: server.url })
      t.teardown(() => engine.close())
      await engine.checkHealth(new AbortController().signal)
      const warning = new RegExp(`it is (vLLM|SGLang) ${version}, older than (0.12|0.5.23), the oldest`)
      t.match(engine.warning, isOld ? warning : undefined, `${kind} ${version}`)
    }
})

t.test("a request names its session, and its end closes the server's state of it", async (t) => {
  for (const cachesSessions of [true, false]) {
    const server = await startScriptedServer(({ method, path }, response) => {
      if (path === '/server_info')
        return sendJson(response, { version: '0.5.23', enable_session_radix_cache: cachesSessions })
      if (method === 'GET') return sendJson(response, { data: [] }, 200)
      if (path === '/close_session') return void response.end()
      sendJson(response, { error: { message: 'enough' } }, 400)
    })
    t.teardown(() => server.close())
    const engine = CLIENT_OF_KIND.sglang({ url: server.url })
    t.teardown(() => engine.close())
    const { signal } = new AbortController()
    await engine.checkHealth(signal)
    const getSentSession = async (more: Partial<GenerationRequest>) => {
      const body = { messages: [{ role: 'user' as const, content: 'hi' }], session_id: "the agent's" }
      const request = { kind: 'chat', body, requestId: 'r', sessionId: 's', stream: false, ...more }
      await t.rejects(Array.fromAsync(pull(engine, request as GenerationRequest, signal)))
      return server.requests.at(-1)!.body.session_id
    }
    const closed = () => server.requests.filter(({ path }) => path === '/close_session')
    t.equal(await getSentSession({}), 's', 'in chat mode')
    t.equal(await getSentSession({ promptTokenIds: PromptIds.of(1, 2) }), 's', 'in token mode')
    t.equal(await getSentSession({ subagent: 'x' }), 's/subagent:x')
    t.equal(await getSentSession({ sessionId: 'other' }), 'other')
    engine.endSession!('s')
    engine.endSession!('s')
    if (cachesSessions) await until(() => closed().length === 2)
    t.same(
      closed().map(({ body }) => body),
      cachesSessions ? [{ session_id: 's' }, { session_id: 's/subagent:x' }] : [],
    )
  }
})

t.test('an error reports whether the weights changed during the stream that it ended', async (t) => {
  let versions: string[] = []
  let isAborted = false
  const server = await startScriptedServer(async (_, response) => {
    const send = openEventStream(response)
    for (const [index, weight_version] of versions.entries()) {
      const isLast = isAborted && index === versions.length - 1
      const finish_reason = isLast ? { type: 'abort', message: 'paused' } : null
      const meta_info = { completion_tokens: index + 1, weight_version, finish_reason }
      send({ output_ids: Array.from({ length: index + 1 }, (_, id) => id), meta_info })
    }
    response.end()
  })
  t.teardown(() => server.close())
  const engine = CLIENT_OF_KIND.sglang({ url: server.url })
  t.teardown(() => engine.close())
  const body = { model: 'm', messages: [{ role: 'user' as const, content: 'hi' }] }
  const request = { kind: 'chat', body, requestId: 'r', sessionId: 's', stream: true }
  const tokens = { ...request, promptTokenIds: PromptIds.of(1, 2) } as GenerationRequest
  for (const code of ['engine_lost', 'engine_aborted'])
    for (const [sent, weightsChanged] of [
      [['v1', 'v2'], true],
      [['v1', 'v1'], false],
    ] as const) {
      versions = [...sent]
      isAborted = code === 'engine_aborted'
      const events = Array.fromAsync(pull(engine, tokens, new AbortController().signal))
      await t.rejects(events, { code, weightsChanged })
    }
})
