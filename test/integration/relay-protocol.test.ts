import t from 'tap'
import type { GenerationRequest } from '../../src/protocol/canonical/request.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import { MAX_FRAME_BYTES } from '../../src/protocol/worker/protocol.ts'
import { ResendBuffer } from '../../src/worker/resend-buffer.ts'
import { pull } from '../helpers/event-stream.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { chatRequest, getText, readEvents, relayServerFor } from '../helpers/relay-server.ts'
import { until } from '../helpers/until.ts'
import { V1Worker } from '../helpers/v1-worker.ts'

t.test('a version-2 worker receives the terms of the connection', async (t) => {
  const { url } = await relayServerFor(t)
  const worker = await RawWorker.hello(url, { capabilities: ['resume', 'flight'] })
  t.strictSame(await worker.next('worker_hello_ack'), {
    type: 'worker_hello_ack',
    worker_id: 'w',
    status: 'connected',
    protocol: 2,
    capabilities: ['resume'],
    heartbeat_ms: 10_000,
    grace_ms: 30_000,
    window_bytes: 1_048_576,
    requests: [],
  })
})

t.test('a worker of a later version is served with version 2', async (t) => {
  const { url } = await relayServerFor(t)
  const worker = await RawWorker.hello(url, { protocol: 3, news: true })
  t.match(await worker.next('worker_hello_ack'), { protocol: 2 })
})

t.test("a request has version 1's fields and the agent's body, large parts once", async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const request = chatRequest('hello', {
    model: 'm',
    temperature: null,
    seed: 7,
    tools: [{ type: 'function' }],
  })
  void readEvents(backend, request).catch(() => {})
  t.strictSame(await worker.next('completion_request'), {
    type: 'completion_request',
    request_id: request.requestId,
    session_id: request.sessionId,
    messages: [{ role: 'user', content: 'hello' }],
    temperature: 1,
    top_p: 1,
    max_tokens: 2048,
    stop: null,
    tools: [{ type: 'function' }],
    repetition_penalty: null,
    stream: true,
    kind: 'chat',
    body: { model: 'm', temperature: null, seed: 7 },
  })
})

t.test('responses reach the request that they name, in any order', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const responses = ['a', 'b', 'c'].map((content) => readEvents(backend, chatRequest(content)))
  const requests = []
  for (const _ of responses) requests.push(await worker.next('completion_request'))
  for (const seq of [1, 2]) {
    for (const { request_id: id, messages } of requests.toReversed()) {
      worker.chunk(id, seq, (messages as { content: string }[])[0]!.content)
    }
  }
  for (const { request_id: id } of requests) worker.end(id, 3)
  t.same((await Promise.all(responses)).map(getText), ['aa', 'bb', 'cc'])
})

t.test('a garbage frame ends the worker at once; its request goes to another', async (t) => {
  for (const garbage of ['{"type":', 'null', '[]', '7', '{}', '{"type":7}']) {
    const { url, backend } = await relayServerFor(t)
    const bad = await RawWorker.hello(url, { worker_id: 'bad' })
    const text = readEvents(backend, chatRequest('x')).then(getText)
    await bad.next('completion_request')
    const good = await RawWorker.hello(url, { worker_id: 'good' })
    bad.send(garbage)
    t.equal(await bad.closed, 4003, garbage)
    const { request_id: id } = await good.next('completion_request')
    good.chunk(id, 1, 'fine')
    good.end(id, 2)
    t.equal(await text, 'fine')
    bad.socket.terminate()
  }
})

t.test('a binary frame is garbage too', async (t) => {
  const { url } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  await worker.next('worker_hello_ack')
  worker.socket.send(Buffer.from('{"type":"ping"}'))
  t.equal(await worker.closed, 4003)
})

t.test('frames of a wrong type, of unknown requests and late ones change nothing', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const text = readEvents(backend, chatRequest('x')).then(getText)
  const { request_id: id } = await worker.next('completion_request')
  worker.send({ type: 'completion_request', request_id: id })
  worker.send({ type: 'worker_hello', worker_id: 'other' })
  worker.send({ type: 'hocus_pocus', request_id: id })
  worker.send({ type: 'worker_status', healthy: 'perhaps' })
  worker.chunk('nobody', 1, 'lost')
  worker.chunk(undefined, 1, 'lost')
  worker.chunk({ toString: 1, valueOf: 1 }, 1, 'lost')
  worker.chunk([id], 1, 'lost')
  worker.end(null, 1)
  worker.end('nobody', 1)
  worker.chunk(id, 1, 'kept')
  worker.end(id, 2)
  worker.chunk(id, 3, 'late')
  worker.end(id, 4)
  t.equal(await text, 'kept')
  t.equal(backend.list().length, 1, 'and the worker stays')
})

