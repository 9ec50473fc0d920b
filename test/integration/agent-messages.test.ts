/** The official Anthropic client, unmodified, with a session's base URL. */
import assert from 'node:assert/strict'
import Anthropic from '@anthropic-ai/sdk'
import { betaTool } from '@anthropic-ai/sdk/helpers/beta/json-schema'
import { jsonSchemaOutputFormat } from '@anthropic-ai/sdk/helpers/json-schema'
import type { MessageParam, ToolUseBlock } from '@anthropic-ai/sdk/resources/messages'
import fc from 'fast-check'
import OpenAI from 'openai'
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions'
import t, { type Test } from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy } from '../helpers/proxy.ts'
import { completeResponse, respond, untilAborted } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'
import { limitRuns } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'
import { getRejection } from './get-rejection.ts'

const parameters = {
  type: 'object',
  properties: { expression: { type: 'string' } },
  required: ['expression'],
} as const
const calculator = {
  name: 'calculator',
  description: 'Evaluates an arithmetic expression',
  input_schema: { ...parameters, required: [...parameters.required] },
}
const question: MessageParam[] = [{ role: 'user', content: 'What is (12 + 34) * 2?' }]
const small = { model: 'x', max_tokens: 1, messages: question }

/** @param attempts receives the request of each attempt */
function client(
  proxy: { url: string },
  sessionId: string,
  maxRetries = 0,
  attempts: unknown[] = [],
): Anthropic {
  const countingFetch: typeof fetch = (target, init) => {
    attempts.push(target)
    return fetch(target, init)
  }
  return new Anthropic({
    baseURL: `${proxy.url}/${sessionId}`,
    apiKey: 'none',
    maxRetries,
    fetch: countingFetch,
  })
}

/** A calculator with the operators of these conversations. */
function evaluate(expression: string): string {
  return expression === '12 + 34' ? '46' : '92'
}

t.test('a response that is not streamed: the session shows what the agent received', async (t) => {
  const proxy = await startProxy(t)
  const response = client(proxy, 'a').messages.create({
    ...small,
    max_tokens: 20,
    ...{ temperature: 0 },
    system: 'Be brief.',
  })
  const { data: message, request_id } = await response.withResponse()
  const [turn] = (await proxy.get('/sessions/a')).turns
  t.equal(turn.status, 'completed')
  t.equal(turn.dialect, 'messages')
  t.same(message.content, [{ type: 'text', text: turn.completion_text }])
  t.equal(message.stop_reason, turn.finish_reason === 'length' ? 'max_tokens' : 'end_turn')
  t.same(turn.request_messages, [{ role: 'system', content: 'Be brief.' }, ...question])
  t.equal(message.usage.input_tokens, turn.prompt_token_ids.length)
  t.equal(message.usage.output_tokens, turn.completion_token_ids.length)
  t.equal(turn.exact, true)
  t.equal(request_id, `req_${turn.turn_id}`)
  t.equal(message.id, `msg_${turn.turn_id.replaceAll('-', '')}`)
})

t.test('a stop sequence is reported', async (t) => {
  const proxy = await startProxy(t)
  const body = { ...small, max_tokens: 50, tools: [calculator], stop_sequences: ['brackets'] }
  const message = await client(proxy, 'a').messages.create(body)
  t.match(message, { stop_reason: 'stop_sequence', stop_sequence: 'brackets' })
  t.same(message.content, [{ type: 'text', text: 'First the ' }])
})

t.test('a tool loop through the stream() helper continues from its own tokens', async (t) => {
  const proxy = await startProxy(t)
  const messages = [...question]
  for (let turn = 0; turn < 5; turn++) {
    const stream = client(proxy, 'a').messages.stream({
      ...small,
      max_tokens: 100,
      tools: [calculator],
      messages,
    })
    const message = await stream.finalMessage()
    messages.push({ role: 'assistant', content: message.content })
    if (message.stop_reason !== 'tool_use') break
    const uses = message.content.filter((block): block is ToolUseBlock => block.type === 'tool_use')
    const content = uses.map(({ id, input }) => ({
      type: 'tool_result' as const,
      tool_use_id: id,
      content: evaluate((input as { expression: string }).expression),
    }))
    messages.push({ role: 'user', content })
  }
  const { turns } = await proxy.get('/sessions/a')
  t.equal(turns.length, 3)
  t.match(turns[2].completion_text, /92/)
  const { trajectories } = await proxy.get('/sessions/a/trajectories')
  t.equal(trajectories.length, 1)
  const [row] = trajectories
  t.same(
    row.response_ids.filter((_: number, i: number) => row.response_mask[i] === 1),
    turns.flatMap((turn: { completion_token_ids: number[] }) => turn.completion_token_ids),
  )
})

