import { setTimeout as sleep } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { CountingBackend, countedText } from '../helpers/counting-backend.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import type { TestProxy } from '../helpers/proxy.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import {
  createAgent,
  getTurns,
  startRelayProxy,
  startWorkerClient,
  startWorkerProcess,
  streamResponse,
  untilWorkers,
} from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

const CHUNKS = 40

interface Rig {
  proxy: TestProxy
  engine: CountingBackend
  forwarder: Forwarder
}

/** Starts a proxy and one worker, with a forwarder between them that can be cut. */
async function startRig(t: Test, overrides: Partial<ServeConfig> = {}): Promise<Rig> {
  const proxy = await startRelayProxy(t, { heartbeatIntervalMs: 100, ...overrides })
  const forwarder = await Forwarder.to(t, Number(new URL(proxy.url).port))
  const engine = new CountingBackend({ chunks: CHUNKS, chunkMs: 5 })
  startWorkerClient(t, `http://127.0.0.1:${forwarder.port}`, 'w', engine)
  await untilWorkers(proxy, 'w')
  return { proxy, engine, forwarder }
}

/** Returns a callback that runs `act` once, when the agent has received this chunk. */
function onceAt(chunk: number, act: () => void): (text: string) => void {
  let done = false
  return (text) => {
    if (done || !text.includes(` ${chunk} `)) return
    done = true
    act()
  }
}

t.test('a worker killed before the first byte: the request goes to another worker', async (t) => {
  const proxy = await startRelayProxy(t, { workerGraceMs: 200 })
  const doomed = startWorkerProcess(t, proxy.url, 'doomed', { startMs: 60_000 })
  await untilWorkers(proxy, 'doomed')
  const response = streamResponse(createAgent(proxy, 's'))
  await until(async () => (await proxy.get('/admin/workers'))[0].load === 1)
  startWorkerClient(t, proxy.url, 'other')
  await untilWorkers(proxy, 'doomed', 'other')
  doomed.kill('SIGKILL')
  t.same(await response, { text: countedText(20), error: undefined })
  t.match(await getTurns(proxy, 's'), [{ status: 'completed', engine: 'other/counting' }])
})

t.test(
  'a worker killed before the first byte and restarted: its new process serves the request',
  async (t) => {
    const proxy = await startRelayProxy(t)
    const doomed = startWorkerProcess(t, proxy.url, 'w', { startMs: 60_000 })
    await untilWorkers(proxy, 'w')
    const response = streamResponse(createAgent(proxy, 's'))
    await until(async () => (await proxy.get('/admin/workers'))[0].load === 1)
    doomed.kill('SIGKILL')
    await untilWorkers(proxy)
    startWorkerClient(t, proxy.url, 'w')
    t.same(
      await response,
      { text: countedText(20), error: undefined },
      'long before the end of the grace time',
    )
  },
)

t.test('a worker killed after the first byte: the agent gets an error, the turn is failed', async (t) => {
  const proxy = await startRelayProxy(t, { workerGraceMs: 200 })
  const doomed = startWorkerProcess(t, proxy.url, 'doomed', { chunks: 1_000, chunkMs: 20 })
  await untilWorkers(proxy, 'doomed')
  startWorkerClient(t, proxy.url, 'other', new CountingBackend({ chunks: 3 }))
  await untilWorkers(proxy, 'doomed', 'other')
  const { text, error } = await streamResponse(
    createAgent(proxy, 's'),
    {},
    onceAt(3, () => doomed.kill('SIGKILL')),
  )
  t.ok(text.startsWith('0 1 2 3 '))
  t.ok(error, 'the stream does not end as if it were complete')
  t.match(await getTurns(proxy, 's'), [
    { status: 'failed', error: { code: 'worker_lost' }, completion_text: text },
  ])
  t.match(
    await streamResponse(createAgent(proxy, 's')),
    { text: countedText(3), error: undefined },
    'the session continues',
  )
})

t.test('a socket that is cut and reconnects within the grace time costs the agent nothing', async (t) => {
  const { proxy, forwarder } = await startRig(t)
  const cuts = [2, 11, 20, 30].map((chunk) => onceAt(chunk, () => forwarder.cut()))
  const { text, error } = await streamResponse(createAgent(proxy, 's'), {}, (soFar) => {
    for (const cut of cuts) cut(soFar)
  })
  t.equal(error, undefined)
  t.equal(text, countedText(CHUNKS), 'no chunk is lost or duplicated')
  t.ok(forwarder.accepted >= 3, 'the connection was cut more than once')
  t.match(await getTurns(proxy, 's'), [
    { status: 'completed', completion_token_ids: Array.from({ length: CHUNKS }, (_, i) => i) },
  ])
})

t.test('a complete response survives a cut as well', async (t) => {
  const { proxy, forwarder, engine } = await startRig(t)
  const response = createAgent(proxy, 's').chat.completions.create({
    model: 'counting',
    messages: [{ role: 'user', content: 'count' }],
  })
  await until(() => engine.running === 1)
  forwarder.cut()
  t.equal((await response).choices[0]?.message.content, countedText(CHUNKS))
})