t.test('a duplicate chunk is accepted once', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const text = readEvents(backend, chatRequest('x')).then(getText)
  const { request_id: id } = await worker.next('completion_request')
  worker.chunk(id, 1, 'a')
  worker.chunk(id, 1, 'a')
  worker.chunk(id, 2, 'b')
  worker.chunk(id, 1, 'a')
  worker.end(id, 3)
  t.equal(await text, 'ab')
})

t.test('a frame that violates its schema fails only its own request', async (t) => {
  const brokenFrames: object[] = [
    { seq: 'one' },
    { deltas: [{ content: 7 }] },
    { deltas: [{ token_ids: ['1'] }] },
    { deltas: [{ log_probs: ['-1'] }] },
    { deltas: undefined },
    { start: { engine: 'e', prompt_token_ids: 'AAA=' } },
    { start: { engine: 'e', prompt_token_ids: '/////w==' } },
    { seq: 2 },
  ]
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const healthy = readEvents(backend, chatRequest('x')).then(getText)
  const { request_id: healthyId } = await worker.next('completion_request')
  for (const broken of brokenFrames) {
    const failing = t.rejects(
      readEvents(backend, chatRequest('y')),
      { code: 'engine_failed' },
      JSON.stringify(broken),
    )
    const { request_id: id } = await worker.next('completion_request')
    worker.chunk(id, 1, 'z', broken)
    await failing
    t.match(await worker.next('completion_cancel'), { request_id: id })
  }
  worker.chunk(healthyId, 1, 'fine')
  worker.end(healthyId, 2)
  t.equal(await healthy, 'fine')
})

t.test('a response that starts again in its middle fails: sampled tokens have one prompt', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const failing = t.rejects(readEvents(backend, chatRequest('x')), {
    code: 'engine_failed',
    message: /twice/,
  })
  const { request_id: id } = await worker.next('completion_request')
  worker.chunk(id, 1, 'a', { start: { engine: 'e', prompt_token_ids: 'AQAAAA==' } })
  worker.chunk(id, 2, 'b', { start: { engine: 'e', prompt_token_ids: 'AgAAAA==' } })
  await failing
})

t.test("a worker's error reaches the agent as in local mode", async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url)
  const error = {
    code: 'engine_rejected',
    message: 'too long',
    status: 422,
    param: 'messages',
    retry_after_s: 3,
    engine_body: { error: { message: 'too long' } },
  }
  const failing = t.rejects(readEvents(backend, chatRequest('x')), {
    code: 'engine_rejected',
    message: 'too long',
    status: 422,
    param: 'messages',
    retryAfterS: 3,
    engineBody: { error: { message: 'too long' } },
  })
  const { request_id: id } = await worker.next('completion_request')
  worker.send({ type: 'completion_response', request_id: id, seq: 1, finish_reason: null, error })
  await failing
})

t.test('a policy that the engines of a worker no longer list is served by another worker', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const policy = { models: [{ id: 'policy' }] }
  const restarted = await RawWorker.hello(url, { worker_id: 'restarted', ...policy })
  await restarted.next('worker_hello_ack')
  const response = readEvents(backend, { ...chatRequest('x', { model: 'policy' }), mustServe: true })
  const { request_id: id, must_serve: mustServe } = await restarted.next('completion_request')
  t.equal(mustServe, true)
  const other = await RawWorker.hello(url, { worker_id: 'other', ...policy })
  const idle = await RawWorker.hello(url, { worker_id: 'idle', models: [{ id: 'base' }] })
  await Promise.all([other, idle].map((worker) => worker.next('worker_hello_ack')))
  restarted.send({
    ...{ type: 'completion_response', request_id: id, seq: 1, finish_reason: null },
    error: { code: 'policy_not_served', message: 'no engine lists the policy', status: 503 },
  })
  const again = await other.next('completion_request')
  t.equal(again.must_serve, true)
  other.chunk(again.request_id, 1, 'served')
  other.end(again.request_id, 2)
  t.equal(getText(await response), 'served')
  t.notOk(idle.frames.some(({ type }) => type === 'completion_request'))
})

