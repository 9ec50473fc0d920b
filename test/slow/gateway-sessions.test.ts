/**
 * The second contract of rLLM's model gateway: sessions below /admin, keys that end with them, requests with their
 * lineage.
 */
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import { SessionTraces } from '../../src/proxy/http/trainer/gateway/schemas.ts'
import { TraceGraph } from '../../src/proxy/http/trainer/traces/schemas.ts'
import { KEYS } from '../helpers/keys.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { findSchemaErrors, startSessionsApi } from '../helpers/sessions-api.ts'

const [ADMIN] = KEYS.adminKeys

// biome-ignore lint/suspicious/noExplicitAny: tests read responses of any shape
type Json = any

const closedProxy = (t: Test, more = {}) => startProxy(t, { ...KEYS, ...more })

/** Sends a request with the admin key. */
async function sendAdminRequest(proxy: TestProxy, method: string, path: string, body?: object) {
  const response = await fetch(`${proxy.url}/admin/sessions${path}`, {
    method,
    headers: { authorization: `Bearer ${ADMIN}` },
    ...(body && { body: JSON.stringify(body) }),
  })
  const text = await response.text()
  return { status: response.status, body: (text === '' ? undefined : JSON.parse(text)) as Json }
}

const createAgent = (proxy: TestProxy, session: string, apiKey: string) =>
  new OpenAI({ baseURL: `${proxy.url}/sessions/${session}/v1`, apiKey, maxRetries: 0 })

const HI = { role: 'user' as const, content: 'What is the sea, in a few words?' }

const chat = (agent: OpenAI, messages: OpenAI.ChatCompletionMessageParam[] = [HI]) =>
  agent.chat.completions.create({ model: 'embedded', messages, max_tokens: 8 })

t.test('a session has a key that its deletion revokes, and a new key when it is created again', async (t) => {
  const proxy = await closedProxy(t)
  const created = await sendAdminRequest(proxy, 'POST', '', {
    session_id: 'task/7:0',
    sampling_params: { temperature: 0.5 },
  })
  t.match(created, { status: 200, body: { session_id: 'task/7:0', agent_key: /^lp-/ } })
  const agent = createAgent(proxy, 'task/7:0', created.body.agent_key)
  await chat(agent)
  t.match(await sendAdminRequest(proxy, 'POST', '', { session_id: 'task/7:0' }), {
    status: 409,
    body: { code: 'session_exists' },
  })
  t.match(await proxy.post('/sessions/task%2F7:0'), { status: 'exists', agent_key: created.body.agent_key })
  t.same(await sendAdminRequest(proxy, 'DELETE', '/task/7:0'), { status: 204, body: undefined })
  t.match(await sendAdminRequest(proxy, 'DELETE', '/task/7:0'), { status: 404 })
  t.match(await sendAdminRequest(proxy, 'GET', '/task/7:0'), {
    status: 404,
    body: { code: 'session_not_found' },
  })
  await t.rejects(chat(agent), { status: 401, code: 'unauthorized' })
  await t.rejects(agent.models.list(), { status: 401, code: 'unauthorized' })
  t.match(
    await sendAdminRequest(proxy, 'GET', '/task/7:0'),
    { status: 404 },
    'the rejected request created no session',
  )

  const second = await sendAdminRequest(proxy, 'POST', '', { session_id: 'task/7:0' })
  t.not(second.body.agent_key, created.body.agent_key)
  await t.rejects(chat(agent), { status: 401, code: 'unauthorized' })
  await chat(createAgent(proxy, 'task/7:0', second.body.agent_key))
  t.equal((await sendAdminRequest(proxy, 'GET', '/task/7:0')).body.traces.length, 1)
})

t.test('a key ends with its session, also across a restart', async (t) => {
  const db = `${t.testdir({})}/proxy.db`
  const first = await closedProxy(t, { db })
  const { agent_key: validKey } = (await sendAdminRequest(first, 'POST', '', { session_id: 'kept' })).body
  const { agent_key: revokedKey } = (await sendAdminRequest(first, 'POST', '', { session_id: 'gone' })).body
  await sendAdminRequest(first, 'DELETE', '/gone')
  await first.server.stop(0)
  const second = await closedProxy(t, { db })
  await chat(createAgent(second, 'kept', validKey))
  await t.rejects(chat(createAgent(second, 'gone', revokedKey)), { status: 401, code: 'unauthorized' })
})

