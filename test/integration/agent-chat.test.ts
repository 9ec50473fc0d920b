/** The official OpenAI client, unmodified, with a session's base URL. */
import { once } from 'node:events'
import { connect } from 'node:net'
import { inspect } from 'node:util'
import { gzipSync, zstdCompressSync } from 'node:zlib'
import OpenAI from 'openai'
import { makeParseableResponseFormat } from 'openai/lib/parser'
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions'
import t, { type Test } from 'tap'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { createAgent } from '../helpers/relay-rig.ts'
import { completeResponse, respond } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { until } from '../helpers/until.ts'
import { getRejection } from './get-rejection.ts'

const calculator = {
  type: 'function' as const,
  function: {
    name: 'calculator',
    description: 'Evaluates an arithmetic expression',
    parameters: { type: 'object', properties: { expression: { type: 'string' } }, required: ['expression'] },
  },
}

const question: ChatCompletionMessageParam[] = [{ role: 'user', content: 'What is 12 * 34?' }]

async function getOnlyTurn(t: Test, proxy: TestProxy, sessionId: string) {
  const session = await proxy.get(`/sessions/${sessionId}`)
  t.equal(session.turns.length, 1)
  return session.turns[0]
}

t.test('a response that is not streamed: the session shows what the agent received', async (t) => {
  const proxy = await startProxy(t)
  const response = await createAgent(proxy, 'a').chat.completions.create({
    model: 'embedded',
    messages: question,
    seed: 1,
    max_tokens: 20,
  })
  const turn = await getOnlyTurn(t, proxy, 'a')
  const { message, finish_reason } = response.choices[0]!
  t.equal(turn.status, 'completed')
  t.equal(turn.completion_text, message.content)
  t.equal(turn.finish_reason, finish_reason)
  t.same(turn.request_messages, question)
  t.equal(turn.completion_token_ids.length, response.usage?.completion_tokens)
  t.equal(turn.completion_logprobs.length, turn.completion_token_ids.length)
  t.equal(turn.prompt_token_ids.length, response.usage?.prompt_tokens)
  t.equal(turn.exact, true)
  t.equal(response.choices[0]?.logprobs, null, 'the agent did not request logprobs')
  t.notOk('token_ids' in response.choices[0]!, 'the agent did not request token ids')
})

t.test('a streamed response: the chunks add up to what the session shows', async (t) => {
  const proxy = await startProxy(t)
  const stream = await createAgent(proxy, 'a').chat.completions.create({
    model: 'embedded',
    messages: question,
    seed: 2,
    max_tokens: 30,
    stream: true,
    stream_options: { include_usage: true },
    logprobs: true,
    // vLLM's field, as a trainer's own agent would send it.
    ...{ return_token_ids: true },
  })
  let text = ''
  let finish: string | null = null
  let usage: OpenAI.CompletionUsage | null | undefined
  const ids: number[] = []
  const logprobs: number[] = []
  for await (const chunk of stream) {
    const choice = chunk.choices[0]
    text += choice?.delta.content ?? ''
    finish = choice?.finish_reason ?? finish
    usage = chunk.usage ?? usage
    ids.push(...((choice as { token_ids?: number[] } | undefined)?.token_ids ?? []))
    logprobs.push(...(choice?.logprobs?.content ?? []).map((entry) => entry.logprob))
  }
  const turn = await getOnlyTurn(t, proxy, 'a')
  t.equal(turn.completion_text, text)
  t.equal(turn.finish_reason, finish)
  t.same(turn.usage, usage)
  t.same(turn.completion_token_ids, ids)
  t.same(turn.completion_logprobs, logprobs)
})

