/** The official OpenAI client, unmodified, and Codex's requests, with a session's Responses routes. */
import fc from 'fast-check'
import OpenAI from 'openai'
import { makeParseableTextFormat } from 'openai/lib/parser'
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions'
import type {
  FunctionTool,
  Response as OpenAiResponse,
  ResponseInput,
} from 'openai/resources/responses/responses'
import t, { type Test } from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import type { GenerationEvent } from '../../src/protocol/canonical/events.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { completeResponse, respond, untilAborted } from '../helpers/scripted-backend.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { type SessionsApi, startSessionsApi } from '../helpers/sessions-api.ts'
import { limitRuns } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'
import { getRejection } from './get-rejection.ts'

const parameters = {
  type: 'object',
  properties: { expression: { type: 'string' } },
  required: ['expression'],
}
const calculator: FunctionTool = { type: 'function', name: 'calculator', parameters, strict: null }
const QUESTION = 'What is (2 + 3) * 4?'

function client({ url }: { url: string }, sessionId: string): OpenAI {
  return new OpenAI({ baseURL: `${url}/${sessionId}/v1`, apiKey: 'none', maxRetries: 0 })
}

/** Returns the calculator's results for the tool calls of a response. */
function getOutputs({ output }: Pick<OpenAiResponse, 'output'>): ResponseInput {
  return output.flatMap((item) => {
    if (item.type !== 'function_call') return []
    const { expression } = JSON.parse(item.arguments)
    const result = String(expression === '2 + 3' ? 5 : 20)
    return [{ type: 'function_call_output' as const, call_id: item.call_id, output: result }]
  })
}

/** Runs a conversation with the complete history in each request. */
async function converseWithItems(openai: OpenAI, stream: boolean): Promise<OpenAiResponse[]> {
  const input: ResponseInput = [{ role: 'user', content: QUESTION }]
  const responses: OpenAiResponse[] = []
  for (let turn = 0; turn < 5; turn++) {
    const body = { model: 'x', instructions: 'be brief', input, tools: [calculator], ...{ seed: turn } }
    const response = stream
      ? await openai.responses.stream(body).finalResponse()
      : await openai.responses.create(body)
    responses.push(response)
    input.push(...(response.output as ResponseInput), ...getOutputs(response))
    if (getOutputs(response).length === 0) break
  }
  return responses
}

/** Runs the same conversation through Chat Completions. */
async function converseWithChat(openai: OpenAI): Promise<void> {
  const messages: ChatCompletionMessageParam[] = [
    { role: 'system', content: 'be brief' },
    { role: 'user', content: QUESTION },
  ]
  const tools = [{ type: 'function' as const, function: { name: 'calculator', parameters } }]
  for (let turn = 0; turn < 5; turn++) {
    const { choices } = await openai.chat.completions.create({ model: 'x', messages, tools, seed: turn })
    const { message } = choices[0]!
    messages.push(message)
    for (const call of message.tool_calls ?? []) {
      if (call.type !== 'function') throw new Error(`a ${call.type} call`)
      const { expression } = JSON.parse(call.function.arguments)
      messages.push({ role: 'tool', tool_call_id: call.id, content: String(expression === '2 + 3' ? 5 : 20) })
    }
    if (!message.tool_calls) break
  }
}

/** Returns what a trainer sees of a session, without names and times. */
async function getTrainingView(proxy: TestProxy, sessionId: string) {
  const { turns } = await proxy.get(`/sessions/${sessionId}`)
  const { trajectories } = await proxy.get(`/sessions/${sessionId}/trajectories`)
  const fields = ['prompt_token_ids', 'completion_token_ids', 'completion_logprobs', 'finish_reason', 'exact']
  const rows = ['prompt_ids', 'response_ids', 'response_mask', 'response_logprobs', 'num_turns', 'exact']
  const pick = (names: string[]) => (object: Record<string, unknown>) => names.map((name) => object[name])
  return { turns: turns.map(pick(fields)), trajectories: trajectories.map(pick(rows)) }
}