t.test('the tool runner runs its loop, streamed and not', async (t) => {
  const proxy = await startProxy(t)
  const expressions: string[] = []
  const tool = betaTool({
    name: 'calculator',
    description: calculator.description,
    inputSchema: parameters,
    run: ({ expression }) => {
      expressions.push(expression)
      return evaluate(expression)
    },
  })
  for (const stream of [false, true]) {
    expressions.length = 0
    const runner = client(proxy, `s-${stream}`).beta.messages.toolRunner({
      ...small,
      max_tokens: 100,
      messages: [{ role: 'user', content: 'What is (12 + 34) * 2?' }],
      tools: [tool],
      stream,
    })
    t.match((await runner.runUntilDone()).content, [{ type: 'text', text: /92/ }])
    t.same(expressions, ['12 + 34', '46 * 2'])
  }
})

t.test('structured output reaches the engine as a response format, and the client parses it', async (t) => {
  const api = await startSessionsApi(t)
  api.backend.script = () =>
    respond([
      completeResponse()[0]!,
      { type: 'delta', content: '{"city":"Rome"}' },
      completeResponse().at(-1)!,
    ])
  const schema = {
    type: 'object',
    properties: { city: { type: 'string' } },
    required: ['city'],
    additionalProperties: false,
  } as const
  const body = { ...small, output_config: { format: jsonSchemaOutputFormat(schema) } }
  t.same((await client(api, 'a').messages.parse(body)).parsed_output, { city: 'Rome' })
  t.match(api.backend.requests[0]?.body, {
    response_format: { type: 'json_schema', json_schema: { schema, strict: true } },
  })
})

t.test(
  'the same conversation through Chat and Messages gives the same tokens, masks and logprobs',
  async (t) => {
    const proxy = await startProxy(t)
    const system = 'Be brief.'
    const followUp = 'Now tell me something about the sea.'
    const sampling = { model: 'x', max_tokens: 60, temperature: 0.8, top_p: 0.9, ...{ seed: 5, top_k: 50 } }

    const anthropic = client(proxy, 'messages')
    const conversation: MessageParam[] = [...question]
    for (let turn = 0; turn < 4; turn++) {
      const tools = [calculator]
      const body = {
        ...sampling,
        system: [{ type: 'text' as const, text: system }],
        messages: conversation,
        tools,
      }
      const message = await (turn % 2
        ? anthropic.messages.stream(body).finalMessage()
        : anthropic.messages.create(body))
      conversation.push({ role: 'assistant', content: message.content })
      const use = message.content.find((block) => block.type === 'tool_use')
      const content = use && evaluate((use.input as { expression: string }).expression)
      if (use && content)
        conversation.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: use.id, content }] })
      else conversation.push({ role: 'user', content: followUp })
    }

    const openai = new OpenAI({ baseURL: proxy.baseUrl('chat'), apiKey: 'none', maxRetries: 0 })
    const { name, description } = calculator
    const tools = [{ type: 'function' as const, function: { name, description, parameters } }]
    const chatMessages: ChatCompletionMessageParam[] = [
      { role: 'system', content: system },
      { role: 'user', content: question[0]?.content as string },
    ]
    for (let turn = 0; turn < 4; turn++) {
      const completion = await openai.chat.completions.create({ ...sampling, messages: chatMessages, tools })
      const { message } = completion.choices[0]!
      chatMessages.push(message)
      const [call] = message.tool_calls ?? []
      if (call?.type === 'function') {
        const content = evaluate(JSON.parse(call.function.arguments).expression)
        chatMessages.push({ role: 'tool', tool_call_id: call.id, content })
      } else chatMessages.push({ role: 'user', content: followUp })
    }

    const [messages, chat] = await Promise.all(
      ['messages', 'chat'].map(async (id) => {
        const { trajectories } = await proxy.get(`/sessions/${id}/trajectories`)
        return trajectories.map((row: Record<string, unknown>) => ({
          prompt_ids: row.prompt_ids,
          response_ids: row.response_ids,
          response_mask: row.response_mask,
          response_logprobs: row.response_logprobs,
        }))
      }),
    )
    t.ok(chat[0].response_mask.filter((mask: number) => mask === 1).length > 60, 'text was sampled')
    t.same(messages, chat)
  },
)

