/** A proxy with keys: what agents, trainers and workers can do with their keys, and with each other's. */
import { once } from 'node:events'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { createAgentKey } from '../../src/proxy/http/access/agent-key.ts'
import { InferenceWorkerClient } from '../../src/worker/inference-worker-client.ts'
import { killChild, waitForOutput } from '../helpers/children.ts'
import { CountingBackend } from '../helpers/counting-backend.ts'
import { KEYS } from '../helpers/keys.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { startRelayProxy, untilWorkers } from '../helpers/relay-rig.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

const closedProxy = (t: Test, more = {}) => startProxy(t, { ...KEYS, ...more })

async function getKey(proxy: TestProxy, sessionId: string): Promise<string> {
  return (await proxy.post(`/sessions/${sessionId}`)).agent_key
}

function openAi(baseURL: string, apiKey: string): OpenAI {
  return new OpenAI({ baseURL, apiKey, maxRetries: 0 })
}

function anthropic(baseURL: string, apiKey: string): Anthropic {
  return new Anthropic({ baseURL, apiKey, maxRetries: 0 })
}

/** Returns the error with which a request was rejected. */
async function getRejection(request: Promise<unknown>): Promise<unknown> {
  return request.then(
    () => new Error('the request was accepted'),
    (error: unknown) => error,
  )
}

const CHAT = { model: 'embedded', messages: [{ role: 'user' as const, content: 'hi' }], max_tokens: 3 }

t.test("a session is created with its agent's key, and found with the same", async (t) => {
  const proxy = await closedProxy(t)
  const created = await proxy.post('/sessions', { session_id: 's' })
  t.same(created, {
    session_id: 's',
    status: 'created',
    agent_key: createAgentKey(KEYS.agentKeySecrets[0]!, 's'),
  })
  t.same(await proxy.post('/sessions/s'), { ...created, status: 'exists' })
  const generated = await proxy.post('/sessions')
  t.equal(generated.agent_key, createAgentKey(KEYS.agentKeySecrets[0]!, generated.session_id))
  t.notMatch(await proxy.get('/sessions/s'), { agent_key: String })
})

t.test("unmodified clients send their session's requests in every form of URL", async (t) => {
  const proxy = await closedProxy(t)
  const key = await getKey(proxy, 's')
  for (const path of ['/s', '/sessions/s', '']) {
    const reply = await openAi(`${proxy.url}${path}/v1`, key).chat.completions.create(CHAT)
    t.equal(reply.object, 'chat.completion')
    t.equal((await openAi(`${proxy.url}${path}/v1`, key).models.list()).data.length, 1)
    const message = await anthropic(proxy.url + path, key).messages.create(CHAT)
    t.equal(message.type, 'message')
    t.ok((await anthropic(proxy.url + path, key).messages.countTokens(CHAT)).input_tokens > 0)
    const response = await openAi(`${proxy.url}${path}/v1`, key).responses.create({
      model: 'embedded',
      input: 'hi',
    })
    t.equal((await openAi(`${proxy.url}${path}/v1`, key).responses.retrieve(response.id)).id, response.id)
  }
  t.equal((await proxy.get('/sessions/s')).num_turns, 9)
})

t.test(
  'an agent without a created session creates it with its first request, unless sessions are strict',
  async (t) => {
    const key = createAgentKey(KEYS.agentKeySecrets[1]!, 'new')
    const proxy = await closedProxy(t)
    await openAi(`${proxy.url}/v1`, key).chat.completions.create(CHAT)
    t.equal((await proxy.get('/sessions/new')).num_turns, 1, 'created with the older secret')
    const strict = await closedProxy(t, { strictSessions: true, db: 'memory' })
    const error = await getRejection(openAi(`${strict.url}/v1`, key).chat.completions.create(CHAT))
    t.ok(error instanceof OpenAI.NotFoundError)
  },
)

