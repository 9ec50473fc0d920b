/** Engines that a trainer registers while the proxy runs, and the common list of engines and workers. */
import t from 'tap'
import { Worker } from '../../src/proxy/http/operator/workers/schemas.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import {
  createAgent,
  getTurns,
  startRelayProxy,
  startWorkerClient,
  streamResponse,
  untilWorkers,
} from '../helpers/relay-rig.ts'
import { findSchemaErrors } from '../helpers/sessions-api.ts'
import { until } from '../helpers/until.ts'

const MESSAGES = [{ role: 'user', content: 'hi' }]

const deleteWorker = async (proxy: TestProxy, id: string) => {
  const response = await fetch(`${proxy.url}/admin/workers/${id}`, { method: 'DELETE' })
  return { status: response.status, body: await response.json() }
}
const sendRequest = (proxy: TestProxy, session: string, more = {}) =>
  streamResponse(createAgent(proxy, session), { model: 'fake', ...more })
const getEngines = async (proxy: TestProxy, session: string): Promise<string[]> =>
  (await getTurns(proxy, session)).map((turn: { engine: string }) => turn.engine)

/** Starts a request that runs until it is aborted. */
const startRequest = (proxy: TestProxy, session: string, signal: AbortSignal) =>
  fetch(`${proxy.baseUrl(session)}/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({ model: 'fake', messages: MESSAGES, stream: true, ignore_eos: true }),
    signal,
  })

t.test('a proxy that awaits engines lets requests wait until one is registered', async (t) => {
  const proxy = await startProxy(t, { awaitEngines: true })
  t.strictSame(await proxy.get('/admin/workers'), [])
  const waiting = sendRequest(proxy, 's')
  await until(async () => (await proxy.get('/health')).queued === 1)
  const engine = await startFakeVllm()
  t.teardown(engine.close)
  const registered = await proxy.post('/admin/workers', { url: engine.url, api_path: '/v1', weight: 1 })
  t.match(registered, {
    worker_id: /^engine-[0-9a-f]{12}$/,
    kind: 'engine',
    url: engine.url,
    api_path: '/v1',
    engine: 'vllm',
    weight: 1,
    healthy: true,
    models: ['fake'],
    active_requests: Number,
    draining: false,
  })
  t.strictSame(findSchemaErrors(Worker, registered), [], 'no null where a client wants text')
  t.equal((await waiting).text, 'Hello there, agent!')
  t.strictSame(await getEngines(proxy, 's'), [engine.url])
  t.match(await proxy.get('/health'), { notes: { length: 0 }, engines: [{ name: engine.url }] })
})

t.test('the embedded fallback engine serves nothing once an engine is registered', async (t) => {
  const proxy = await startProxy(t)
  t.match(await proxy.get('/admin/workers'), [{ kind: 'engine', engine: 'embedded', url: '' }])
  await sendRequest(proxy, 'before', { model: 'embedded' })
  t.match((await proxy.get('/sessions/before')).metadata, { llm_proxy_note: /No engine was named/ })
  const engine = await startFakeVllm()
  t.teardown(engine.close)
  await proxy.post('/admin/workers', { url: engine.url })
  await sendRequest(proxy, 'before')
  await sendRequest(proxy, 'after')
  t.strictSame(await getEngines(proxy, 'before'), ['embedded', engine.url])
  t.strictSame((await proxy.get('/sessions/after')).metadata, {})
  t.match(await proxy.get('/admin/workers'), [{ url: engine.url }])
  t.strictSame((await proxy.get('/health')).notes, [])
  t.match(await proxy.get('/sessions/after/v1/models'), { data: [{ id: 'fake' }] })
})

t.test('the fallback also yields to an engine that is not up yet', async (t) => {
  const proxy = await startProxy(t, { queueWaitMs: 50 })
  const gone = await startFakeVllm()
  await gone.close()
  t.match(await proxy.post('/admin/workers', { url: gone.url }), { healthy: false, error: String })
  t.match((await proxy.get('/health')).notes, [/^No engine is healthy/], 'which does not report healthy')
  t.match(await proxy.post('/s/v1/chat/completions', { model: 'm', messages: MESSAGES }), {
    error: { code: 'engine_unreachable' },
  })
})

t.test('an engine is identified by its normalized URL, and keeps its id over a restart', async (t) => {
  const engine = await startFakeVllm()
  t.teardown(engine.close)
  const proxy = await startProxy(t, { awaitEngines: true })
  const { worker_id: id } = await proxy.post('/admin/workers', { url: engine.url })
  for (const body of [
    { url: `${engine.url}/v1`, api_path: '/v1' },
    { url: `${engine.url}/` },
    { url: engine.url, api_path: 'v1/', weight: 3, model_name: 'qwen' },
  ]) {
    t.equal((await proxy.post('/admin/workers', body)).worker_id, id)
  }
  t.match(await proxy.get('/admin/workers'), [
    { worker_id: id, weight: 3, model_name: 'qwen', max_concurrency: 3 * 1024 },
  ])
  const next = await startProxy(t, { awaitEngines: true, db: 'memory' })
  t.equal((await next.post('/admin/workers', { url: engine.url })).worker_id, id)
})

t.test('an engine of twice the weight gets twice the requests', async (t) => {
  const engines = [await startFakeVllm(), await startFakeVllm()]
  for (const engine of engines) t.teardown(engine.close)
  const proxy = await startProxy(t, { awaitEngines: true })
  for (const [index, { url }] of engines.entries()) {
    await proxy.post('/admin/workers', { url, weight: index + 1 })
  }
  const controller = new AbortController()
  const requests = Array.from({ length: 9 }, (_, index) =>
    startRequest(proxy, `s${index}`, controller.signal),
  )
  await until(() => engines.reduce((sum, { running }) => sum + running(), 0) === 9)
  t.strictSame(
    engines.map((engine) => engine.running()),
    [3, 6],
  )
  await Promise.all(requests)
  controller.abort()
})

t.test('a removed engine finishes its request, gets no new one, and leaves', async (t) => {
  const [old, added] = [await startFakeVllm(), await startFakeVllm()]
  for (const engine of [old, added]) t.teardown(engine.close)
  const proxy = await startProxy(t, { engineUrls: [old.url] })
  const { worker_id: id } = (await proxy.get('/admin/workers'))[0]
  const controller = new AbortController()
  const response = (await startRequest(proxy, 's', controller.signal)).body!.getReader()
  await response.read()
  await proxy.post('/admin/workers', { url: added.url })
  t.strictSame(await deleteWorker(proxy, id), { status: 200, body: { removed: id } })
  t.match(await proxy.get('/admin/workers'), [
    { url: old.url, draining: true, active_requests: 1 },
    { url: added.url, draining: false },
  ])
  for (const session of ['a', 'b', 's']) await sendRequest(proxy, session)
  t.equal(old.running(), 1, 'the request continues')
  t.ok((await response.read()).value, 'and its agent gets the rest')
  controller.abort()
  await response.read().catch(() => {})
  await until(async () => (await proxy.get('/admin/workers')).length === 1)
  t.match(await deleteWorker(proxy, id), { status: 404, body: { code: 'worker_not_found' } })
  t.strictSame(await getEngines(proxy, 'a'), [added.url])
})

t.test('an engine that is registered again while it drains stays', async (t) => {
  const engine = await startFakeVllm()
  t.teardown(engine.close)
  const proxy = await startProxy(t, { engineUrls: [engine.url] })
  const { worker_id: id } = (await proxy.get('/admin/workers'))[0]
  const controller = new AbortController()
  const running = await startRequest(proxy, 's', controller.signal)
  await deleteWorker(proxy, id)
  t.match(await proxy.get('/admin/workers'), [{ draining: true }])
  t.match(await proxy.post('/admin/workers', { url: engine.url }), { worker_id: id, draining: false })
  controller.abort()
  await running.text().catch(() => {})
  await until(() => engine.running() === 0)
  t.ok((await sendRequest(proxy, 't')).text)
})

t.test('in token mode an engine that accepts no token ids is rejected', async (t) => {
  const [plain, vllm] = [await startFakeVllm({ strict: true }), await startFakeVllm()]
  for (const engine of [plain, vllm]) t.teardown(engine.close)
  const proxy = await startProxy(t, { awaitEngines: true, tokenizer: 'embedded' })
  t.match(await proxy.post('/admin/workers', { url: plain.url }), { code: 'unsupported', param: 'url' })
  t.strictSame(await proxy.get('/admin/workers'), [])
  t.match(await proxy.post('/admin/workers', { url: vllm.url }), { healthy: true })
})

t.test('GET /health/workers counts healthy engines', async (t) => {
  const [healthy, gone] = [await startFakeVllm(), await startFakeVllm()]
  t.teardown(healthy.close)
  await gone.close()
  const proxy = await startProxy(t, { awaitEngines: true })
  for (const { url } of [healthy, gone]) await proxy.post('/admin/workers', { url })
  t.match(await proxy.get('/health/workers'), {
    workers: [
      { url: healthy.url, healthy: true, error: null },
      { url: gone.url, healthy: false, error: /refused|connect/ },
    ],
    healthy: 1,
    total: 2,
  })
})

t.test('in relay mode workers are in the same list, and engines are not registered', async (t) => {
  const relay = await startRelayProxy(t)
  startWorkerClient(t, relay.url, 'w')
  await untilWorkers(relay, 'w')
  t.match(await relay.get('/admin/workers'), [{ worker_id: 'w', kind: 'worker', url: '', version: 2 }])
  t.match(await relay.get('/health/workers'), { workers: [{ kind: 'worker' }], healthy: 1, total: 1 })
  t.match(await relay.post('/admin/workers', { url: 'http://127.0.0.1:9' }), { code: 'wrong_mode' })
  t.match(await deleteWorker(relay, 'w'), { status: 409, body: { code: 'wrong_mode' } })
  t.match(await deleteWorker(relay, 'unknown'), { status: 404, body: { code: 'worker_not_found' } })
  t.ok((await sendRequest(relay, 's', { max_tokens: 2 })).text, 'and all of that has changed nothing')
})

t.test('an invalid registration is rejected by name, and changes nothing', async (t) => {
  const proxy = await startProxy(t)
  const before = await proxy.get('/admin/workers')
  for (const [body, code, param] of [
    [{}, 'invalid_request', 'url'],
    [{ url: '' }, 'invalid_request', 'url'],
    [{ url: 'localhost:8000' }, 'invalid_request', 'url'],
    [{ url: 'ftp://secret:word@a' }, 'invalid_request', 'url'],
    [{ url: 'http://a', weight: 0 }, 'invalid_request', 'weight'],
    [{ url: 'http://a', weight: 1.5 }, 'invalid_request', 'weight'],
    [{ url: 'http://a', api_path: '/api/v3' }, 'unsupported', 'api_path'],
    [{ url: 'http://a', wieght: 1 }, 'invalid_request', 'wieght'],
  ] as const) {
    const response = await proxy.post('/admin/workers', body)
    t.match(response, { code, param }, JSON.stringify(body))
    t.notMatch(response.detail, /secret|word/)
  }
  t.strictSame(await proxy.get('/admin/workers'), before)
})