t.test("Claude Code's requests are one conversation, although their headers change each time", async (t) => {
  const proxy = await startProxy(t)
  const anthropic = client(proxy, 'a')
  const messages: Anthropic.Beta.BetaMessageParam[] = [
    { role: 'user', content: [{ type: 'text', text: 'Hello', cache_control: { type: 'ephemeral' } }] },
  ]
  for (const hash of ['3f1', 'a07']) {
    const message = await anthropic.beta.messages.create({
      ...small,
      max_tokens: 20,
      // Random samples may contain a token without text, such as the end of a message.
      ...{ temperature: 0 },
      messages,
      system: [
        {
          type: 'text',
          text: `x-anthropic-billing-header: cc_version=2.1.329.${hash}; cc_prev_req=req_${hash};`,
        },
        { type: 'text', text: 'You are Claude Code.', cache_control: { type: 'ephemeral' } },
      ],
      metadata: { user_id: JSON.stringify({ device_id: 'd', session_id: hash }) },
      context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
      output_config: { effort: 'medium' },
      thinking: { type: 'adaptive' },
      betas: ['claude-code-20250219', 'context-management-2025-06-27'],
    })
    messages[0] = { role: 'user', content: [{ type: 'text', text: 'Hello' }] }
    messages.push({ role: 'assistant', content: message.content })
    messages.push({
      role: 'user',
      content: [{ type: 'text', text: 'Go on', cache_control: { type: 'ephemeral' } }],
    })
  }
  const { turns } = await proxy.get('/sessions/a')
  t.match(
    turns.map((turn: { annotations: object }) => turn.annotations),
    ['3f1', 'a07'].map((hash) => ({
      request_fields: {
        metadata: { user_id: JSON.stringify({ device_id: 'd', session_id: hash }) },
        context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
        output_config: { effort: 'medium' },
        thinking: { type: 'adaptive' },
      },
      removed_from_prompt: [
        {
          rule: 'claude_code_billing_header',
          text: `x-anthropic-billing-header: cc_version=2.1.329.${hash}; cc_prev_req=req_${hash};`,
        },
      ],
    })),
  )
  t.equal((await proxy.get('/sessions/a/trajectories')).trajectories.length, 1)
})

t.test('the rules that remove volatile text can be disabled', async (t) => {
  const api = await startSessionsApi(t, undefined, {}, { volatileRules: [] })
  const system = 'x-anthropic-billing-header: cc_version=2;\nBe brief.'
  await client(api, 'a').messages.create({ ...small, system })
  t.match(api.backend.requests, [{ body: { messages: [{ role: 'system', content: system }] } }])
})

t.test('an agent that aborts its stream ends the request, and the turn is marked', async (t) => {
  const proxy = await startProxy(t)
  const endless = { ...small, max_tokens: 30_000, ...{ ignore_eos: true } }
  const stream = client(proxy, 'a').messages.stream({
    ...endless,
    messages: [{ role: 'user', content: 'All' }],
  })
  const aborted = getRejection(stream.done())
  await stream.emitted('text')
  stream.abort()
  t.ok((await aborted) instanceof Anthropic.APIUserAbortError)
  const turn = await until(async () => {
    const [last] = (await proxy.get('/sessions/a')).turns
    return last?.status !== 'open' && last
  })
  t.match(turn, { status: 'aborted', error: { code: 'agent_gone' } })
  t.ok(turn.completion_token_ids.length > 0, 'the tokens so far are recorded')
})