t.test(
  'the SDKs raise their own errors: AuthenticationError for 401, PermissionDeniedError for 403',
  async (t) => {
    const proxy = await closedProxy(t)
    const key = await getKey(proxy, 's')
    for (const [sdkKey, status] of [
      ['sk-none', 401],
      [KEYS.agentKeySecrets[0]!, 401],
      [await getKey(proxy, 'other'), 403],
      [KEYS.workerKeys[0]!, 403],
    ] as const) {
      const [openAiError, anthropicError] =
        status === 401
          ? [OpenAI.AuthenticationError, Anthropic.AuthenticationError]
          : [OpenAI.PermissionDeniedError, Anthropic.PermissionDeniedError]
      const code = status === 401 ? 'unauthorized' : 'forbidden'
      const fromChat = await getRejection(openAi(proxy.baseUrl('s'), sdkKey).chat.completions.create(CHAT))
      t.ok(fromChat instanceof openAiError)
      t.match(fromChat, { status, code })
      const fromMessages = await getRejection(anthropic(`${proxy.url}/s`, sdkKey).messages.create(CHAT))
      t.ok(fromMessages instanceof anthropicError)
      t.match(fromMessages, { status, error: { error: { details: { error_code: code } } } })
    }
    await t.resolves(openAi(proxy.baseUrl('s'), key).chat.completions.create(CHAT))
    t.equal((await proxy.get('/sessions/s')).num_turns, 1, 'rejected requests are not recorded')
  },
)

t.test('an agent cannot affect another session, its own reward, or the proxy', async (t) => {
  const proxy = await closedProxy(t)
  const key = await getKey(proxy, 'mine')
  await getKey(proxy, 'other')
  const reply = await openAi(proxy.baseUrl('other'), await getKey(proxy, 'other')).responses.create({
    model: 'embedded',
    input: 'secret',
  })
  const getStatus = async (method: string, path: string, body?: string) => {
    const headers = { authorization: `Bearer ${key}`, 'x-session-id': 'other' }
    const response = await fetch(proxy.url + path, { method, headers, ...(body !== undefined && { body }) })
    return response.status
  }
  for (const [method, path, body, status = 403] of [
    ['GET', '/sessions'],
    ['GET', '/sessions/mine'],
    ['GET', '/sessions/other'],
    ['HEAD', '/sessions/other'],
    ['GET', '/sessions/mine/trajectories'],
    ['POST', '/sessions/mine/reward', '{"reward":1}'],
    ['POST', '/sessions/mine/complete'],
    ['POST', '/sessions/mine/reset'],
    ['DELETE', '/sessions/other'],
    ['POST', '/sessions', '{}'],
    ['POST', '/admin/pause'],
    ['GET', '/openapi.json'],
    // The same paths, disguised.
    ['GET', '/sessions/oth%65r'],
    ['POST', '/oth%65r/v1/chat/completions', JSON.stringify(CHAT)],
    ['POST', '/sessions/other/v1/chat/completions', JSON.stringify(CHAT)],
    ['POST', '/v1/chat/completions/other', JSON.stringify(CHAT)],
    ['GET', `/other/v1/responses/${reply.id}`],
    ['GET', `/mine/v1/responses/${reply.id}`, undefined, 404],
    ['GET', `/v1/responses/${reply.id}`, undefined, 404],
    [
      'POST',
      '/v1/responses',
      JSON.stringify({ model: 'm', input: 'x', previous_response_id: reply.id }),
      404,
    ],
    ['GET', '//sessions/other', undefined, 404],
    ['GET', '/Sessions/other', undefined, 404],
    ['GET', '/mine/v1/..%2f..%2fsessions/other', undefined, 404],
  ] as [string, string, string?, number?][]) {
    t.equal(await getStatus(method, path, body), status, `${method} ${path}`)
  }
  t.match(await proxy.get('/sessions/mine'), { reward: null, status: 'active', num_turns: 0 })
  t.match(await proxy.get('/sessions/other'), { num_turns: 1 })
})