t.test('a session with its own key accepts no key derived from its name alone', async (t) => {
  const proxy = await closedProxy(t)
  const { agent_key: ofName } = await proxy.post('/sessions', { session_id: 's' })
  await chat(createAgent(proxy, 's', ofName))
  await sendAdminRequest(proxy, 'DELETE', '/s')
  await sendAdminRequest(proxy, 'POST', '', { session_id: 's' })
  await t.rejects(chat(createAgent(proxy, 's', ofName)), { status: 401, code: 'unauthorized' })
})

t.test("without keys a session's key is its id, and without a secret none are derived", async (t) => {
  const open = await startProxy(t)
  t.same(await open.post('/admin/sessions', { session_id: 'a b' }), {
    session_id: 'a b',
    agent_key: 'a%20b',
  })
  await chat(new OpenAI({ baseURL: `${open.url}/v1`, apiKey: 'a%20b', maxRetries: 0 }))
  t.equal((await open.get('/sessions/a%20b')).num_turns, 1)
  const adminOnly = await startProxy(t, { adminKeys: KEYS.adminKeys, db: 'memory' })
  t.match(await sendAdminRequest(adminOnly, 'POST', '', {}), { status: 400, body: { code: 'unsupported' } })
})

t.test('the requests of a session are listed with their parents', async (t) => {
  const proxy = await closedProxy(t)
  await proxy.post('/admin/weight_version', { weight_version: 17 })
  const { session_id: id, agent_key: key } = (await sendAdminRequest(proxy, 'POST', '', {})).body
  const agent = createAgent(proxy, id, key)
  const assistantMessage = (await chat(agent)).choices[0]!.message
  await chat(agent, [HI, assistantMessage, { role: 'user', content: 'And a river?' }])
  await chat(agent, [{ role: 'user', content: 'Something else altogether.' }])
  await agent.completions.create({ model: 'embedded', prompt: 'Once upon', max_tokens: 4 })
  const { body } = await sendAdminRequest(proxy, 'GET', `/${id}`)
  t.strictSame(findSchemaErrors(SessionTraces, body), [])
  const [first, second, third, text] = body.traces
  t.match(first, {
    request: { session_id: id, messages: [HI], prompt: null, prompt_token_ids: null, tools: { length: 0 } },
    response: {
      text: assistantMessage.content,
      content: assistantMessage.content,
      tool_calls: { length: 0 },
    },
    input: { routing_key: id, sampling_params: { max_tokens: 8 } },
    output: { weight_version: 17, routed_experts: null },
    lineage: { parent_request_id: null, root_request_id: first.request.request_id },
  })
  t.equal(first.output.logprobs.length, first.output.completion_token_ids.length)
  t.match(second.lineage, {
    parent_request_id: first.request.request_id,
    root_request_id: first.request.request_id,
  })
  t.match(third.lineage, { parent_request_id: null, root_request_id: third.request.request_id })
  t.match(text.request, { messages: { length: 0 }, prompt: 'Once upon', prompt_token_ids: null })
  t.match(text.response, { prompt_tokens: text.input.prompt_token_ids.length, completion_tokens: 4 })
})

/** Rebuilds each request from its parents, as rLLM's client does. */
function rebuildRequests(deltas: Json[]) {
  const requests = new Map<string, { messages: Json[]; prompt: number[]; delta: Json }>()
  for (const delta of deltas) {
    const parent = delta.parent_trace_id === null ? undefined : requests.get(delta.parent_trace_id)
    const messages = parent ? [...parent.messages, parent.delta.response_message] : []
    const prompt = parent ? [...parent.prompt, ...parent.delta.completion_token_ids] : []
    requests.set(delta.trace_id, {
      messages: [...messages, ...delta.messages_suffix],
      prompt: [...prompt, ...delta.prompt_ids_suffix],
      delta,
    })
  }
  return [...requests.values()]
}