t.test(
  'the same conversation through Chat and Responses gives the same ids, masks and logprobs',
  async (t) => {
    const proxy = await startProxy(t)
    await converseWithChat(client(proxy, 'chat'))
    const responses = await converseWithItems(client(proxy, 'items'), false)
    await converseWithItems(client(proxy, 'streamed'), true)
    const openai = client(proxy, 'linked')
    let input: ResponseInput = [{ role: 'user', content: QUESTION }]
    let previous: string | undefined
    for (let turn = 0; turn < responses.length; turn++) {
      const link = previous === undefined ? {} : { previous_response_id: previous }
      const body = { model: 'x', instructions: 'be brief', input, tools: [calculator], ...{ seed: turn } }
      const response = await openai.responses.create({ ...body, ...link })
      input = getOutputs(response)
      previous = response.id
    }
    const expected = await getTrainingView(proxy, 'chat')
    t.equal(expected.turns.length, 3)
    t.equal(expected.trajectories.length, 1, 'each prompt continues the completion before it')
    for (const sessionId of ['items', 'streamed', 'linked']) {
      t.strictSame(await getTrainingView(proxy, sessionId), expected, sessionId)
    }
    t.match(responses.at(-1)?.output_text, /20/)
  },
)

t.test('a response is found again, only in its session, unless it was not stored', async (t) => {
  const proxy = await startProxy(t)
  const openai = client(proxy, 'a')
  const body = { model: 'x', input: QUESTION, tools: [calculator], instructions: 'be brief' }
  const created = await openai.responses.create(body)
  const found = await openai.responses.retrieve(created.id)
  const { tools: _tools, ...rest } = created
  t.match(found, { ...rest, tools: [{ type: 'function', name: 'calculator', parameters }] })
  const unstored = await openai.responses.create({ ...body, store: false })
  const unknown = { status: 404, code: 'response_not_found' }
  t.match(await getRejection(openai.responses.retrieve(unstored.id)), unknown)
  t.match(await getRejection(openai.responses.retrieve('resp_none')), unknown)
  t.match(await getRejection(openai.responses.retrieve('else')), unknown)
  t.match(await getRejection(client(proxy, 'b').responses.retrieve(created.id)), unknown)
  const replayed = openai.responses.retrieve(created.id, { stream: true })
  t.match(await getRejection(replayed), { status: 400, code: 'unsupported' })
  const { turns } = await proxy.get('/sessions/a')
  t.equal(turns.length, 2, 'a response that is not stored for the agent is recorded nevertheless')
  const chat = await openai.chat.completions.create({
    model: 'x',
    messages: [{ role: 'user', content: 'hi' }],
  })
  const chatResponseId = chat.id.replace('chatcmpl-', 'resp_')
  t.match(
    await getRejection(openai.responses.retrieve(chatResponseId)),
    unknown,
    'a turn of another dialect is not a response',
  )
})

t.test('a request continues an earlier response, without its instructions', async (t) => {
  // Text only: a random sample may be a thought, and then the first item is not a message.
  const api = await startSessionsApi(t)
  const openai = client(api, 'a')
  const short = { model: 'x', max_output_tokens: 5 }
  const first = await openai.responses.create({ ...short, input: 'one', instructions: 'be brief' })
  const second = await openai.responses.create({ ...short, input: 'two', previous_response_id: first.id })
  const [item] = first.output
  await openai.responses.create({
    ...short,
    instructions: 'be long',
    input: [
      { role: 'user', content: 'one' },
      { type: 'item_reference', id: item?.id ?? '' },
      { role: 'user', content: 'two' },
    ],
  })
  const { turns } = (await api.call('GET', '/sessions/a')).body
  const history = [
    { role: 'user', content: 'one' },
    { role: 'assistant', content: 'hi there' },
    { role: 'user', content: 'two' },
  ]
  t.same(turns[1].request_messages, history)
  t.same(turns[2].request_messages, [{ role: 'system', content: 'be long' }, ...history])
  t.equal(second.previous_response_id, first.id)
  const unknown = { status: 404, code: 'response_not_found' }
  const continueFrom = (id: string) =>
    client(api, 'b').responses.create({ ...short, input: 'x', previous_response_id: id })
  t.match(await getRejection(continueFrom(first.id)), { ...unknown, param: 'previous_response_id' })
  const referring = openai.responses.create({ ...short, input: [{ type: 'item_reference', id: 'msg_x_0' }] })
  t.match(await getRejection(referring), { ...unknown, param: 'input.0.id' })
})