t.test('errors have the classes of the client, and are retried as it does', async (t) => {
  const api = await startSessionsApi(t)
  const failWith = (error: ProxyError) => {
    // biome-ignore lint/correctness/useYield: it fails before it yields
    api.backend.script = async function* () {
      throw error
    }
  }
  const anthropic = client(api, 'a')
  const sendRequest = () => getRejection(anthropic.messages.create(small))

  failWith(new ProxyError('engine_rejected', 'slow down', { status: 429, retryAfterS: 7 }))
  const limited = (await sendRequest()) as InstanceType<typeof Anthropic.RateLimitError>
  t.ok(limited instanceof Anthropic.RateLimitError)
  t.match(limited, { type: 'rate_limit_error', apiMessage: 'slow down', errorCode: 'engine_rejected' })
  t.equal(limited.headers.get('retry-after'), '7')
  t.match(limited.requestID, /^req_/)

  failWith(new ProxyError('queue_full', 'full'))
  t.match(await sendRequest(), { status: 529, type: 'overloaded_error' })
  failWith(new ProxyError('engine_lost', 'gone'))
  t.ok((await sendRequest()) instanceof Anthropic.InternalServerError)

  let attemptCount = 0
  api.backend.script = () => {
    attemptCount += 1
    if (attemptCount < 3) throw new ProxyError('engine_unreachable', 'not yet', { retryAfterS: 0 })
    return respond(completeResponse())
  }
  t.match(await client(api, 'b', 2).messages.create(small), { content: [{ text: 'hi there' }] })
  t.equal(attemptCount, 3)
  const { body } = await api.call('GET', '/sessions/b')
  t.same(
    body.turns.map((turn: { retry_count: number }) => turn.retry_count),
    [0, 1, 2],
  )

  await api.call('POST', '/sessions/a/complete')
  const attempts: unknown[] = []
  const ended = await getRejection(client(api, 'a', 5, attempts).messages.create(small))
  t.ok(ended instanceof Anthropic.ConflictError)
  t.match(ended, { type: 'conflict_error', errorCode: 'session_ended' })
  t.equal(attempts.length, 1)
})

t.test('an error in the middle of a stream is an error event', async (t) => {
  const api = await startSessionsApi(t)
  api.backend.script = async function* () {
    yield completeResponse().slice(0, 2)
    throw new ProxyError('engine_lost', 'the engine is gone')
  }
  const failed = await getRejection(client(api, 'a').messages.stream(small).finalMessage())
  t.ok(failed instanceof Anthropic.APIError)
  t.match(failed, { type: 'api_error', apiMessage: 'the engine is gone' })
})

t.test('a prompt that exceeds the context is rejected with the message that agents look for', async (t) => {
  const proxy = await startProxy(t)
  const long = [{ role: 'user' as const, content: 'word '.repeat(600_000) }]
  t.match(await getRejection(client(proxy, 'a').messages.create({ ...small, messages: long })), {
    status: 400,
    type: 'invalid_request_error',
    apiMessage: /^prompt is too long: \d+ tokens > 131072 maximum$/,
  })
  const tooLarge = client(proxy, 'a').messages.stream({ ...small, max_tokens: 140_000 })
  t.match(await getRejection(tooLarge.finalMessage()), {
    status: 400,
    apiMessage: /^input length and `max_tokens` exceed context limit: \d+ \+ 140000 > 131072/,
  })
})

t.test('every form of the base URL leads to the same session', async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/sessions', { session_id: 'a' })
  const sendRequest = (baseURL: string, apiKey: string) =>
    new Anthropic({ baseURL, apiKey, maxRetries: 0 }).beta.messages.create(small)
  await sendRequest(`${proxy.url}/a`, 'none')
  await sendRequest(`${proxy.url}/sessions/a`, 'none')
  await sendRequest(proxy.url, 'a')
  t.equal((await proxy.get('/sessions/a')).turns.length, 3)
  t.match(await getRejection(client(proxy, 'a').messages.batches.list()), {
    status: 404,
    type: 'not_found_error',
  })
})

t.test('tokens are counted as the engine counts them, and nothing is recorded', async (t) => {
  const engine = await startEngine(t)
  const kinds = {
    embedded: {},
    vllm: { engineUrls: [engine.url], engineKind: 'vllm' as const },
    auto: { engineUrls: [engine.url] },
  }
  for (const [kind, config] of Object.entries(kinds)) {
    await t.test(kind, async (t) => {
      const proxy = await startProxy(t, config)
      const anthropic = client(proxy, 'a')
      const prompt = { model: 'x', messages: question, system: 'Be brief.', tools: [calculator] }
      const { input_tokens } = await anthropic.messages.countTokens(prompt)
      t.same((await proxy.get('/sessions')).sessions, [])
      const message = await anthropic.messages.create({ ...prompt, model: 'embedded', max_tokens: 1 })
      t.equal(input_tokens, message.usage.input_tokens)
      t.match(await anthropic.beta.messages.countTokens(prompt), { input_tokens }, 'the beta route too')
      const wrong = anthropic.messages.countTokens({ ...prompt, messages: [] })
      t.match(await getRejection(wrong), { status: 400, type: 'invalid_request_error' })
    })
  }
})