for (const isTrusted of [false, true]) {
  const title = isTrusted
    ? 'an agent of a session with trust_agent declares the role and retry count of its requests'
    : 'an agent with a key declares nothing about its turns: neither a retry nor a side request removes a turn from the rows'
  t.test(title, async (t) => {
    const proxy = await startProxy(t, KEYS)
    const { agent_key: key } = await proxy.post('/sessions/s', { trust_agent: isTrusted })
    const sendRequest = async (content: string, headers: Record<string, string>, apiKey = key) => {
      const openai = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey, maxRetries: 0 })
      const body = { model: 'embedded', messages: [{ role: 'user' as const, content }], max_tokens: 5 }
      await openai.chat.completions.create(body, { headers })
    }
    // Two samples: the retry could be of either, so that it is sampled again.
    await sendRequest('One.', {})
    await sendRequest('One.', {})
    await sendRequest('One.', { 'x-stainless-retry-count': '1' })
    await sendRequest('Two.', { 'x-llm-proxy-line': 'side' })
    await sendRequest('Three.', { 'user-agent': 'claude-code/2', 'x-claude-code-request-class': 'auxiliary' })
    const { trust_agent: trusted, turns } = await proxy.get('/sessions/s')
    t.equal(trusted, isTrusted)
    t.same(
      turns.map((turn: { retry_count: number }) => turn.retry_count),
      isTrusted ? [0, 0, 1, 0, 0] : [0, 0, 0, 0, 0],
    )
    const expected = isTrusted ? { superseded: 1, side: 2 } : { superseded: 0, side: 0 }
    t.match((await proxy.get('/sessions/s/trajectories')).excluded_turns, expected)
    await sendRequest('Four.', { 'x-llm-proxy-line': 'side' }, KEYS.adminKeys[0])
    const { excluded_turns: excluded } = await proxy.get('/sessions/s/trajectories')
    t.equal(excluded.side, expected.side + 1, 'metadata with an admin key is trusted')
  })
}

t.test('an unauthenticated request is rejected before its body is read', { timeout: 20_000 }, async (t) => {
  const proxy = await closedProxy(t)
  for (const path of ['/sessions', '/s/v1/chat/completions', '/nothing/here']) {
    const { promise: never } = Promise.withResolvers<void>()
    const body = new ReadableStream({
      start: (controller) => controller.enqueue(Buffer.alloc(1000)),
      pull: () => never,
    })
    const response = await fetch(proxy.url + path, { method: 'POST', body, duplex: 'half' } as RequestInit)
    t.equal(response.status, 401, path)
    t.equal(response.headers.get('www-authenticate'), 'Bearer realm="llm-proxy"')
  }
})

t.test('probes need no key and reveal little; an admin sees the rest', async (t) => {
  const proxy = await closedProxy(t)
  const getStatus = async (headers: Record<string, string>) =>
    (await fetch(`${proxy.url}/health`, { headers })).json()
  const publicHealth = { status: 'ok', mode: 'local', connected_workers: 0 }
  t.same(await getStatus({}), publicHealth)
  t.same(await getStatus({ 'x-api-key': 'wrong' }), publicHealth)
  t.same(await getStatus({ 'x-api-key': await getKey(proxy, 's') }), publicHealth)
  t.match(await proxy.get('/health'), { ...publicHealth, engines: [{}], version: String })
  t.equal((await runLlmProxy(['health', '--url', proxy.url])).code, 0)
})

t.test('an admin key sends requests in any session that it names', async (t) => {
  const proxy = await closedProxy(t)
  await openAi(proxy.baseUrl('s'), KEYS.adminKeys[1]!).chat.completions.create(CHAT)
  t.equal((await proxy.get('/sessions/s')).num_turns, 1)
  await t.rejects(openAi(`${proxy.url}/v1`, KEYS.adminKeys[1]!).chat.completions.create(CHAT), {
    status: 400,
    message: /names no session/,
  })
})

t.test('the sessions commands read a proxy with keys with an admin key', async (t) => {
  const proxy = await closedProxy(t)
  await getKey(proxy, 'listed')
  const list = ['sessions', 'list', '--url', proxy.url]
  t.match(await runLlmProxy(list), { code: 1, stderr: /needs a view or admin key.*give --admin-key/ })
  t.match(await runLlmProxy([...list, '--admin-key', KEYS.workerKeys[0]!]), {
    code: 1,
    stderr: /--admin-key/,
  })
  const env = { LLM_PROXY_ADMIN_KEY: KEYS.adminKeys.join(',') }
  t.match(await runLlmProxy(list, { env }), { code: 0, stdout: /listed/ })
})