t.test('a request refers to items of many responses, which are read once', async (t) => {
  const api = await startSessionsApi(t)
  const openai = client(api, 'a')
  const read = { turns: 0, sessions: 0 }
  const { getTurn, readOutlines } = api.store
  api.store.getTurn = async (...turn) => {
    read.turns += 1
    return await getTurn.apply(api.store, turn)
  }
  const input: OpenAI.Responses.ResponseInputItem[] = []
  for (let turn = 0; turn < 6; turn += 1) {
    input.push({ role: 'user', content: `question ${turn}` })
    const { output } = await openai.responses.create({ model: 'x', input })
    input.push({ type: 'item_reference', id: output[0]!.id! })
  }
  t.equal(read.turns, 1 + 2 + 3 + 4, 'a few referenced turns are read separately')
  api.store.readOutlines = (sessionId) => {
    read.sessions += 1
    return readOutlines.call(api.store, sessionId)
  }
  await openai.responses.create({ model: 'x', input: [...input, { role: 'user', content: 'end' }] })
  t.same(read, { turns: 10, sessions: 1 })
  const { turns } = (await api.call('GET', '/sessions/a')).body
  const answers = turns[6].request_messages.filter(({ role }: Json) => role === 'assistant')
  t.same(
    answers,
    Array.from({ length: 6 }, () => ({ role: 'assistant', content: 'hi there' })),
  )
})

t.test('without a session a response id alone finds the session, unless that has a name', async (t) => {
  const api = await startSessionsApi(t)
  const bare = new OpenAI({ baseURL: `${api.url}/v1`, apiKey: 'EMPTY', maxRetries: 0 })
  const first = await bare.responses.create({ model: 'x', input: 'one' })
  const linked = bare.responses.create({ model: 'x', input: 'two', previous_response_id: first.id })
  const { data: second, response } = await linked.withResponse()
  const third = await bare.responses.create({ model: 'x', input: 'three', previous_response_id: second.id })
  const { sessions } = (await api.call('GET', '/sessions')).body
  t.match(sessions, [{ session_id: response.headers.get('x-session-id'), num_turns: 3 }])
  t.equal(sessions.length, 1, 'one session for all of the conversation')
  t.match(await bare.responses.retrieve(third.id), { id: third.id, previous_response_id: second.id })
  const other = await bare.responses.create({ model: 'x', input: 'one' })
  t.equal(
    (await api.call('GET', '/sessions')).body.sessions.length,
    2,
    'another conversation, another session',
  )
  t.equal((await bare.responses.retrieve(other.id)).id, other.id)

  const { response: referring } = await bare.responses
    .create({
      model: 'x',
      input: [
        { role: 'user', content: 'one' },
        { type: 'item_reference', id: first.output[0]!.id! },
        { role: 'user', content: 'two' },
      ],
    })
    .withResponse()
  t.equal(
    referring.headers.get('x-session-id'),
    response.headers.get('x-session-id'),
    'so does a reference to an item, which the AI SDK sends',
  )

  const unknown = { status: 404, code: 'response_not_found' }
  const named = await client(api, 'a').responses.create({ model: 'x', input: 'one' })
  t.match(await getRejection(bare.responses.retrieve(named.id)), unknown)
  const stolen = bare.responses.create({ model: 'x', input: 'two', previous_response_id: named.id })
  t.match(await getRejection(stolen), { ...unknown, param: 'previous_response_id' })
  t.match(await getRejection(client(api, 'a').responses.retrieve(first.id)), unknown)
})

