import { once } from 'node:events'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { WebSocketServer } from 'ws'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import { createAutoClient } from '../../src/proxy/engines/clients/auto-client.ts'
import { createLocalBackend } from '../../src/proxy/engines/dispatch/local-backend.ts'
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { CountingBackend, countedText } from '../helpers/counting-backend.ts'
import { pull } from '../helpers/event-stream.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import { startProxy } from '../helpers/proxy.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { joinWorker, startWorkerClient } from '../helpers/relay-rig.ts'
import {
  chatRequest,
  getText,
  readEvents,
  relayServerFor,
  startRelayServer,
} from '../helpers/relay-server.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

async function connectWorker(t: Test, url: string, workerId: string, backend: CountingBackend) {
  const worker = startWorkerClient(t, url, workerId, backend)
  await once(worker, 'connected')
  return worker
}

t.test('a worker that is stopped finishes its requests, accepts no new ones, and leaves', async (t) => {
  const { url, backend } = await relayServerFor(t, { waitMs: 0 })
  const engine = new CountingBackend({ chunks: 20, chunkMs: 5 })
  const worker = await connectWorker(t, url, 'w', engine)
  const text = readEvents(backend, chatRequest('x')).then(getText)
  await until(() => engine.running === 1)
  const stopped = worker.stop()
  await until(() => backend.list()[0]?.draining === true)
  await t.rejects(readEvents(backend, chatRequest('y')), { code: 'no_worker' })
  t.equal(await text, countedText(20))
  t.same(await stopped, { drained: true })
  await until(() => backend.list().length === 0)
  t.notOk(worker.isConnected)
})

t.test('a worker serves its maximum number of requests at each of its engines', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const held = [0, 0]
  const engineUrls = []
  for (const index of held.keys()) {
    const engine = await startScriptedServer(({ method, path, text }, response) => {
      if (path === '/v1/models') return sendJson(response, { data: [{ id: 'm', owned_by: 'vllm' }] })
      if (method === 'GET') return sendJson(response, {})
      if (text.includes('hold me')) held[index]! += 1
      else sendJson(response, { error: { message: 'not this' } }, 400)
    })
    t.teardown(() => engine.close())
    engineUrls.push(engine.url)
  }
  joinWorker(t, { proxyUrls: [url], engineUrls, workerId: 'w', maxConcurrency: 2 })
  await until(() => backend.list().some(({ healthy, models }) => healthy && models.length > 0))
  t.match(backend.list(), [{ maxConcurrency: 4 }])
  const controller = new AbortController()
  const requests = Array.from({ length: 5 }, () =>
    readEvents(backend, chatRequest('hold me', { model: 'm' }), controller.signal),
  )
  await until(() => held.every((count) => count === 2))
  t.equal(backend.getStatus().queued, 1)
  controller.abort()
  await Promise.allSettled(requests)
})

t.test('a worker drops its requests at the timeout', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const engine = new CountingBackend({ startMs: 60_000 })
  const worker = await connectWorker(t, url, 'w', engine)
  const controller = new AbortController()
  const waiting = readEvents(backend, chatRequest('x'), controller.signal)
  await until(() => engine.running === 1)
  t.same(await worker.stop(AbortSignal.abort()), { drained: false })
  await until(() => engine.running === 0)
  await until(() => backend.getStatus().queued === 1)
  controller.abort(new Error('disconnected'))
  await t.rejects(waiting, { message: 'disconnected' }, 'the request was waiting for another worker')
})

t.test('a worker that loses its proxy permanently while it drains reports a dropped request', async (t) => {
  const { port, backend } = await relayServerFor(t, { graceMs: 50, waitMs: 0 })
  const forwarder = await Forwarder.to(t, port)
  const engine = new CountingBackend({ startMs: 60_000 })
  const worker = await connectWorker(t, `ws://127.0.0.1:${forwarder.port}`, 'w', engine)
  const failing = t.rejects(readEvents(backend, chatRequest('x')), { code: 'no_worker' })
  await until(() => engine.running === 1)
  const stopped = worker.stop()
  forwarder.reject(true)
  forwarder.cut()
  t.same(await stopped, { drained: false })
  t.equal(engine.running, 0)
  await failing
})

for (const first of ['worker', 'proxy'])
  t.test(
    `stopped with its proxy, the ${first} first: a worker does not wait for the grace time`,
    async (t) => {
      const proxy = await startRelayServer({ graceMs: 3_600_000, waitMs: 0 })
      const engine = new CountingBackend({ startMs: 60_000 })
      const worker = await connectWorker(t, proxy.url, 'w', engine)
      const failed = t.rejects(readEvents(proxy.backend, chatRequest('x')))
      await until(() => engine.running === 1)
      const stopped = first === 'worker' ? worker.stop() : undefined
      await proxy.close()
      await failed
      await until(() => engine.running === 0)
      t.same(
        await (stopped ?? worker.stop()),
        { drained: true },
        'its proxy has failed the request, and reported it',
      )
    },
  )

