import { once } from 'node:events'
import Fastify from 'fastify'
import t from 'tap'
import WebSocket from 'ws'
import { workerSocket } from '../../src/proxy/http/worker/worker-socket.ts'
import { rejectWorkers } from '../../src/proxy/relay/reject-workers.ts'
import { chatRequest, readEvents, relayServerFor } from '../helpers/relay-server.ts'
import { until } from '../helpers/until.ts'
import { V1Worker } from '../helpers/v1-worker.ts'

async function getCloseCode(socket: WebSocket): Promise<number> {
  const [code] = await once(socket, 'close')
  return code as number
}

t.test('a version-1 worker receives exactly the version-1 ack', async (t) => {
  const { url } = await relayServerFor(t)
  const worker = await V1Worker.connect(url, 'w1', () => ({}))
  t.strictSame(worker.frames, [{ type: 'worker_hello_ack', worker_id: 'w1', status: 'connected' }])
})

t.test('a version-1 request has each field, with its default where the agent omitted it', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await V1Worker.connect(url, 'w1', () => ({ completion_text: 'hi' }))
  const request = chatRequest('hello')
  await readEvents(backend, request)
  t.strictSame(worker.requests, [
    {
      type: 'completion_request',
      request_id: request.requestId,
      session_id: request.sessionId,
      messages: [{ role: 'user', content: 'hello' }],
      temperature: 1,
      top_p: 1,
      max_tokens: 2048,
      stop: null,
      tools: null,
      repetition_penalty: null,
      stream: true,
    },
  ])
})

t.test('a version-1 request has what the agent requested, and nothing beyond its fields', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await V1Worker.connect(url, 'w1', () => ({ completion_text: 'hi' }))
  const tools = [{ type: 'function', function: { name: 'f', parameters: {} } }]
  const params = { temperature: 0, top_p: 0.5, stop: ['a'], tools, repetition_penalty: 1.1 }
  await readEvents(backend, chatRequest('hello', { ...params, max_completion_tokens: 7, top_k: 3 }))
  const { type, request_id, session_id, messages, stream, ...rest } = worker.requests[0]!
  t.strictSame(rest, { ...params, max_tokens: 7 })
})

t.test('a version-1 response becomes one event per field', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const toolCall = { id: 'c1', type: 'function', function: { name: 'f', arguments: '{"a":1}' } }
  await V1Worker.connect(url, 'w1', () => ({
    token_ids: [1, 2],
    log_probs: [-0.5, -0.25],
    completion_text: 'let me see<tool_call>f</tool_call>',
    content_text: 'let me see',
    tool_calls: [toolCall],
    finish_reason: 'tool_calls',
  }))
  t.strictSame(await readEvents(backend, chatRequest('hello')), [
    { type: 'start', engine: 'w1' },
    { type: 'delta', content: 'let me see' },
    { type: 'delta', toolCalls: [{ index: 0, ...toolCall }] },
    { type: 'delta', tokenIds: [1, 2], logprobs: [-0.5, -0.25] },
    { type: 'end', finishReason: 'tool_calls' },
  ])
})

t.test('an infinite logprob, as Python writes it, leaves the rest of the response unchanged', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const worker = await V1Worker.connect(url, 'w1', () => new Promise(() => {}))
  const events = readEvents(backend, chatRequest('hello'))
  await until(() => worker.requests.length === 1)
  const id = JSON.stringify(worker.requests[0]!.request_id)
  worker.socket.send(
    `{"type":"completion_response","request_id":${id},"token_ids":[1,2],"log_probs":[NaN,-0.5],"completion_text":"NaN"}`,
  )
  t.strictSame((await events).slice(1, 3), [
    { type: 'delta', content: 'NaN' },
    { type: 'delta', tokenIds: [1, 2], logprobs: [Number.NaN, -0.5] },
  ])
})

t.test('a worker that does not send its token ids is warned of, until it sends them', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const timing = { worker_received_at: 1.5 }
  let ids: number[] | undefined
  await V1Worker.connect(url, 'w1', () => ({
    completion_text: 'fine',
    token_ids: ids,
    log_probs: ids?.map(() => -0.5),
    ...{ timing, node_id: 'n', gpu_id: null, worker_id: 'w1', rank_info: null },
  }))
  const warning = () => backend.getStatus().members[0]?.warning
  t.equal(warning(), undefined)
  t.match(await readEvents(backend, chatRequest('hello')), [
    { engine: 'w1' },
    { content: 'fine' },
    { type: 'end' },
  ])
  t.match(warning(), 'its responses have no token ids')
  ids = [1]
  await readEvents(backend, chatRequest('hello'))
  t.equal(warning(), undefined)
})