t.test('traces in compact form are a graph of the same requests', async (t) => {
  const proxy = await startProxy(t)
  const agent = createAgent(proxy, 's', 'none')
  const conversation: OpenAI.ChatCompletionMessageParam[] = [HI]
  for (const more of ['And a river?', 'And a lake?', 'And a pond?']) {
    conversation.push((await chat(agent, conversation)).choices[0]!.message, { role: 'user', content: more })
  }
  // A branch, and a separate conversation.
  await chat(agent, [...conversation.slice(0, 2), { role: 'user', content: 'Or a puddle?' }])
  await chat(agent, [{ role: 'user', content: 'Something else altogether.' }])
  const traces = await proxy.get('/sessions/s/traces')
  const graph = await proxy.get('/sessions/s/traces?format=compact')
  t.strictSame(findSchemaErrors(TraceGraph, graph), [])
  t.match(graph, { format: 'compact', version: 1 })
  const shown = rebuildRequests(graph.deltas)
  t.strictSame(
    shown.map(({ prompt }) => prompt),
    traces.map((trace: Json) => trace.prompt_token_ids),
  )
  const texts = (messages: Json[]) => messages.map(({ role, content }) => [role, content])
  t.strictSame(
    shown.map(({ messages }) => texts(messages)),
    traces.map(({ messages }: Json) => texts(messages)),
  )
  const [a, b, c, branch, other] = graph.deltas
  t.same(
    [a, b, c, branch, other].map((delta) => delta.parent_trace_id),
    [null, a.trace_id, b.trace_id, a.trace_id, null],
  )
  t.same(
    [a, b, c, branch].map((delta) => delta.lineage_id),
    Array(4).fill(a.turn_id),
  )
  t.not(other.lineage_id, a.lineage_id)
  t.ok(c.prompt_ids_suffix.length < traces[2].prompt_token_ids.length / 2, 'only what is new')

  const late = await proxy.get(`/sessions/s/traces?format=compact&since=${traces[1].timestamp}`)
  t.equal(late.deltas[0].parent_trace_id, null, 'a request whose parent is left out is complete')
  t.strictSame(
    rebuildRequests(late.deltas).map(({ prompt }) => prompt),
    traces.slice(-late.deltas.length).map((trace: Json) => trace.prompt_token_ids),
  )
})

/** Sends a request that is delayed until its client has received a keep-alive. @param end what follows */
async function sendDelayed(t: Test, end: 'response' | ProxyError, path = 'chat/completions') {
  const { url, backend, call } = await startSessionsApi(t, undefined, {}, { answerKeepAliveMs: 20 })
  const keepAliveReceived = Promise.withResolvers<void>()
  const { script } = backend
  backend.script = async function* (request, signal) {
    await keepAliveReceived.promise
    if (end !== 'response') throw end
    yield* script(request, signal)
  }
  const body = JSON.stringify({ model: 'm', messages: [HI], max_tokens: 5 })
  const response = await fetch(`${url}/s/v1/${path}`, { method: 'POST', body })
  let text = ''
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
    text += chunk
    keepAliveReceived.resolve()
  }
  return { response, text, call }
}

t.test('a delayed request gets keep-alives, and its response is unchanged', async (t) => {
  for (const path of ['chat/completions', 'messages']) {
    const { response, text, call } = await sendDelayed(t, 'response', path)
    t.equal(response.status, 200)
    t.match(response.headers.get('content-type'), /^application\/json/)
    t.match(text, /^ +\{/)
    const { turns } = (await call('GET', '/sessions/s')).body
    t.match(turns, [{ status: 'completed' }])
    t.ok(text.includes(JSON.stringify(turns[0].completion_text)))
  }
})

t.test('a failure after the first keep-alive breaks the connection, so that SDKs retry', async (t) => {
  await t.rejects(sendDelayed(t, new ProxyError('engine_lost', 'gone')), /terminated/)
})

t.test('a failure that a retry cannot fix is reported in the body', async (t) => {
  const rejected = new ProxyError('engine_rejected', 'no such model')
  const chat = await sendDelayed(t, rejected)
  t.match(JSON.parse(chat.text), { error: { message: 'no such model', code: 'engine_rejected' } })
  const messages = await sendDelayed(t, rejected, 'messages')
  t.match(JSON.parse(messages.text), { type: 'error', error: { message: 'no such model' } })
  t.match((await messages.call('GET', '/sessions/s')).body.turns, [{ status: 'failed' }])
})