t.test(
  'a request without a session is served and counted, unless sessions must be created first',
  async (t) => {
    const open = await startProxy(t)
    const anthropic = new Anthropic({ baseURL: open.url, apiKey: 'none', maxRetries: 0 })
    t.ok((await anthropic.messages.countTokens({ model: 'x', messages: question })).input_tokens > 0)
    t.same((await open.get('/sessions')).sessions, [], 'counting creates no session')
    t.ok((await anthropic.messages.create(small)).id)
    t.match((await open.get('/sessions')).sessions, [{ num_turns: 1 }])
    const strict = await startProxy(t, { strictSessions: true, db: 'memory' })
    const rejected = new Anthropic({ baseURL: strict.url, apiKey: 'none', maxRetries: 0 })
    const expected = { status: 401, type: 'authentication_error' }
    t.match(await getRejection(rejected.messages.create(small)), expected)
    t.match(await getRejection(rejected.messages.countTokens({ model: 'x', messages: question })), expected)
  },
)

t.test('a count that no engine can compute is rejected at once instead of estimated', async (t) => {
  const engine = await startEngine(t)
  const openai = await startProxy(t, { engineUrls: [engine.url], engineKind: 'openai' })
  const relay = await startProxy(t, { mode: 'relay', db: 'memory' })
  for (const proxy of [openai, relay]) {
    const attempts: unknown[] = []
    const count = client(proxy, 'a', 5, attempts).messages.countTokens({ model: 'x', messages: question })
    t.match(await getRejection(count), { status: 501, type: 'api_error', errorCode: 'unsupported' })
    t.equal(attempts.length, 1)
  }
})

/** Starts a proxy whose engine is silent until the test lets it respond. */
async function startSilentEngine(t: Test) {
  const { promise: outcome, resolve: finish } = Promise.withResolvers<ProxyError | undefined>()
  const api = await startSessionsApi(t, undefined, {}, { keepAliveMs: 20 })
  api.backend.script = async function* (_request, signal) {
    const error = await Promise.race([outcome, untilAborted(signal)])
    if (error) throw error
    yield completeResponse()
  }
  return { api, finish }
}

/** Reads a stream; `onText` receives the text so far. */
async function readStream(url: string, body: object, onText: (text: string) => void): Promise<string> {
  const response = await fetch(url, { method: 'POST', body: JSON.stringify({ ...body, stream: true }) })
  assert.equal(response.status, 200)
  let text = ''
  for await (const chunk of response.body!.pipeThrough(new TextDecoderStream())) {
    text += chunk
    onText(text)
  }
  return text
}

const isRepeated = (part: string) => (text: string) => text.split(part).length > 2

t.test('a stream that waits for its first token sends pings, then the response', async (t) => {
  const { api, finish } = await startSilentEngine(t)
  const pinged = isRepeated('event: ping\ndata: {"type":"ping"}\n\n')
  const text = await readStream(`${api.url}/a/v1/messages`, small, (textSoFar) => {
    if (pinged(textSoFar)) finish(undefined)
  })
  t.match(text, /^event: ping\n/)
  t.match(text, /event: message_stop\ndata: {"type":"message_stop"}\n\n$/)
})

t.test('the official client ignores pings', async (t) => {
  const { api, finish } = await startSilentEngine(t)
  const stream = client(api, 'a').messages.stream(small)
  void stream.emitted('connect').then(() => finish(undefined))
  t.equal(await stream.finalText(), 'hi there')
})

t.test('an error after a ping is an error event', async (t) => {
  const { api, finish } = await startSilentEngine(t)
  const stream = client(api, 'a').messages.stream(small)
  void stream.emitted('connect').then(() => finish(new ProxyError('engine_timeout', 'too slow')))
  t.match(await getRejection(stream.finalMessage()), { type: 'timeout_error', apiMessage: 'too slow' })
})

t.test('a waiting Chat Completions stream sends comments; an error after them is an event', async (t) => {
  const { api, finish } = await startSilentEngine(t)
  const commented = isRepeated(': keep-alive\n\n')
  const text = await readStream(`${api.url}/a/v1/chat/completions`, { messages: question }, (textSoFar) => {
    if (commented(textSoFar)) finish(new ProxyError('engine_timeout', 'too slow'))
  })
  t.match(text, /^: keep-alive\n\n: keep-alive\n\n/)
  t.match(text, /data: {"error":{"message":"504 Gateway Timeout: too slow".*}}\n\n$/)
})