t.test('a tool loop through the stream() helper: each turn is recorded with its tool calls', async (t) => {
  const proxy = await startProxy(t)
  const openai = createAgent(proxy, 'a')
  const messages = [...question]
  for (let turn = 0; turn < 5; turn++) {
    const stream = openai.chat.completions.stream({ model: 'embedded', messages, tools: [calculator] })
    const { message, finish_reason } = (await stream.finalChatCompletion()).choices[0]!
    messages.push(message)
    if (finish_reason !== 'tool_calls') break
    for (const call of message.tool_calls ?? []) {
      if (call.type !== 'function') throw new Error(`a ${call.type} call`)
      t.same(JSON.parse(call.function.arguments), { expression: '12 * 34' })
      messages.push({ role: 'tool', tool_call_id: call.id, content: '408' })
    }
  }
  const { turns } = await proxy.get('/sessions/a')
  t.equal(turns.length, 2)
  t.equal(turns[0].finish_reason, 'tool_calls')
  t.same(turns[0].tool_calls, (messages[1] as { tool_calls: unknown }).tool_calls)
  t.same(turns[0].tools, [calculator])
  t.equal(turns[1].completion_text, messages[3]?.content)
  t.match(turns[1].completion_text, /408/)
  const { trajectories } = await proxy.get('/sessions/a/trajectories')
  t.equal(trajectories.length, 1, 'the second prompt continues the first completion')
  const sampled = turns.flatMap((turn: { completion_token_ids: number[] }) => turn.completion_token_ids)
  const row = trajectories[0]
  t.same(
    row.response_ids.filter((_: number, i: number) => row.response_mask[i] === 1),
    sampled,
  )
})

t.test('the tool runner runs its loop, streamed and not', async (t) => {
  const proxy = await startProxy(t)
  for (const stream of [false, true]) {
    const bodies: unknown[] = []
    const { name, description, parameters } = calculator.function
    const tool = {
      type: 'function' as const,
      function: {
        name,
        description,
        parameters,
        parse: JSON.parse,
        function: (args: object) => {
          bodies.push(args)
          return '408'
        },
      },
    }
    const { completions } = createAgent(proxy, `s-${stream}`).chat
    const body = { model: 'embedded', messages: question, tools: [tool] }
    const runner = stream ? completions.runTools({ ...body, stream }) : completions.runTools(body)
    t.match(await runner.finalContent(), /408/)
    t.same(bodies, [{ expression: '12 * 34' }])
    t.equal((await proxy.get(`/sessions/s-${stream}/trajectories`)).trajectories.length, 1)
  }
})

t.test('structured output reaches the engine unchanged, and the client parses it', async (t) => {
  const api = await startSessionsApi(t)
  api.backend.script = () =>
    respond([
      completeResponse()[0]!,
      { type: 'delta', content: '{"city":"Rome"}' },
      completeResponse().at(-1)!,
    ])
  const schema = { type: 'object', properties: { city: { type: 'string' } } }
  const format = { type: 'json_schema' as const, json_schema: { name: 'place', schema, strict: true } }
  const openai = new OpenAI({ baseURL: `${api.url}/a/v1`, apiKey: 'none', maxRetries: 0 })
  const completion = await openai.chat.completions.parse({
    model: 'x',
    messages: question,
    response_format: makeParseableResponseFormat(format, JSON.parse),
  })
  t.same(completion.choices[0]?.message.parsed, { city: 'Rome' })
  t.match(api.backend.requests[0]?.body, { response_format: format })
})

t.test(
  'an agent that aborts its stream ends the engine request before its end, and the turn is marked',
  async (t) => {
    const proxy = await startProxy(t)
    const stream = createAgent(proxy, 'a').chat.completions.stream({
      model: 'embedded',
      messages: [{ role: 'user', content: 'tell me everything' }],
      ...{ ignore_eos: true, max_tokens: 30_000 },
    })
    const aborted = getRejection(stream.done())
    await new Promise<void>((resolve) => stream.once('content', () => resolve()))
    stream.abort()
    t.ok((await aborted) instanceof OpenAI.APIUserAbortError)
    const turn = await until(async () => {
      const [last] = (await proxy.get('/sessions/a')).turns
      return last?.status !== 'open' && last
    })
    t.equal(turn.status, 'aborted', 'before its token limit')
    t.equal(turn.error.code, 'agent_gone')
    t.ok(turn.completion_token_ids.length > 0, 'the tokens so far are recorded')
    const { engines } = await proxy.get('/health')
    t.equal(engines[0].in_flight, 0)
  },
)