t.test('a worker without the resume capability is lost with its connection', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url, { capabilities: [] })
  t.match(await worker.next('worker_hello_ack'), { grace_ms: 0 })
  const failing = t.rejects(readEvents(backend, chatRequest('x')), { code: 'worker_lost' })
  const { request_id: id } = await worker.next('completion_request')
  worker.chunk(id, 1, 'a')
  worker.send({ type: 'ping' })
  await worker.next('pong')
  worker.socket.terminate()
  await failing
})

t.test('the loss of a worker reports whether its weights changed during the response', async (t) => {
  for (const [version, weightsChanged] of [
    ['2', true],
    ['1', false],
  ] as const) {
    const { url, backend } = await relayServerFor(t)
    const worker = await RawWorker.hello(url, { capabilities: [], weight_version: '1' })
    const failing = t.rejects(readEvents(backend, chatRequest('x')), { code: 'worker_lost', weightsChanged })
    const { request_id: id } = await worker.next('completion_request')
    worker.chunk(id, 1, 'a', { start: { engine: 'e', weight_version: '1' } })
    const status = { healthy: true, load: 1, models: [{ id: 'm' }], draining: false }
    worker.send({ type: 'worker_status', ...status, weight_version: version })
    worker.send({ type: 'ping' })
    await worker.next('pong')
    worker.socket.terminate()
    await failing
  }
})

t.test('a newer epoch of an id replaces the older one, which is rejected from then on', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const old = await RawWorker.hello(url, { epoch: 1 })
  const text = readEvents(backend, chatRequest('x')).then(getText)
  const { request_id: oldId } = await old.next('completion_request')
  const newer = await RawWorker.hello(url, { epoch: 2 })
  t.equal(await old.closed, 4004)
  const { request_id: id } = await newer.next('completion_request')
  t.not(id, oldId, 'a second attempt has a new id, so that responses cannot be confused')
  t.equal(await (await RawWorker.hello(url, { epoch: 1 })).closed, 4005)
  newer.chunk(id, 1, 'young')
  newer.end(id, 2)
  t.equal(await text, 'young')
  t.equal(backend.list().length, 1)
})

t.test('the same epoch on a second socket is a reconnect: the newest socket counts', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const first = await RawWorker.hello(url)
  const text = readEvents(backend, chatRequest('x')).then(getText)
  const { request_id: id } = await first.next('completion_request')
  first.chunk(id, 1, 'a')
  await until(() => backend.list()[0]?.load === 1)
  const second = await RawWorker.hello(url, { requests: [id, 'forgotten'] })
  const { requests } = await second.next('worker_hello_ack')
  t.equal(await first.closed, 4004)
  t.strictSame(
    requests,
    [{ request_id: id, received: 1 }],
    'requests that the proxy no longer needs are omitted',
  )
  second.chunk(id, 1, 'a')
  second.chunk(id, 2, 'b')
  second.end(id, 3)
  t.equal(await text, 'ab')
})

t.test('a request that was lost with the socket is sent again', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const first = await RawWorker.hello(url)
  await first.next('worker_hello_ack')
  const text = readEvents(backend, chatRequest('x')).then(getText)
  first.socket.terminate()
  const second = await RawWorker.hello(url)
  const { request_id: id } = await second.next('completion_request')
  second.chunk(id, 1, 'a')
  second.end(id, 2)
  t.equal(await text, 'a')
})

t.test('a request that the worker does not know fails', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const first = await RawWorker.hello(url)
  const failing = t.rejects(readEvents(backend, chatRequest('x')), { code: 'worker_lost' })
  const { request_id: id } = await first.next('completion_request')
  first.chunk(id, 1, 'a')
  first.send({ type: 'ping' })
  await first.next('pong')
  first.socket.terminate()
  await RawWorker.hello(url)
  await failing
})