t.test('a worker that connects to a proxy outside of relay mode logs it at level error', async (t) => {
  const proxy = await startProxy(t)
  const reported = new Promise((resolve) => {
    const error = (fields: object) => resolve(fields)
    const worker = new InferenceWorkerClient({
      proxyUrls: [proxy.url],
      workerId: 'w',
      backend: new CountingBackend(),
      maxConcurrency: 1,
      logger: { ...silentLogger, error },
    })
    t.teardown(() => worker.stop(AbortSignal.abort()))
    worker.start()
  })
  t.match(await reported, { close_code: 4002, proxy: proxy.url, reason: /^the proxy is not in relay mode/ })
})

t.test(
  'a worker whose engines are down is connected, and gets nothing until one of them serves',
  async (t) => {
    const { url, backend } = await relayServerFor(t)
    const text = readEvents(backend, chatRequest('x')).then(getText)
    const engine = new CountingBackend({ chunks: 2 })
    engine.healthy = false
    await connectWorker(t, url, 'w', engine)
    t.match(backend.list(), [{ id: 'w', healthy: false, load: 0 }])
    t.equal(backend.getStatus().queued, 1, 'the request still waits')
    engine.healthy = true
    t.equal(await text, countedText(2))
  },
)

t.test('a request that crosses a stop in transit goes to another worker', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const busy = new CountingBackend({ chunks: 2, startMs: 50 })
  const first = await connectWorker(t, url, 'first', busy)
  const pending = readEvents(backend, chatRequest('held')).then(getText)
  await until(() => busy.running === 1)
  // The proxy has not been notified when it sends the second request.
  const stopped = first.stop()
  const crossing = readEvents(backend, chatRequest('crossing')).then(getText)
  await connectWorker(t, url, 'second', new CountingBackend({ chunks: 3 }))
  t.equal(await crossing, countedText(3))
  t.equal(await pending, countedText(2))
  t.same(await stopped, { drained: true })
})

t.test('one worker serves several proxies within one limit', async (t) => {
  const proxies = [await relayServerFor(t), await relayServerFor(t)]
  const engine = new CountingBackend({ chunks: 3, startMs: 30 })
  const worker = new InferenceWorkerClient({
    proxyUrls: proxies.map(({ url }) => url.replace('ws:', 'http:').replace('/ws/worker', '/')),
    workerId: 'w',
    backend: engine,
    maxConcurrency: 2,
    logger: silentLogger,
  })
  t.teardown(() => worker.stop(AbortSignal.abort()))
  worker.start()
  // A proxy knows the worker before the worker knows the proxy.
  await until(() => worker.isConnected && proxies.every(({ backend }) => backend.list().length === 1))
  const texts = proxies.flatMap(({ backend }) =>
    Array.from({ length: 4 }, () => readEvents(backend, chatRequest('x')).then(getText)),
  )
  for (const text of await Promise.all(texts)) t.equal(text, countedText(3))
  t.equal(engine.maxRunning, 2)
})

t.test('a worker receives messages and tools as their original JSON, with unchanged numbers', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const engine = new CountingBackend({ chunks: 1 })
  const requests: GenerationRequest[] = []
  const generate = engine.generate.bind(engine)
  engine.generate = (request, sink, signal) => {
    requests.push(request)
    return generate(request, sink, signal)
  }
  await connectWorker(t, url, 'w', engine)
  const parameters = '{"type":"object","properties":{"share":{"type":"number","default":1.0}}}'
  const look = `{"type":"function","function":{"name":"look","description":"${'é'.repeat(5_000)}","parameters":${parameters}}}`
  const opening = '{"role":"user","content":"Look here."}'
  const conversations = [opening, `${opening},{"role":"assistant","content":"0 "},${opening}`]
  for (const messages of conversations) {
    const { requestId } = chatRequest('')
    const json = { messagesJson: [Buffer.from(messages)], toolsJson: Buffer.from(look) }
    const body = { messages: JSON.parse(`[${messages}]`), tools: [JSON.parse(look)] }
    await readEvents(backend, { requestId, sessionId: 's', stream: true, kind: 'chat', body, ...json })
  }
  t.same(
    requests.map(({ messagesJson = [] }) => Buffer.concat(messagesJson).toString()),
    conversations,
  )
  t.same(
    requests.map(({ toolsJson }) => String(toolsJson)),
    [look, look],
  )
})