function startWorker(
  t: Test,
  proxyUrl: string,
  apiKeys: string[],
  logged: string[] = [],
): InferenceWorkerClient {
  const worker = new InferenceWorkerClient({
    proxyUrls: [proxyUrl],
    workerId: 'w',
    backend: new CountingBackend(),
    maxConcurrency: 1,
    logger: { ...silentLogger, error: (fields, message) => logged.push(JSON.stringify(fields) + message) },
    random: () => 0,
    apiKeys,
  })
  t.teardown(() => worker.stop(AbortSignal.abort()))
  worker.start()
  return worker
}

t.test('a worker connects with a worker key, and with the next one when the first is rejected', async (t) => {
  const proxy = await startRelayProxy(t, KEYS)
  const logged: string[] = []
  startWorker(t, proxy.url, ['a-key-of-the-future', KEYS.workerKeys[1]!], logged)
  await untilWorkers(proxy, 'w')
  t.equal(logged.length, 1)
  t.match(
    logged[0],
    /proxy_rejected_worker.*the proxy rejects the worker key: HTTP 401: pass a valid key with --worker-key/,
  )
  t.notMatch(logged[0], 'a-key-of-the-future')
})

t.test('a worker with a rejected key reports it and retries', async (t) => {
  const proxy = await startRelayProxy(t, KEYS)
  for (const keys of [[], ['an-unknown-worker-key'], KEYS.adminKeys]) {
    const rejected = startWorker(t, proxy.url, keys)
    const [{ reason }] = await once(rejected, 'disconnected')
    t.match(reason, keys === KEYS.adminKeys ? /^HTTP 403/ : /^HTTP 401/)
    await once(rejected, 'disconnected')
    t.notOk(rejected.isConnected)
    await rejected.stop(AbortSignal.abort())
  }
})

t.test('a worker accepts a key in its URL', async (t) => {
  const proxy = await startRelayProxy(t, KEYS)
  startWorker(t, proxy.url.replace('//', `//worker:${KEYS.workerKeys[0]}@`), [])
  await untilWorkers(proxy, 'w')
})

t.test('an agent with many concurrent requests waits for one to end, and others do not', async (t) => {
  const proxy = await startRelayProxy(t, { ...KEYS, agentCallLimit: 2 })
  const [key, other] = [await getKey(proxy, 's'), await getKey(proxy, 'other')]
  const running = new AbortController()
  const waiting = [1, 2].map(() =>
    getRejection(openAi(proxy.baseUrl('s'), key).chat.completions.create(CHAT, { signal: running.signal })),
  )
  await until(async () => (await proxy.get('/health')).queued === 2)
  const error = await getRejection(openAi(proxy.baseUrl('s'), key).chat.completions.create(CHAT))
  t.ok(error instanceof OpenAI.RateLimitError)
  t.match(error, { status: 429, code: 'too_many_calls', type: 'rate_limit_error' })
  t.ok(
    (await getRejection(anthropic(`${proxy.url}/s`, key).messages.create(CHAT))) instanceof
      Anthropic.RateLimitError,
  )
  await t.resolves(openAi(proxy.baseUrl('other'), other).models.list())
  await t.resolves(openAi(proxy.baseUrl('s'), KEYS.adminKeys[0]!).models.list())
  running.abort()
  await Promise.all(waiting)
  await until(() =>
    openAi(proxy.baseUrl('s'), key)
      .models.list()
      .catch(() => undefined),
  )
})

t.test('without keys on a public address, serve requires --open and prints a warning first', async (t) => {
  const reached = ['serve', '--host', '0.0.0.0', '--port', '0', '--db', 'memory']
  t.match(await runLlmProxy(reached), {
    code: 2,
    stdout: '',
    stderr: /^llm-proxy: refusing to listen on .* --open\n$/,
  })
  const child = startLlmProxy([...reached, '--open'])
  t.teardown(() => killChild(child))
  const [, first] = await waitForOutput(child.stderr, /^(.*)\n/)
  const { level, event, note } = JSON.parse(first!)
  t.match({ level, event }, { level: 'warn', event: 'configuration_note' })
  t.match(note, /^Every client that reaches 0\.0\.0\.0 can read, change and delete all sessions/)
  t.match(note, 'No engine was named', 'and everything else in the first line')
})