t.test('structured output reaches the engine as a response format, and the client parses it', async (t) => {
  const api = await startSessionsApi(t)
  api.backend.script = () =>
    respond([
      completeResponse()[0]!,
      { type: 'delta', content: '{"city":"Rome"}' },
      completeResponse().at(-1)!,
    ])
  const schema = { type: 'object', properties: { city: { type: 'string' } } }
  const format = makeParseableTextFormat(
    { type: 'json_schema', name: 'place', schema, strict: true },
    JSON.parse,
  )
  const body = { model: 'x', input: 'where?', text: { format } }
  t.same((await client(api, 's').responses.parse(body)).output_parsed, { city: 'Rome' })
  t.same((await client(api, 's').responses.stream(body).finalResponse()).output_parsed, { city: 'Rome' })
  t.match(api.backend.requests[0]?.body, {
    response_format: { type: 'json_schema', json_schema: { name: 'place', schema, strict: true } },
  })
})

/** Fields of every Codex request, as in `ResponsesApiRequest` of codex-rs. */
const CODEX = {
  model: 'x',
  instructions: 'You are Codex.',
  tools: [
    {
      type: 'function',
      name: 'exec_command',
      description: 'Runs a command',
      strict: false,
      parameters: { type: 'object', properties: { cmd: { type: 'string' } } },
    },
    {
      type: 'custom',
      name: 'apply_patch',
      description: 'Edits files',
      format: { type: 'grammar', syntax: 'lark', definition: 'start: begin end' },
    },
    { type: 'local_shell' },
    { type: 'web_search', external_web_access: false },
    { type: 'namespace', name: 'mcp__git__', description: 'git', tools: [{ type: 'function', name: 'log' }] },
  ],
  tool_choice: 'auto',
  parallel_tool_calls: true,
  reasoning: { effort: 'medium', summary: 'auto' },
  store: false,
  stream: true,
  include: ['reasoning.encrypted_content'],
  prompt_cache_key: 'thread-1',
  client_metadata: { originator: 'codex_exec' },
}
const CODEX_INPUT = [
  { type: 'message', role: 'developer', content: [{ type: 'input_text', text: '<permissions/>' }] },
  { type: 'message', role: 'user', content: [{ type: 'input_text', text: '<environment_context/>' }] },
  { type: 'message', role: 'user', content: [{ type: 'input_text', text: 'fix the bug' }] },
]

// biome-ignore lint/suspicious/noExplicitAny: tests look into events of any shape
type Json = any

/** Agents get tool calls with the proxy's own ids, whatever ids the engine uses. */
const PROXY_CALL_ID = /^call_[0-9a-f]{24}$/

/** Sends a request as Codex does, and reads what its client reads: completed items, and the end. */
async function sendCodexTurn({ url }: SessionsApi, input: unknown[]): Promise<{ items: Json[]; last: Json }> {
  const response = await fetch(`${url}/s/v1/responses`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', accept: 'text/event-stream' },
    body: JSON.stringify({ ...CODEX, input }),
  })
  const frames = (await response.text()).split('\n\n').filter((frame) => frame !== '')
  const events = frames.map((frame) => JSON.parse(frame.split('\ndata: ')[1] ?? 'null'))
  const items = events
    .filter((event) => event.type === 'response.output_item.done')
    .map((event) => event.item)
  return { items, last: events.at(-1) }
}

