import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { EmbeddedEngine } from '../../src/embedded/engine/embedded-engine.ts'
import { buildEngineServer } from '../../src/embedded/server/server.ts'
import { startEngine } from '../helpers/engine.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import {
  createAgent,
  getTurns,
  joinWorker,
  startRelayProxy,
  startWorkerClient,
  streamResponse,
  untilWorkers,
} from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

t.test('GET /admin/workers shows each worker', async (t) => {
  const before = Date.now() / 1_000
  const relay = await startRelayProxy(t)
  t.strictSame(await relay.get('/admin/workers'), [])
  startWorkerClient(t, relay.url, 'w')
  await untilWorkers(relay, 'w')
  const workers = await relay.get('/admin/workers')
  const { connected_since: since, ...rest } = workers[0]
  t.ok(since >= before && since <= Date.now() / 1_000)
  t.strictSame(rest, {
    worker_id: 'w',
    kind: 'worker',
    url: '',
    api_path: '',
    engine: null,
    model_name: null,
    weight: 1,
    version: 2,
    load: 0,
    active_requests: 0,
    max_concurrency: 64,
    models: ['scripted'],
    weight_version: '7',
    healthy: true,
    error: null,
    draining: false,
  })
})

t.test(
  'a pause defers new requests in local mode too, and reports whether the running ones have ended',
  async (t) => {
    const proxy = await startProxy(t)
    const before = Date.now() / 1_000
    t.strictSame(await proxy.post('/admin/pause'), { status: 'paused', drained: true, in_flight: 0 })
    const pending = streamResponse(createAgent(proxy, 's'), { max_tokens: 4 })
    while ((await proxy.get('/health')).queued < 1) await new Promise((resolve) => setTimeout(resolve, 10))
    const { paused, paused_since: since } = await proxy.get('/health')
    t.equal(paused, true)
    t.ok(since >= before && since <= Date.now() / 1_000)
    t.strictSame(await proxy.post('/admin/resume'), { status: 'running' })
    t.match(await proxy.get('/health'), { paused: false, paused_since: null })
    // The completion may be empty, because the model may end its turn at once.
    t.equal((await pending).error, undefined)
  },
)

for (const mode of ['local', 'relay'] as const)
  t.test(`${mode} mode: requests that wait for a forgotten pause are rejected with the reason`, async (t) => {
    const options = { pauseLimitMs: 1 }
    const proxy = mode === 'local' ? await startProxy(t, options) : await startRelayProxy(t, options)
    await proxy.post('/admin/pause')
    const { error } = await streamResponse(createAgent(proxy, 's'), { max_tokens: 2 })
    t.match(error, { status: 503, code: 'paused', message: /--pause-limit/ })
    t.match(await getTurns(proxy, 's'), [{ status: 'failed', error: { code: 'paused' } }])
  })

t.test('a pause whose drain times out still applies', async (t) => {
  const relay = await startRelayProxy(t)
  startWorkerClient(t, relay.url, 'w')
  await untilWorkers(relay, 'w')
  let paused: unknown
  const { text, error } = await streamResponse(createAgent(relay, 's'), { max_tokens: 3 }, () => {
    paused ??= relay.post('/admin/pause?drain_timeout_s=0')
  })
  t.ok(text)
  t.equal(error, undefined)
  t.match(await paused, { status: 'paused' })
  t.match(await relay.get('/health'), { paused: true })
})

t.test('turns of an engine that reports no weights have the version that was last declared', async (t) => {
  const proxy = await startProxy(t)
  t.strictSame(await proxy.get('/admin/weight_version'), { weight_version: null })
  for (const version of ['step-1', 2]) {
    t.strictSame(await proxy.post('/admin/weight_version', { weight_version: version }), {
      weight_version: version,
    })
    await streamResponse(createAgent(proxy, `s${version}`), { max_tokens: 2 })
    t.match(await getTurns(proxy, `s${version}`), [
      { weight_version_start: String(version), weight_version_end: String(version) },
    ])
  }
})

t.test('invalid parameters are rejected by name', async (t) => {
  const proxy = await startProxy(t)
  for (const [path, body, param] of [
    ['/admin/pause?drain_timeout_s=-1', {}, 'drain_timeout_s'],
    ['/admin/pause?drain_timeout=1', {}, 'drain_timeout'],
    ['/admin/weight_version', {}, 'weight_version'],
    ['/admin/weight_version', { weight_version: true }, 'weight_version'],
  ] as const) {
    t.match(await proxy.post(path, body), { code: 'invalid_request', param })
  }
})

async function proxyInMode(t: Test, mode: string, engineUrl: string): Promise<TestProxy> {
  if (mode === 'local') return startProxy(t, { engineUrls: [engineUrl], engineKind: 'vllm' })
  const proxy = await startRelayProxy(t)
  joinWorker(t, { workerId: 'w', proxyUrls: [proxy.url], engineUrls: [engineUrl] })
  await untilWorkers(proxy, 'w')
  return proxy
}

const REQUEST = { model: 'embedded', max_tokens: 2 }