/** A request with every kind of part. */
const FULL = {
  model: 'x',
  max_tokens: 1,
  stream: false,
  system: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }],
  messages: [
    { role: 'user', content: [{ type: 'text', text: 'hi' }] },
    {
      role: 'assistant',
      content: [
        { type: 'thinking', thinking: 'hm', signature: 's' },
        { type: 'text', text: 'yes' },
        { type: 'tool_use', id: 'a', name: 'calculator', input: { expression: '1' } },
      ],
    },
    {
      role: 'user',
      content: [
        { type: 'tool_result', tool_use_id: 'a', content: [{ type: 'text', text: '1' }], is_error: true },
        { type: 'document', source: { type: 'text', media_type: 'text/plain', data: 'd' } },
      ],
    },
  ],
  tools: [calculator],
  tool_choice: { type: 'auto', disable_parallel_tool_use: true },
  stop_sequences: ['END'],
  temperature: 1,
  top_p: 1,
  top_k: 5,
  metadata: { user_id: 'u' },
  thinking: { type: 'enabled', budget_tokens: 1024 },
  output_config: { effort: 'low' },
  context_management: { edits: [] },
  chat_template_kwargs: {},
}

/** Returns every path to a value of a JSON value. */
function getPaths(value: unknown): string[][] {
  if (typeof value !== 'object' || value === null) return []
  return Object.entries(value).flatMap(([key, inner]) => [
    [key],
    ...getPaths(inner).map((path) => [key, ...path]),
  ])
}

function mutate(path: readonly string[], change: unknown): unknown {
  const body = structuredClone(FULL)
  let parent = body as unknown as Record<string, Record<string, unknown>>
  for (const key of path.slice(0, -1)) parent = parent[key] as typeof parent
  const last = path.at(-1)!
  if (change === undefined) delete parent[last]
  else (parent as Record<string, unknown>)[last] = change
  return body
}

t.test('an invalid body is accepted, or rejected in the format of the API', async (t) => {
  const proxy = await startProxy(t, { db: 'memory' })
  const change = fc.oneof(
    fc.constantFrom(
      undefined,
      null,
      '',
      'x',
      0,
      -1,
      1.5,
      1e300,
      true,
      [],
      {},
      [null],
      { type: 'x' },
      '\ud800',
    ),
    fc.jsonValue({ maxDepth: 2 }),
  )
  const path = fc.constantFrom(...getPaths(FULL))
  await fc.assert(
    fc.asyncProperty(path, change, fc.constantFrom('', '/count_tokens'), async (path, change, route) => {
      const body = JSON.stringify(mutate(path, change))
      const response = await fetch(`${proxy.url}/a/v1/messages${route}`, { method: 'POST', body })
      const text = await response.text()
      if (response.status === 200) return
      assert.ok(response.status >= 400 && response.status < 500, `${response.status} ${text} for ${body}`)
      const { type, error } = JSON.parse(text)
      assert.equal(type, 'error')
      assert.equal(typeof error.message, 'string')
      assert.equal(error.type, 'invalid_request_error')
      assert.ok(response.headers.get('request-id'))
    }),
    { numRuns: limitRuns(300) },
  )
  const notJson = await fetch(`${proxy.url}/a/v1/messages`, { method: 'POST', body: '{"model": ' })
  t.match(
    [notJson.status, await notJson.json()],
    [400, { type: 'error', error: { type: 'invalid_request_error' } }],
  )
})

t.test('an extremely nested body is rejected, wherever the nesting is', async (t) => {
  const proxy = await startProxy(t, { db: 'memory' })
  const depth = 50_000
  const deep = `${'['.repeat(depth)}${']'.repeat(depth)}`
  const paths = [
    ['metadata', 'x'],
    ['messages', '1', 'content', '2', 'input'],
    ['tools', '0', 'input_schema', 'x'],
  ]
  for (const path of [...paths, ['some_future_field']]) {
    const body = JSON.stringify(mutate(path, 'DEEP')).replace('"DEEP"', deep)
    const response = await fetch(`${proxy.url}/a/v1/messages`, { method: 'POST', body })
    t.match(
      [response.status, await response.json()],
      [400, { error: { type: 'invalid_request_error' } }],
      `${path}`,
    )
  }
  const body = JSON.stringify(mutate(['tools', '0', 'input_schema', 'x'], 'DEEP')).replace('"DEEP"', deep)
  const count = await fetch(`${proxy.url}/a/v1/messages/count_tokens`, { method: 'POST', body })
  t.equal(count.status, 400)
})