t.test('a Codex conversation with custom tools, shell, namespaces and reasoning is one row', async (t) => {
  const api = await startSessionsApi(t)
  const [start, , , end] = completeResponse() as [GenerationEvent, unknown, unknown, GenerationEvent]
  const patch = '*** Begin Patch\n+"x"\n*** End Patch'
  const calls = [
    { id: 'c0', name: 'apply_patch', arguments: JSON.stringify({ input: patch }) },
    { id: 'c1', name: 'local_shell', arguments: '{"command":["ls"]}' },
    { id: 'c2', name: 'mcp__git__log', arguments: '{}' },
  ]
  const toolCalls = calls.map(({ id, ...called }, index) => ({ index, id, function: called }))
  api.backend.script = () =>
    respond([
      start,
      { type: 'delta', reasoning: 'hm' },
      { type: 'delta', content: 'I patch it.' },
      { type: 'delta', toolCalls },
      end,
    ])
  const { items, last } = await sendCodexTurn(api, CODEX_INPUT)
  t.match(items, [
    { type: 'reasoning', summary: { length: 0 }, encrypted_content: String },
    { type: 'message', content: [{ type: 'output_text', text: 'I patch it.' }] },
    { type: 'custom_tool_call', call_id: PROXY_CALL_ID, name: 'apply_patch', input: patch },
    { type: 'local_shell_call', call_id: PROXY_CALL_ID, action: { type: 'exec', command: ['ls'] } },
    { type: 'function_call', call_id: PROXY_CALL_ID, name: 'log', namespace: 'mcp__git__' },
  ])
  const [c0, c1, c2] = items.slice(2).map(({ call_id }) => call_id)
  t.match(last, { type: 'response.completed', response: { usage: { input_tokens: 3, output_tokens: 3 } } })
  const outputs = [
    { type: 'custom_tool_call_output', call_id: c0, output: 'Done!' },
    { type: 'function_call_output', call_id: c1, output: 'a.txt' },
    { type: 'function_call_output', call_id: c2, output: [{ type: 'input_text', text: 'commit' }] },
  ]
  // Codex stores its items without ids.
  const echo = items.map(({ id: _id, status: _status, ...item }) => item)
  await sendCodexTurn(api, [...CODEX_INPUT, ...echo, ...outputs])
  const { messages } = api.backend.requests[1]!.body as { messages: unknown[] }
  t.same(messages.slice(-4), [
    {
      role: 'assistant',
      content: 'I patch it.',
      reasoning_content: 'hm',
      tool_calls: calls.map(({ id: _, ...called }, index) => ({
        id: [c0, c1, c2][index],
        type: 'function',
        function: called,
      })),
    },
    { role: 'tool', tool_call_id: c0, content: 'Done!' },
    { role: 'tool', tool_call_id: c1, content: 'a.txt' },
    { role: 'tool', tool_call_id: c2, content: 'commit' },
  ])
  const { body } = await api.call('GET', '/sessions/s')
  t.same(
    body.turns[0].request_messages.map((message: Json) => message.role),
    ['system', 'system', 'user', 'user'],
  )
  t.match(body.turns[0].params, { reasoning_effort: 'medium', client_metadata: CODEX.client_metadata })
  t.same(
    body.turns[0].annotations.responses.dropped_tools,
    ['web_search'],
    'the turn lists the omitted tools',
  )
})

t.test('a response that fails in the middle ends with response.failed, and the turn is failed', async (t) => {
  const api = await startSessionsApi(t)
  api.backend.script = async function* () {
    yield completeResponse().slice(0, 2)
    throw new ProxyError('engine_lost', 'The engine is gone')
  }
  const stream = client(api, 's').responses.stream({ model: 'x', input: 'hi' })
  const response = await stream.finalResponse()
  t.match(response, { status: 'failed', error: { code: 'engine_lost', message: 'The engine is gone' } })
  t.match((await api.call('GET', '/sessions/s')).body.turns, [
    { status: 'failed', error: { code: 'engine_lost' } },
  ])
})

t.test(
  'an engine that continues a tool call after the next one fails the turn instead of garbling it',
  async (t) => {
    const api = await startSessionsApi(t)
    const createChunk = (index: number): GenerationEvent => ({
      type: 'delta',
      toolCalls: [{ index, id: `c${index}`, function: { name: 'f', arguments: '{}' } }],
    })
    api.backend.script = () =>
      respond([completeResponse()[0]!, createChunk(0), createChunk(1), createChunk(0)])
    const stream = client(api, 's').responses.stream({ model: 'x', input: 'hi' })
    t.match(await stream.finalResponse(), { status: 'failed', error: { code: 'engine_failed' } })
  },
)