// The engine reports its weights only in health checks, as vLLM does, and the test does not wait for the next one.
for (const mode of ['local', 'relay'])
  t.test(`${mode} mode: after a pause for new weights no turn has the version of the old ones`, async (t) => {
    const { url, engine } = await startEngine(t, { weightVersion: 'step-1' })
    const proxy = await proxyInMode(t, mode, url)
    t.equal((await streamResponse(createAgent(proxy, 's'), REQUEST)).error, undefined)
    await proxy.post('/admin/pause')
    engine.weightVersion = 'step-2'
    await proxy.post('/admin/resume')
    t.equal((await streamResponse(createAgent(proxy, 's'), REQUEST)).error, undefined)
    engine.weightVersion = 'step-3'
    await proxy.post('/admin/weight_version', { weight_version: 'step-3' })
    t.equal((await streamResponse(createAgent(proxy, 's'), REQUEST)).error, undefined)
    const turns = await getTurns(proxy, 's')
    t.same(
      turns.map((turn: Record<string, unknown>) => [turn.weight_version_start, turn.weight_version_end]),
      [1, 2, 3].map((step) => [`step-${step}`, `step-${step}`]),
    )
  })

/** Starts an engine as `startEngine` does; the test decides how it responds to the request for its weights. */
async function createReportingEngine(t: Test, respond: () => Promise<unknown>) {
  const engine = new EmbeddedEngine({ weightVersion: 'step-1' })
  const server = buildEngineServer(engine)
  server.addHook('onRequest', async ({ url }) => {
    if (url === '/weight_info') await respond()
  })
  await server.listen({ host: '127.0.0.1', port: 0 })
  t.teardown(() => server.close())
  return { url: `http://127.0.0.1:${(server.server.address() as AddressInfo).port}`, engine }
}

for (const mode of ['local', 'relay'])
  t.test(
    `${mode} mode: while an engine does not report its new weights, turns have no version`,
    async (t) => {
      let response: Promise<unknown> = Promise.resolve()
      const { url, engine } = await createReportingEngine(t, () => response)
      const proxy = await proxyInMode(t, mode, url)
      await streamResponse(createAgent(proxy, 's'), REQUEST)
      await proxy.post('/admin/pause')
      const { promise, resolve: notify } = Promise.withResolvers<void>()
      t.teardown(notify)
      response = promise
      engine.weightVersion = 'step-2'
      t.strictSame(await proxy.post('/admin/resume'), { status: 'running' })
      t.equal((await streamResponse(createAgent(proxy, 's'), REQUEST)).error, undefined)
      t.match(await proxy.get('/admin/workers'), [{ weight_version: null }])
      notify()
      await until(async () => (await proxy.get('/admin/workers'))[0]?.weight_version === 'step-2')
      await streamResponse(createAgent(proxy, 's'), REQUEST)
      const turns = await getTurns(proxy, 's')
      t.same(
        turns.map((turn: Record<string, unknown>) => [turn.weight_version_start, turn.weight_version_end]),
        ['step-1', null, 'step-2'].map((version) => [version, version]),
      )
    },
  )

for (const mode of ['local', 'relay'])
  t.test(
    `${mode} mode: a complete response starts with the weights at the time of its request`,
    async (t) => {
      const { promise: finished, resolve: finish } = Promise.withResolvers<void>()
      t.teardown(finish)
      const engine = new EmbeddedEngine()
      const server = buildEngineServer(engine)
      server.addHook('onSend', async ({ url }) => {
        if (url.startsWith('/v1/chat')) await finished
      })
      await server.listen({ host: '127.0.0.1', port: 0 })
      t.teardown(() => server.close())
      const { port } = server.server.address() as AddressInfo
      const proxy = await proxyInMode(t, mode, `http://127.0.0.1:${port}`)
      await proxy.post('/admin/weight_version', { weight_version: 1 })
      const request = createAgent(proxy, 's').chat.completions.create({
        ...REQUEST,
        messages: [{ role: 'user', content: 'hello' }],
      })
      await until(async () => (await proxy.get('/admin/workers'))[0]?.load === 1)
      await proxy.post('/admin/weight_version', { weight_version: 2 })
      finish()
      t.ok(await request)
      t.match(await getTurns(proxy, 's'), [{ weight_version_start: '1', weight_version_end: '2' }])
      t.match(await proxy.get('/sessions/s/trajectories'), {
        trajectories: [{ weight_version_min: '1', weight_version_max: '2' }],
      })
    },
  )

t.test(
  'a worker that was disconnected during a resume checks its engines before it serves requests',
  async (t) => {
    const { url, engine } = await startEngine(t, { weightVersion: 'step-1' })
    const proxy = await startRelayProxy(t)
    const forwarder = await Forwarder.to(t, Number(new URL(proxy.url).port))
    joinWorker(t, { workerId: 'w', proxyUrls: [`http://127.0.0.1:${forwarder.port}`], engineUrls: [url] })
    await untilWorkers(proxy, 'w')
    await streamResponse(createAgent(proxy, 's'), REQUEST)
    await proxy.post('/admin/pause')
    forwarder.reject(true)
    forwarder.cut()
    await untilWorkers(proxy)
    engine.weightVersion = 'step-2'
    await proxy.post('/admin/resume')
    const waiting = streamResponse(createAgent(proxy, 's'), REQUEST)
    forwarder.reject(false)
    t.equal((await waiting).error, undefined)
    t.match(await getTurns(proxy, 's'), [
      { weight_version_start: 'step-1', weight_version_end: 'step-1' },
      { weight_version_start: 'step-2', weight_version_end: 'step-2' },
    ])
  },
)

t.test('a pause that begins during a resume applies', async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/admin/pause')
  const [, paused] = await Promise.all([proxy.post('/admin/resume'), proxy.post('/admin/pause')])
  t.match(paused, { status: 'paused' })
})