t.test('the placeholders of a deployment file are rejected at the start', async (t) => {
  for (const name of ['ADMIN_KEY', 'WORKER_KEY', 'AGENT_KEY_SECRET']) {
    const env = { LLM_PROXY_ADMIN_KEY: KEYS.adminKeys[0]!, [`LLM_PROXY_${name}`]: 'CHANGE-ME-please' }
    const { code, stderr } = await runLlmProxy(['serve', '--port', '0', '--db', 'memory'], { env })
    t.equal(code, 2)
    t.match(stderr, new RegExp(`^llm-proxy: LLM_PROXY_${name} still has its placeholder`))
  }
})

t.test('an agent with a key cannot control the engine in any dialect; an admin can', async (t) => {
  const proxy = await closedProxy(t)
  const key = await getKey(proxy, 's')
  const sendRequest = async (path: string, body: object, bearer = key) => {
    const response = await fetch(`${proxy.url}/s/v1/${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${bearer}`, 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'embedded', max_tokens: 1, ...body }),
    })
    return { status: response.status, text: await response.text() }
  }
  const { messages } = CHAT
  const bodies: [string, object][] = [
    ['chat/completions', { messages, priority: -1 }],
    ['completions', { prompt: 'hi', priority: -1 }],
    ['responses', { input: 'hi', max_tokens: undefined, priority: -1 }],
    ['messages', { messages, priority: -1 }],
  ]
  for (const [path, body] of bodies) {
    const rejected = await sendRequest(path, body)
    t.equal(rejected.status, 403, path)
    t.match(rejected.text, /An agent may not set 'priority'/)
    t.equal((await sendRequest(path, body, KEYS.adminKeys[0])).status, 200, path)
  }
  const extra = { client_metadata: { installation: 'a' }, access_programs: [], context_management: {} }
  for (const [path, body] of bodies) {
    const { status, text } = await sendRequest(path, { ...body, ...extra, priority: undefined })
    t.equal(status, 200, `${path}: fields of other services are dropped, ${text}`)
  }
  const { turns } = await proxy.get('/sessions/s')
  t.match(turns.at(-4).annotations.request_fields, { client_metadata: { installation: 'a' } })
  const url = 'http://169.254.169.254/latest/meta-data'
  const images: [string, object][] = [
    [
      'chat/completions',
      { messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url } }] }] },
    ],
    ['responses', { input: [{ role: 'user', content: [{ type: 'input_image', image_url: url }] }] }],
    ...['messages', 'messages/count_tokens'].map((path): [string, object] => [
      path,
      { messages: [{ role: 'user', content: [{ type: 'image', source: { type: 'url', url } }] }] },
    ]),
  ]
  for (const [path, body] of images) {
    const rejected = await sendRequest(path, {
      ...body,
      ...(path === 'responses' && { max_tokens: undefined }),
    })
    t.equal(rejected.status, 403, path)
    t.match(rejected.text, /data: URLs/)
  }
  const allowing = await closedProxy(t, { agentFields: ['priority'], db: 'memory' })
  const reply = await openAi(allowing.baseUrl('s'), key).chat.completions.create({
    ...CHAT,
    ...{ priority: -1 },
  })
  t.equal(reply.object, 'chat.completion')
})

t.test('an agent with a key cannot fill the log with its failures', async (t) => {
  const lines: string[] = []
  // Without audit lines.
  const logFailure = (fields: object, message: string) => void ('code' in fields && lines.push(message))
  const proxy = await startProxy(t, KEYS, {
    ...silentLogger,
    info: logFailure,
    warn: logFailure,
    error: logFailure,
  })
  const send = async (session: string) => {
    const headers = { authorization: `Bearer ${await getKey(proxy, session)}` }
    const response = await fetch(`${proxy.baseUrl(session)}/chat/completions`, {
      method: 'POST',
      headers,
      body: '{',
    })
    return response.status
  }
  lines.length = 0
  for (let count = 0; count < 40; count += 1) t.equal(await send('loud'), 400)
  t.equal(lines.length, 10)
  await send('quiet')
  t.equal(lines.length, 11, 'failures of another agent are logged')
})