t.test('a worker reports its load, models and weights when they change', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const engine = new CountingBackend({ startMs: 60_000 })
  await connectWorker(t, url, 'w', engine)
  t.match(backend.list(), [{ models: ['scripted'], weightVersion: '7', load: 0 }])
  t.same(await backend.listModels(), [{ id: 'scripted', maxModelLen: 1000 }])
  engine.weightVersion = '8'
  await until(() => backend.list()[0]?.weightVersion === '8')
  engine.healthy = false
  await until(() => backend.list()[0]?.healthy === false)
  t.same(await backend.listModels(), [])
})

t.test('a worker reports an engine that accepts no token ids also if it starts before it', async (t) => {
  const { url, backend } = await relayServerFor(t)
  let isUp = false
  const engine = await startScriptedServer(({ path }, response) => {
    if (isUp && path === '/v1/models') sendJson(response, { data: [{ id: 'm', owned_by: 'somebody' }] })
    else sendJson(response, {}, 503)
  })
  t.teardown(() => engine.close())
  const engines = createLocalBackend({
    clients: [createAutoClient({ url: engine.url })],
    healthIntervalMs: 100,
  })
  t.teardown(() => engines.close())
  startWorkerClient(t, url, 'early', engines)
  await until(() => backend.list().length === 1)
  t.match(backend.getStatus().members, [{ healthy: false, takesTokenIds: true, takesImages: true }])
  isUp = true
  await until(() => backend.list()[0]?.healthy)
  t.match(backend.getStatus().members, [{ takesTokenIds: false, takesImages: undefined }])
  const byIds = await RawWorker.hello(url, { worker_id: 'ids', capabilities: ['token_ids'] })
  await byIds.next('worker_hello_ack')
  for (let i = 0; i < 3; i += 1) {
    const request = { ...chatRequest('x'), promptTokenIds: PromptIds.of(i) } as GenerationRequest
    readEvents(backend, request).catch(() => {})
    t.match(await byIds.next('completion_request'), { prompt_token_ids: String })
  }
})

t.test('a worker retries until the proxy listens, and reports each connection', async (t) => {
  let port = 1
  const forwarder = await Forwarder.to(t, () => port)
  const worker = startWorkerClient(t, `ws://127.0.0.1:${forwarder.port}`, 'w')
  const [first] = await once(worker, 'disconnected')
  t.match(first, { proxyUrl: `ws://127.0.0.1:${forwarder.port}`, code: 1006 })
  t.notOk(worker.isConnected)
  const server = await startRelayServer()
  port = server.port
  await once(worker, 'connected')
  const gone = once(worker, 'disconnected')
  await server.close()
  t.match((await gone)[0], { code: 1001 })
})

t.test('stopping ends a worker that waits for its next attempt at once', async (t) => {
  const worker = startWorkerClient(t, 'http://127.0.0.1:1', 'w', undefined, () => 1)
  await once(worker, 'disconnected')
  const stopped = once(worker, 'stopped')
  t.same(await worker.stop(), { drained: true })
  await stopped
})

t.test('a worker leaves a proxy that does not support its version, and reports the reason', async (t) => {
  const server = new WebSocketServer({ port: 0, host: '127.0.0.1' })
  t.teardown(() => server.close())
  await once(server, 'listening')
  server.on('connection', (socket) => {
    socket.on('message', () =>
      socket.send(JSON.stringify({ type: 'worker_hello_ack', worker_id: 'w', status: 'connected' })),
    )
  })
  const { port } = server.address() as AddressInfo
  const worker = startWorkerClient(t, `http://127.0.0.1:${port}`, 'w', undefined, () => 1)
  const [end] = await once(worker, 'disconnected')
  t.match(end, { code: 4003, reason: /does not support this protocol/ })
  t.notOk(worker.isConnected)
})

t.test(
  'a response larger than the window is delivered completely, and the worker never runs far ahead',
  async (t) => {
    const { url, backend } = await relayServerFor(t, { windowBytes: 2_000 })
    const engine = new CountingBackend({ chunks: 5_000 })
    await connectWorker(t, url, 'w', engine)
    t.equal(getText(await readEvents(backend, chatRequest('x'))), countedText(5_000))
    const slow = pull(backend, chatRequest('slow'), new AbortController().signal)[Symbol.asyncIterator]()
    const batches = [(await slow.next()).value!]
    await new Promise((resolve) => setTimeout(resolve, 50))
    t.equal(engine.running, 1, 'it waits for the reader')
    for (;;) {
      const { done, value } = await slow.next()
      if (done) break
      t.ok(value.length < 100)
      batches.push(value)
    }
    t.equal(getText(batches.flat()), countedText(5_000))
  },
)