t.test("a version-1 error is the request's error, and the worker continues", async (t) => {
  const { url, backend } = await relayServerFor(t)
  await V1Worker.connect(url, 'w1', ({ messages }) =>
    messages[0]?.content === 'bad' ? { error: 'CUDA out of memory' } : { completion_text: 'fine' },
  )
  await t.rejects(readEvents(backend, chatRequest('bad')), {
    code: 'engine_failed',
    status: 502,
    message: 'CUDA out of memory',
  })
  const [, delta] = await readEvents(backend, chatRequest('good'))
  t.strictSame(delta, { type: 'delta', content: 'fine' })
})

t.test('a version-1 worker that exceeds the relay timeout fails its request with 504', async (t) => {
  const { url, backend } = await relayServerFor(t, { requestTimeoutMs: 50 })
  await V1Worker.connect(url, 'w1', () => new Promise(() => {}))
  await t.rejects(readEvents(backend, chatRequest('hello')), { code: 'engine_timeout', status: 504 })
  t.equal(backend.list()[0]?.load, 0, 'its slot is free again')
})

t.test('the response to a ping is a pong', async (t) => {
  const { url } = await relayServerFor(t)
  const worker = await V1Worker.connect(url, 'w1', () => ({}))
  worker.send({ type: 'ping' })
  await until(() => worker.frames.some((frame) => frame.type === 'pong'))
  t.strictSame(worker.frames.at(-1), { type: 'pong' })
})

t.test('a first frame that is not a hello closes with 4001', async (t) => {
  const { url } = await relayServerFor(t)
  for (const frame of [{ type: 'ping' }, { type: 'completion_response', request_id: 'x' }]) {
    const socket = new WebSocket(url)
    socket.on('open', () => socket.send(JSON.stringify(frame)))
    t.equal(await getCloseCode(socket), 4001)
  }
})

t.test('an invalid hello closes with 4000', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const hellos = [
    'not json',
    '[]',
    'null',
    '{}',
    '{"type":"worker_hello","worker_id":""}',
    '{"type":"worker_hello","worker_id":7}',
    '{"type":"worker_hello","worker_id":"w","protocol":2}',
    Buffer.from('{"type":"worker_hello","worker_id":"w"}'),
  ]
  for (const hello of hellos) {
    const socket = new WebSocket(url)
    socket.on('open', () => socket.send(hello))
    t.equal(await getCloseCode(socket), 4000, String(hello))
  }
  t.strictSame(backend.list(), [])
})

t.test('a proxy that is not in relay mode closes with 4002', async (t) => {
  const app = Fastify()
  t.teardown(() => app.close())
  await app.register(workerSocket, { accept: rejectWorkers, maxFrameBytes: 1024 })
  const url = await app.listen({ host: '127.0.0.1', port: 0 })
  t.equal(await getCloseCode(new WebSocket(`${url}/ws/worker`)), 4002)
})

t.test('a second version-1 worker of the same id replaces the first, whose requests it serves', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const first = await V1Worker.connect(url, 'w1', () => new Promise(() => {}))
  const response = readEvents(backend, chatRequest('hello'))
  await until(() => first.requests.length === 1)
  const closed = getCloseCode(first.socket)
  const second = await V1Worker.connect(url, 'w1', () => ({ completion_text: 'from the second' }))
  t.equal(await closed, 4004)
  t.match(await response, [{ type: 'start' }, { content: 'from the second' }, { type: 'end' }])
  t.equal(second.requests.length, 1)
  t.equal(backend.list().length, 1)
})

t.test('a large request and a large response pass completely', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const text = 'x'.repeat(20 * 1024 * 1024)
  await V1Worker.connect(url, 'w1', ({ messages }) => ({ content_text: messages[0]?.content }))
  const [, delta] = await readEvents(backend, chatRequest(text))
  t.ok(delta?.type === 'delta' && delta.content === text)
})

t.test('a worker without an id gets one, and two of them are two', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const workers = []
  for (const hello of [{}, { worker_id: null }]) {
    const worker = await V1Worker.connect(url, hello, () => ({ completion_text: 'fine' }))
    t.match(worker.frames[0], { type: 'worker_hello_ack', worker_id: /^worker-./, status: 'connected' })
    workers.push(worker.frames[0]?.worker_id)
  }
  t.strictSame(
    backend
      .list()
      .map(({ id }) => id)
      .sort(),
    workers.sort(),
  )
  const [, delta] = await readEvents(backend, chatRequest('good'))
  t.strictSame(delta, { type: 'delta', content: 'fine' })
})