t.test('every form of the base URL leads to the same session', async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/sessions', { session_id: 'a' })
  const sendRequest = (baseURL: string, apiKey: string) =>
    new OpenAI({ baseURL, apiKey, maxRetries: 0 }).chat.completions.create({
      model: 'x',
      messages: question,
      max_tokens: 1,
    })
  await sendRequest(`${proxy.url}/a/v1`, 'none')
  await sendRequest(`${proxy.url}/sessions/a/v1`, 'none')
  await sendRequest(`${proxy.url}/v1`, 'a')
  const body = { model: 'x', messages: question, max_tokens: 1 }
  t.match(await proxy.post('/v1/chat/completions/a', body), { object: 'chat.completion' })
  const byHeader = await fetch(`${proxy.url}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'x-api-key': 'a' },
    body: JSON.stringify(body),
  })
  t.equal(byHeader.status, 200)
  t.equal((await proxy.get('/sessions/a')).turns.length, 5)
})

t.test('a request without a session gets a new one, and its key creates none', async (t) => {
  const proxy = await startProxy(t)
  const openai = new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey: 'EMPTY', maxRetries: 0 })
  const sendRequest = async () => {
    const response = openai.chat.completions.create({ model: 'x', messages: question, max_tokens: 1 })
    return (await response.withResponse()).response.headers.get('x-session-id')
  }
  const sessionIds = [await sendRequest(), await sendRequest()]
  const { sessions } = await proxy.get('/sessions')
  t.strictSame(sessions.map((session: { session_id: string }) => session.session_id).reverse(), sessionIds)
  t.match(sessions[0], { num_turns: 1, metadata: { made_for: 'a call that named no session' } })
})

t.test('where sessions must be created first, a request without one is rejected', async (t) => {
  const proxy = await startProxy(t, { strictSessions: true })
  const openai = new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey: 'EMPTY', maxRetries: 0 })
  t.match(await getRejection(openai.chat.completions.create({ model: 'x', messages: question })), {
    status: 401,
    message: /session_id/,
  })
  t.same((await proxy.get('/sessions')).sessions, [])
})

t.test('Completions accept text or token ids, and report ids and logprobs on request', async (t) => {
  const proxy = await startProxy(t)
  const openai = createAgent(proxy, 'a')
  const full = await openai.completions.create({
    model: 'x',
    prompt: 'Once upon',
    max_tokens: 5,
    seed: 1,
    logprobs: 1,
  })
  const turn = await getOnlyTurn(t, proxy, 'a')
  t.equal(turn.completion_text, full.choices[0]?.text)
  t.equal(turn.params.prompt, 'Once upon')
  t.same(turn.request_messages, [])
  t.same(turn.completion_logprobs, full.choices[0]?.logprobs?.token_logprobs)
  const second = createAgent(proxy, 'b')
  const stream = await second.completions.create({
    model: 'x',
    prompt: turn.prompt_token_ids,
    max_tokens: 5,
    seed: 1,
    stream: true,
  })
  let text = ''
  for await (const chunk of stream) text += chunk.choices[0]?.text ?? ''
  t.equal(
    text,
    full.choices[0]?.text,
    'the same prompt, as ids and in a stream, samples the same with the same seed',
  )
})

t.test('models are listed and found', async (t) => {
  const proxy = await startProxy(t)
  const openai = createAgent(proxy, 'a')
  t.same(
    (await openai.models.list()).data.map((model) => model.id),
    ['embedded'],
  )
  t.match(await openai.models.retrieve('embedded'), { id: 'embedded', object: 'model' })
  t.match(await getRejection(openai.models.retrieve('gpt-9')), { status: 404 })
})

t.test("an invalid request is rejected in the API's format, and nothing is recorded", async (t) => {
  const proxy = await startProxy(t, { maxBodyBytes: 2_000 })
  const openai = createAgent(proxy, 'a')
  const create = (body: object) =>
    openai.chat.completions.create(body as OpenAI.ChatCompletionCreateParamsNonStreaming)
  t.match(await getRejection(create({ model: 'x' })), {
    status: 400,
    param: 'messages',
    type: 'invalid_request_error',
  })
  t.match(await getRejection(create({ messages: [{ role: 'user', content: 1 }] })), {
    status: 400,
    param: 'messages.0.content',
  })
  t.match(await getRejection(create({ messages: question, n: 129 })), {
    status: 400,
    param: 'n',
    code: 'invalid_request',
  })
  t.match(await getRejection(create({ messages: [{ role: 'user', content: 'x'.repeat(3_000) }] })), {
    status: 413,
    code: 'body_too_large',
  })
  const broken = await fetch(`${proxy.baseUrl('a')}/chat/completions`, {
    method: 'POST',
    body: '{"messages": [',
  })
  t.equal(broken.status, 400)
  t.match(await broken.json(), { error: { code: 'invalid_json', type: 'invalid_request_error' } })
  const reserved = await fetch(`${proxy.url}/admin/v1/chat/completions`, { method: 'POST', body: '{}' })
  t.match([reserved.status, await reserved.json()], [400, { error: { param: 'session_id' } }])
  t.match(await proxy.get('/a/v1/nothing'), { error: { code: 'route_not_found' } })
  t.same((await proxy.get('/sessions')).sessions, [])
})

t.test('a body that is not JSON is rejected clearly, and its content is in no log', async (t) => {
  const lines: string[] = []
  const log = (fields: object, message: string) => {
    lines.push(inspect(fields), message)
  }
  const proxy = await startProxy(t, {}, { debug: log, info: log, warn: log, error: log })
  const post = async (body: string | Uint8Array<ArrayBuffer>, headers = {}) => {
    const response = await fetch(`${proxy.baseUrl('a')}/chat/completions`, { method: 'POST', body, headers })
    return { status: response.status, ...((await response.json()) as { error: object }).error }
  }
  const request = JSON.stringify({ messages: question })
  t.match(await post(gzipSync(request), { 'content-encoding': 'gzip' }), { status: 200 })
  t.match(await post(zstdCompressSync(request), { 'content-encoding': 'zstd' }), { status: 200 })
  t.match(await post(request, { 'content-encoding': 'gzip' }), { status: 400, code: 'invalid_request' })
  t.match(await post(request, { 'content-encoding': 'lz4' }), { status: 415, code: 'unsupported' })
  t.match(await post(Buffer.from(request.replace('What', '\xff\xfe'), 'latin1')), {
    status: 400,
    code: 'invalid_json',
    message: /UTF-8/,
  })
  t.match(await post(''), { status: 400, message: /body must be object/ })
  t.match(await post('{"temperature":NaN}'), { status: 400, param: 'temperature' })
  t.match(await post('{"messages":secret}'), { status: 400, code: 'invalid_json', message: /token 's'/ })
  t.match(await post(`{"messages":${'['.repeat(50_000)}`), { status: 400, code: 'invalid_json' })
  t.match(await post(request, { 'content-encoding': 'identity' }), { status: 200 })
  t.notMatch(lines.join('\n'), 'secret')
})

t.test(
  'an agent that sends all of a body that is too large, and then reads, receives the error',
  async (t) => {
    const proxy = await startProxy(t, { maxBodyBytes: 2_000 })
    const body = 'x'.repeat(30_000_000)
    for (const framed of [
      `content-length: ${body.length}\r\n\r\n${body}`,
      `transfer-encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\n\r\n`,
    ]) {
      const agent = connect(Number(new URL(proxy.url).port), '127.0.0.1')
      t.teardown(() => agent.destroy())
      agent.pause()
      const head = 'POST /a/v1/chat/completions HTTP/1.1\r\nhost: proxy\r\n'
      await new Promise<void>((resolve, reject) => {
        agent.once('error', reject)
        agent.write(head + framed, () => resolve())
      })
      agent.resume()
      const [response] = await once(agent, 'data')
      t.match(String(response), /^HTTP\/1.1 413 .*body_too_large/s)
    }
  },
)

t.test("an invalid URL is rejected in the API's format", async (t) => {
  const proxy = await startProxy(t)
  t.match(await proxy.get('/a%zz/v1/models'), {
    error: { code: 'invalid_request', type: 'invalid_request_error' },
  })
  t.match(await proxy.get(`/${'a'.repeat(3_000)}/v1/models`), { error: { code: 'invalid_request' } })
  t.match(await proxy.get('/sessions/a%zz'), { code: 'invalid_request', detail: /url/ })
})

t.test('an agent that disconnects in the middle of its request is not an error', async (t) => {
  const failures: object[] = []
  const { promise: reported, resolve: notify } = Promise.withResolvers<object>()
  const fail = (fields: object) => {
    failures.push(fields)
  }
  const proxy = await startProxy(t, {}, { debug() {}, info: reportFields(notify), warn: fail, error: fail })
  const agent = connect(Number(new URL(proxy.url).port), '127.0.0.1')
  agent.write('POST /a/v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ncontent-length: 100\r\n\r\n{"mess')
  agent.end()
  t.match(await reported, { code: 'agent_gone', session_id: 'a' })
  t.same(
    failures.filter((fields) => 'code' in fields),
    [],
  )
})

/** Returns a logger function that forwards failures of requests. */
function reportFields(notify: (fields: object) => void) {
  return (fields: object) => {
    if ('code' in fields) notify(fields)
  }
}

t.test('after its end a session accepts no requests, and SDKs do not retry', async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/sessions/a')
  await proxy.post('/sessions/a/complete')
  let attempts = 0
  const countingFetch: typeof fetch = (...args) => {
    attempts += 1
    return fetch(...args)
  }
  const openai = new OpenAI({
    baseURL: proxy.baseUrl('a'),
    apiKey: 'none',
    maxRetries: 5,
    fetch: countingFetch,
  })
  t.match(await getRejection(openai.chat.completions.create({ model: 'x', messages: question })), {
    status: 409,
    code: 'session_ended',
  })
  t.equal(attempts, 1)
})

t.test('with strict sessions a request for an unknown session is a 404', async (t) => {
  const proxy = await startProxy(t, { strictSessions: true })
  const sendRequest = (sessionId: string) =>
    createAgent(proxy, sessionId).chat.completions.create({ model: 'x', messages: question, max_tokens: 1 })
  t.match(await getRejection(sendRequest('unknown')), { status: 404, code: 'session_not_found' })
  await proxy.post('/sessions/known')
  t.match(await sendRequest('known'), { object: 'chat.completion' })
})

t.test('a proxy with the fallback engine reports it in its health and in each session', async (t) => {
  const fallback = await startProxy(t)
  await createAgent(fallback, 'a').chat.completions.create({ model: 'x', messages: question, max_tokens: 1 })
  t.match((await fallback.get('/health')).notes, [/No engine was named/])
  t.match((await fallback.get('/sessions/a')).metadata, { llm_proxy_note: /No engine was named/ })
  const embedded = await startProxy(t, { engineKind: 'embedded', db: 'memory' })
  await embedded.post('/sessions/a')
  t.same((await embedded.get('/sessions/a')).metadata, {})
})

t.test('a stop closes idle connections and ends long polls at once', async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/sessions/a')
  const socket = connect(Number(new URL(proxy.url).port), '127.0.0.1')
  t.teardown(() => socket.destroy())
  await once(socket, 'connect')
  const waiting = proxy.get('/sessions/a/wait?timeout_s=60')
  await proxy.get('/health')
  const startedAt = performance.now()
  await proxy.server.stop(10_000)
  t.ok(performance.now() - startedAt < 4_000)
  t.match(await waiting, { code: 'shutting_down' })
})