t.test(
  'a reader that does not read its response stops its worker at the window, and no other request',
  async (t) => {
    const { url, backend } = await relayServerFor(t, { windowBytes: 1_000, requestTimeoutMs: 300 })
    const worker = await RawWorker.hello(url)
    const slow = pull(backend, chatRequest('slow'), new AbortController().signal)[Symbol.asyncIterator]()
    const first = slow.next()
    const { request_id: slowId } = await worker.next('completion_request')
    worker.chunk(slowId, 1, 'x')
    await first
    for (let seq = 2; seq < 7; seq += 1) worker.chunk(slowId, seq, 'x'.repeat(100))
    const text = readEvents(backend, chatRequest('quick')).then(getText)
    const { request_id: quickId } = await worker.next('completion_request')
    worker.chunk(quickId, 1, 'quick')
    worker.end(quickId, 2)
    t.equal(await text, 'quick')
    t.match(await worker.next('completion_cancel'), { request_id: slowId }, 'after the relay timeout')
    await t.rejects(
      async () => {
        while (!(await slow.next()).done);
      },
      { code: 'agent_too_slow' },
    )
  },
)

t.test('a worker that exceeds the window fails that request', async (t) => {
  const { url, backend } = await relayServerFor(t, { windowBytes: 1_000 })
  const worker = await RawWorker.hello(url)
  const slow = pull(backend, chatRequest('slow'), new AbortController().signal)[Symbol.asyncIterator]()
  const first = slow.next()
  const { request_id: id } = await worker.next('completion_request')
  worker.chunk(id, 1, 'x')
  await first
  for (let seq = 2; seq < 20; seq += 1) worker.chunk(id, seq, 'x'.repeat(100))
  await worker.next('completion_cancel')
  await t.rejects(
    async () => {
      while (!(await slow.next()).done);
    },
    { code: 'engine_failed', message: /more than its window allows/ },
  )
})

t.test('a version-2 worker may take long for a request, as long as it sends', async (t) => {
  const { url, backend } = await relayServerFor(t, { requestTimeoutMs: 1_000 })
  const worker = await RawWorker.hello(url)
  const text = readEvents(backend, chatRequest('x')).then(getText)
  const { request_id: id } = await worker.next('completion_request')
  for (let seq = 1; seq <= 4; seq += 1) {
    await new Promise((resolve) => setTimeout(resolve, 300))
    worker.chunk(id, seq, 'x')
  }
  worker.end(id, 5)
  t.equal(await text, 'xxxx')
  await t.rejects(
    readEvents(backend, chatRequest('y')),
    { code: 'engine_timeout' },
    'and not if it is silent',
  )
})

t.test(
  'data that exceeds a frame fails only its own request, on either side, and the worker stays',
  async (t) => {
    const { url, backend } = await relayServerFor(t)
    const tooMuch = 'x'.repeat(MAX_FRAME_BYTES)
    const worker = await RawWorker.hello(url)
    await worker.next('worker_hello_ack')
    await t.rejects(readEvents(backend, chatRequest(tooMuch)), { code: 'body_too_large', status: 413 })
    t.match(backend.list(), [{ id: 'w', load: 0 }])
    const frames = new ResendBuffer()
    t.equal(frames.add(String), '1')
    t.throws(() => frames.add(() => `"${tooMuch}"`), { code: 'engine_failed' })
    t.throws(() => frames.end(() => `"${tooMuch}"`), { code: 'engine_failed' })
    t.notOk(frames.hasEnded)
    t.equal(frames.end(String), '2', 'the frame that reports it follows the last that was sent')
  },
)

t.test('a reconnected worker has its newly reported state, and drains if it did before', async (t) => {
  const { url, backend } = await relayServerFor(t, { waitMs: 0 })
  const first = await RawWorker.hello(url)
  await first.next('worker_hello_ack')
  const status = { healthy: true, load: 0, models: [{ id: 'm' }], weight_version: '3', draining: true }
  first.send({ type: 'worker_status', ...status })
  await until(() => backend.list()[0]?.draining === true)
  first.socket.terminate()
  const capabilities = ['resume', 'token_ids']
  const second = await RawWorker.hello(url, { capabilities, max_concurrency: 9, healthy: false })
  t.match(await second.next('worker_hello_ack'), { capabilities })
  t.match(backend.list(), [{ draining: true, healthy: false, maxConcurrency: 9 }])
  t.match(backend.getStatus().members, [{ takesTokenIds: true }])
})