t.test('an agent that aborts its stream ends the engine request, and the turn is marked', async (t) => {
  const api = await startSessionsApi(t)
  let engineSignal: AbortSignal | undefined
  api.backend.script = async function* (_request, signal) {
    engineSignal = signal
    yield completeResponse().slice(0, 2)
    await untilAborted(signal)
  }
  const stream = client(api, 's').responses.stream({ model: 'x', input: 'hi' })
  const aborted = getRejection(stream.done())
  await new Promise<void>((resolve) => stream.once('response.output_text.delta', () => resolve()))
  stream.abort()
  t.ok((await aborted) instanceof OpenAI.APIUserAbortError)
  const turn = await waitUntilClosed(api)
  t.match(turn, { status: 'aborted', error: { code: 'agent_gone' }, completion_text: 'hi' })
  t.equal(engineSignal?.aborted, true)
})

async function waitUntilClosed(api: SessionsApi): Promise<Json> {
  return until(async () => {
    const [turn] = (await api.call('GET', '/sessions/s')).body.turns
    return turn.status !== 'open' && turn
  })
}

t.test('errors have the classes of the client, and are retried where that helps', async (t) => {
  const api = await startSessionsApi(t)
  const openai = new OpenAI({ baseURL: `${api.url}/s/v1`, apiKey: 'none', maxRetries: 1 })
  const create = (body: object) =>
    openai.responses.create(body as OpenAI.Responses.ResponseCreateParamsNonStreaming)
  const wrong = await getRejection(create({ model: 'x', input: [{ role: 'user' }] }))
  t.ok(wrong instanceof OpenAI.BadRequestError)
  t.match(wrong, { param: 'input.0.content', type: 'invalid_request_error' })
  t.equal(api.backend.requests.length, 0)
  let attempts = 0
  api.backend.script = () => {
    attempts += 1
    if (attempts === 1) throw new ProxyError('engine_unreachable', 'No engine', { retryAfterS: 0.001 })
    return respond(completeResponse())
  }
  t.equal((await create({ model: 'x', input: 'hi' })).output_text, 'hi there')
  t.equal(attempts, 2)
  const { body } = await api.call('GET', '/sessions/s')
  t.match(body.turns, [{ status: 'failed' }, { status: 'completed', retry_count: 1 }])
  await api.call('POST', '/sessions/s/complete')
  t.ok((await getRejection(create({ model: 'x', input: 'hi' }))) instanceof OpenAI.ConflictError)
  t.equal(attempts, 2)
})

t.test('an engine that sends single bytes is read like any other', async (t) => {
  const chunk = (delta: object, more: object = {}) => ({
    choices: [
      { index: 0, delta, token_ids: [5], logprobs: { content: [{ token: 'x', logprob: -1 }] }, ...more },
    ],
  })
  const called = { index: 0, id: 'c', function: { name: 'f', arguments: '{"a":' } }
  const chunks = [
    { ...chunk({ role: 'assistant', content: '' }), prompt_token_ids: [1, 2] },
    chunk({ reasoning_content: 'hm é' }),
    chunk({ content: 'hi 🙂' }),
    chunk({ tool_calls: [called] }),
    chunk({ tool_calls: [{ index: 0, function: { arguments: '"ü"}' } }] }, { finish_reason: 'tool_calls' }),
  ]
  const sse = Buffer.from(
    [...chunks.map((each) => JSON.stringify(each)), '[DONE]'].map((data) => `data: ${data}\n\n`).join(''),
  )
  const engine = await startScriptedServer(async (request, response) => {
    if (request.method === 'GET') return sendJson(response, { data: [{ id: 'm', owned_by: 'vllm' }] })
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const byte of sse) {
      response.write(Buffer.of(byte))
      await new Promise((resolve) => setImmediate(resolve))
    }
    response.end()
  })
  t.teardown(() => engine.close())
  const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'vllm' })
  const response = await client(proxy, 'a').responses.stream({ model: 'x', input: 'hi' }).finalResponse()
  t.match(response.output, [
    { type: 'reasoning', content: [{ text: 'hm é' }] },
    { type: 'message', content: [{ text: 'hi 🙂' }] },
    { type: 'function_call', call_id: 'c', name: 'f', arguments: '{"a":"ü"}' },
  ])
})