t.test(
  'a socket that reconnects after the grace time: failed request, cancelled work, then service',
  async (t) => {
    const { proxy, forwarder, engine } = await startRig(t, { workerGraceMs: 50 })
    const { text, error } = await streamResponse(
      createAgent(proxy, 's'),
      { max_tokens: 10_000 },
      onceAt(3, () => {
        forwarder.reject(true)
        forwarder.cut()
      }),
    )
    t.ok(error)
    t.match(await getTurns(proxy, 's'), [
      { status: 'failed', error: { code: 'worker_lost' }, completion_text: text },
    ])
    await until(() => engine.running === 0)
    forwarder.reject(false)
    await untilWorkers(proxy, 'w')
    t.same(await streamResponse(createAgent(proxy, 's')), { text: countedText(CHUNKS), error: undefined })
  },
)

t.test('a half-open socket is detected by the heartbeat, and the request continues', async (t) => {
  const { proxy, forwarder } = await startRig(t)
  const { text, error } = await streamResponse(
    createAgent(proxy, 's'),
    {},
    onceAt(5, () => forwarder.stall()),
  )
  t.equal(error, undefined)
  t.equal(text, countedText(CHUNKS))
})

t.test(
  'an agent that disconnects while the socket is cut: the work ends when the worker reconnects',
  async (t) => {
    const { proxy, forwarder, engine } = await startRig(t, { retryGraceMs: 0 })
    const controller = new AbortController()
    const stream = await createAgent(proxy, 's').chat.completions.create(
      { model: 'counting', messages: [{ role: 'user', content: 'count' }], stream: true, max_tokens: 10_000 },
      { signal: controller.signal },
    )
    await stream[Symbol.asyncIterator]().next()
    forwarder.reject(true)
    forwarder.cut()
    controller.abort()
    t.match(await getTurns(proxy, 's'), [{ status: 'aborted', error: { code: 'agent_gone' } }])
    t.equal(engine.running, 1)
    forwarder.reject(false)
    await until(() => engine.running === 0)
  },
)

t.test('an agent that disconnects cancels its request at the worker', async (t) => {
  const { proxy, engine } = await startRig(t, { retryGraceMs: 0 })
  const stream = await createAgent(proxy, 's').chat.completions.create({
    model: 'counting',
    messages: [{ role: 'user', content: 'count' }],
    stream: true,
    max_tokens: 10_000,
  })
  await stream[Symbol.asyncIterator]().next()
  stream.controller.abort()
  await until(() => engine.running === 0)
  t.match(await getTurns(proxy, 's'), [{ status: 'aborted' }])
})

t.test('a shutdown does not wait for a worker that has stopped reading', async (t) => {
  const proxy = await startRelayProxy(t)
  const worker = await RawWorker.hello(getSocketUrl(proxy))
  t.teardown(() => worker.socket.terminate())
  await worker.next('worker_hello_ack')
  worker.socket.pause()
  const response = streamResponse(createAgent(proxy, 's'))
  await until(async () => (await proxy.get('/admin/workers'))[0].load === 1)
  const startedAtMs = performance.now()
  t.same(await proxy.server.stop(100), { drained: false })
  t.ok(performance.now() - startedAtMs < 5_000)
  t.match((await response).error, { code: 'shutting_down' })
})

t.test('no worker: the request waits, then gets 503 in the format of its dialect', async (t) => {
  const proxy = await startRelayProxy(t, { queueWaitMs: 100 })
  const response = await fetch(`${proxy.baseUrl('s')}/chat/completions`, {
    method: 'POST',
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'hi' }] }),
  })
  t.equal(response.status, 503)
  t.match(await response.json(), { error: { message: String, code: 'no_worker' } })
  t.match(await getTurns(proxy, 's'), [{ status: 'failed', error: { code: 'no_worker' } }])
})

t.test('a pause under load: running requests finish, new ones wait, and are served after it', async (t) => {
  const { proxy, engine } = await startRig(t)
  const running = Array.from({ length: 5 }, (_, i) => streamResponse(createAgent(proxy, `r${i}`)))
  await until(() => engine.running === 5)
  const pause = proxy.post('/admin/pause?drain_timeout_s=10')
  await sleep(20)
  const waiting = Array.from({ length: 5 }, (_, i) => streamResponse(createAgent(proxy, `w${i}`)))
  t.match(await pause, { status: 'paused', drained: true, in_flight: 0 })
  for (const { text, error } of await Promise.all(running))
    t.same([text, error], [countedText(CHUNKS), undefined])
  await until(async () => (await proxy.get('/health')).queued === 5)
  t.equal(engine.running, 0)
  t.match(await proxy.post('/admin/resume'), { status: 'running' })
  for (const { text, error } of await Promise.all(waiting))
    t.same([text, error], [countedText(CHUNKS), undefined])
})

t.test("a turn has the engine's weight versions, at its start and at its end", async (t) => {
  const { proxy } = await startRig(t)
  await proxy.post('/admin/weight_version', { weight_version: 41 })
  t.same(await proxy.get('/admin/weight_version'), { weight_version: 41 })
  await streamResponse(createAgent(proxy, 's'))
  t.match(await getTurns(proxy, 's'), [{ weight_version_start: '41', weight_version_end: '8' }])
  t.match(await proxy.get('/admin/workers'), [{ worker_id: 'w', version: 2, weight_version: '7' }])
})

function getSocketUrl({ url }: TestProxy): string {
  return `${url.replace('http', 'ws')}/ws/worker`
}