t.test('a status replaces the capabilities of the hello, if it has any', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await RawWorker.hello(url, { capabilities: ['resume', 'token_ids', 'images'] })
  await worker.next('worker_hello_ack')
  const sendStatus = async (load: number, more: object) => {
    const status = { healthy: true, models: [], weight_version: null, draining: false, load, ...more }
    worker.send({ type: 'worker_status', ...status })
    await until(() => backend.list()[0]?.load === load)
  }
  await sendStatus(1, {})
  t.match(backend.getStatus().members, [{ takesTokenIds: true, takesImages: true }])
  await sendStatus(2, { capabilities: ['resume', 'images', 'flight'] })
  t.match(backend.getStatus().members, [{ takesTokenIds: false, takesImages: true }])
  await sendStatus(3, { capabilities: ['resume', 'token_ids'] })
  t.match(backend.getStatus().members, [{ takesTokenIds: true, takesImages: undefined }])
})

t.test('a request that crashes its workers is failed before it has crashed all', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const crashed: string[] = []
  for (const id of ['a', 'b', 'c', 'd', 'e']) {
    const worker = await RawWorker.hello(url, { worker_id: id, capabilities: [] })
    await worker.next('worker_hello_ack')
    worker.socket.on('message', () => {
      if (worker.frames.at(-1)?.type !== 'completion_request') return
      crashed.push(id)
      worker.socket.terminate()
    })
  }
  await t.rejects(readEvents(backend, chatRequest('x')), { code: 'worker_lost' })
  t.equal(crashed.length, 3)
  t.equal(backend.list().length, 2)
})

t.test('a request goes to a worker that can serve it, not to an idler one that cannot', async (t) => {
  const { url, backend } = await relayServerFor(t)
  await V1Worker.connect(url, 'old', () => ({ completion_text: 'old' }))
  const plain = await RawWorker.hello(url, { worker_id: 'plain' })
  const byIds = await RawWorker.hello(url, { worker_id: 'ids', capabilities: ['token_ids'] })
  for (const worker of [plain, byIds]) await worker.next('worker_hello_ack')
  const sendRequest = (request: GenerationRequest) => void readEvents(backend, request).catch(() => {})
  for (let i = 0; i < 3; i += 1)
    sendRequest({ ...chatRequest('x'), promptTokenIds: PromptIds.of(i) } as GenerationRequest)
  for (let i = 0; i < 3; i += 1) t.match(await byIds.next('completion_request'), { prompt_token_ids: String })
  for (let i = 0; i < 3; i += 1) {
    const { requestId, sessionId } = chatRequest('x')
    sendRequest({ kind: 'completion', body: { prompt: 'x' }, requestId, sessionId, stream: true })
  }
  for (let i = 0; i < 3; i += 1) t.match(await plain.next('completion_request'), { kind: 'completion' })
  t.equal(backend.list()[0]?.load, 0)
})

t.test('a worker that is busy for another proxy gets less', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const [busy, free] = [
    await RawWorker.hello(url, { worker_id: 'busy' }),
    await RawWorker.hello(url, { worker_id: 'free' }),
  ]
  for (const worker of [busy, free]) await worker.next('worker_hello_ack')
  const status = { healthy: true, models: [], weight_version: null, draining: false }
  busy.send({ type: 'worker_status', ...status, load: 3 })
  await until(() => backend.list().some(({ load }) => load === 3))
  for (let i = 0; i < 3; i += 1) {
    readEvents(backend, chatRequest('x')).catch(() => {})
    await free.next('completion_request')
  }
  t.equal(busy.frames.filter(({ type }) => type === 'completion_request').length, 0)
})

t.test('a worker that reports itself draining or unhealthy gets nothing new', async (t) => {
  for (const change of [{ draining: true }, { healthy: false }]) {
    const { url, backend } = await relayServerFor(t, { waitMs: 0 })
    const worker = await RawWorker.hello(url)
    await worker.next('worker_hello_ack')
    const status = { healthy: true, load: 0, models: [{ id: 'm' }], weight_version: '3', draining: false }
    worker.send({ type: 'worker_status', ...status, ...change })
    await until(() => backend.list()[0]?.weightVersion === '3')
    await t.rejects(readEvents(backend, chatRequest('x')), { code: 'no_worker' })
    t.same(await backend.listModels(), [])
  }
})