t.test('no mutation of a request causes an internal error, a hang or a crash', async (t) => {
  const api = await startSessionsApi(t)
  const base = { ...CODEX, stream: false, input: [...CODEX_INPUT, ...HISTORY] }
  const junk = fc.constantFrom<unknown>(
    null,
    0,
    -1,
    1.5,
    '',
    'x',
    true,
    [],
    {},
    [[]],
    [null],
    { type: 'x' },
    { type: 7 },
  )
  const mutations = fc.array(fc.tuple(fc.nat(), junk, fc.constantFrom('replace', 'remove', 'add')), {
    minLength: 1,
    maxLength: 3,
  })
  await fc.assert(
    fc.asyncProperty(mutations, fc.boolean(), async (changes, stream) => {
      const body = { ...structuredClone(base), stream }
      for (const [index, value, how] of changes) mutate(body, index, value, how)
      await checkAcceptedOrRejected(t, api, body)
    }),
    { numRuns: limitRuns(400) },
  )
  t.pass('for any mutation')
})

t.test('a request that is nested too deeply is rejected, wherever the nesting is', async (t) => {
  const api = await startSessionsApi(t)
  const deep = `${'{"a":'.repeat(20_000)}1${'}'.repeat(20_000)}`
  const members = [
    '"metadata":D',
    '"tools":[{"type":"web_search","x":D}]',
    '"reasoning":{"x":D}',
    '"unknown":D',
  ]
  for (const member of [...members, '"input":[{"role":"user","content":"x","y":D}]', '"text":{"x":D}']) {
    const body = `{"input":"hi",${member.replace('D', deep)}}`
    const { status } = await api.call('POST', '/s/v1/responses', body)
    t.equal(status, 400, member)
  }
  t.equal(api.backend.requests.length, 0)
})

const HISTORY = [
  {
    type: 'reasoning',
    summary: [{ type: 'summary_text', text: 's' }],
    content: null,
    encrypted_content: 'gAAA',
  },
  { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'a' }] },
  { type: 'custom_tool_call', call_id: 'c0', name: 'apply_patch', input: 'p' },
  { type: 'custom_tool_call_output', call_id: 'c0', output: 'ok' },
  {
    type: 'local_shell_call',
    call_id: 'c1',
    status: 'completed',
    action: { type: 'exec', command: ['ls'], env: {} },
  },
  { type: 'function_call', call_id: 'c2', name: 'log', namespace: 'mcp__git__', arguments: '{}' },
  { type: 'function_call_output', call_id: 'c2', output: [{ type: 'input_text', text: 'x' }] },
]

/** Changes the `index`-th value of the tree in pre-order. Inserts a copy, because a later change may be inside it. */
function mutate(root: object, index: number, value: unknown, how: string): void {
  const properties: [Record<string, unknown>, string][] = []
  const walk = (node: unknown) => {
    if (typeof node !== 'object' || node === null) return
    for (const [key, child] of Object.entries(node)) {
      properties.push([node as Record<string, unknown>, key])
      walk(child)
    }
  }
  walk(root)
  const [node, key] = properties[index % properties.length]!
  if (how === 'remove') delete node[key]
  else node[how === 'add' ? `${key}_` : key] = structuredClone(value)
}

async function checkAcceptedOrRejected(t: Test, { url }: SessionsApi, body: unknown): Promise<void> {
  const text = JSON.stringify(body)
  const response = await fetch(`${url}/s/v1/responses`, { method: 'POST', body: text })
  const responseText = await response.text()
  if (response.status === 200) {
    if (!/"status":"completed"/.test(responseText)) t.fail(`${text} got ${responseText}`)
    return
  }
  const { error } = JSON.parse(responseText)
  const isRejection = response.status >= 400 && response.status < 500
  if (!isRejection || typeof error.message !== 'string' || !('param' in error))
    t.fail(`${text}: ${responseText}`)
}
