/** Token mode: the prompt of a request that continues a turn always begins with that turn's tokens. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions'
import t, { type Test } from 'tap'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startEngine } from '../helpers/engine.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker } from '../helpers/relay-rig.ts'

const calculator = {
  type: 'function' as const,
  function: {
    name: 'calculator',
    parameters: { type: 'object', properties: { expression: { type: 'string' } } },
  },
}

const user = (content: string): ChatCompletionMessageParam => ({ role: 'user', content })

interface Row {
  prompt_ids: number[]
  response_ids: number[]
  response_mask: number[]
}

const getSampled = (rows: Row[]) =>
  rows.flatMap((row) => row.response_ids.filter((_, i) => row.response_mask[i] === 1))

/** Starts relay mode: the engine is reached through a worker. */
async function startRelayedTokenProxy(t: Test, db: string): Promise<TestProxy> {
  const engine = await startEngine(t)
  const proxy = await startProxy(t, { mode: 'relay', tokenizer: 'embedded', db })
  joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engine.url] })
  return proxy
}

async function startTokenProxy(t: Test, overrides: Partial<ServeConfig> = {}) {
  const engine = await startEngine(t)
  const proxy = await startProxy(t, { engineUrls: [engine.url], tokenizer: 'embedded', ...overrides })
  return { engine, proxy }
}

function client(proxy: TestProxy, sessionId = 's'): OpenAI {
  return new OpenAI({ baseURL: proxy.baseUrl(sessionId), apiKey: 'none', maxRetries: 0 })
}

type Echo = (message: OpenAI.ChatCompletionMessage) => ChatCompletionMessageParam

/** Runs a conversation with tools, in which the agent echoes completions in the given way. */
async function runConversation(
  proxy: TestProxy,
  echo: Echo,
  sessionId = 's',
): Promise<ChatCompletionMessageParam[]> {
  const openai = client(proxy, sessionId)
  const messages: ChatCompletionMessageParam[] = [
    { role: 'system', content: 'You are careful.' },
    user('Compute (12 + 7) * 3 step by step.'),
  ]
  for (let turn = 0; turn < 6; turn++) {
    const body = { model: 'embedded', messages, tools: [calculator], max_tokens: 80, temperature: 0 }
    const { message } =
      turn % 2 === 0
        ? (await openai.chat.completions.create(body)).choices[0]!
        : (await openai.chat.completions.stream(body).finalChatCompletion()).choices[0]!
    const echoed = echo(message)
    messages.push(echoed)
    const calls = (echoed as OpenAI.ChatCompletionMessage).tool_calls ?? []
    for (const call of calls)
      messages.push({ role: 'tool', tool_call_id: call.id, content: turn === 0 ? '19' : '57' })
    if (calls.length === 0) messages.push(user('And why?'))
  }
  return messages
}

const ECHOES: Record<string, Echo> = {
  'as it came': (message) => message,
  'with white space trimmed and null fields left out': ({ content, tool_calls }) => ({
    role: 'assistant',
    content: content?.trim() ?? null,
    ...(tool_calls && { tool_calls }),
  }),
  'as text parts': ({ content, ...rest }) => ({
    ...rest,
    content: content ? [{ type: 'text', text: content }] : null,
  }),
  'with new call ids and rewritten arguments': ({ tool_calls, ...rest }) => ({
    ...rest,
    ...(tool_calls && {
      tool_calls: tool_calls.map((call, i) => ({
        ...call,
        id: `call_${i}_${Math.random()}`,
        ...(call.type === 'function' && {
          function: {
            ...call.function,
            arguments: JSON.stringify(JSON.parse(call.function.arguments), undefined, 2),
          },
        }),
      })) as OpenAI.ChatCompletionMessageToolCall[],
    }),
  }),
}

/** One proxy per mode, shared by all tests without special configuration; each test has its own session. */
const shared = {} as { local: TestProxy; relay: TestProxy }
t.before(async () => {
  const folder = t.testdir({})
  shared.local = (await startTokenProxy(t, { db: `${folder}/local.db` })).proxy
  shared.relay = await startRelayedTokenProxy(t, `${folder}/relay.db`)
})

const CASES = (['local', 'relay'] as const).flatMap((mode) =>
  Object.entries(ECHOES).map(([how, echo]) => ({ mode, how, echo })),
)

for (const { mode, how, echo } of CASES) {
  t.test(`in ${mode} mode an agent that echoes ${how} loses no trained token`, async (t) => {
    const proxy = shared[mode]
    const session = how.replaceAll(' ', '-')
    await runConversation(proxy, echo, session)
    const { turns } = await proxy.get(`/sessions/${session}`)
    t.equal(turns.length, 6)
    for (const [i, turn] of turns.entries()) {
      t.equal(turn.exact, true)
      t.equal(turn.annotations.prompt.mismatched, false, 'the engine received the ids that the proxy sent')
      t.equal(turn.annotations.prompt.reason, i === 0 ? 'first' : 'extended')
      if (i === 0) continue
      const before = [...turns[i - 1].prompt_token_ids, ...turns[i - 1].completion_token_ids]
      t.same(turn.prompt_token_ids.slice(0, before.length), before)
    }
    const { trajectories } = await proxy.get(`/sessions/${session}/trajectories`)
    t.equal(trajectories.length, 1)
    t.same(
      getSampled(trajectories),
      turns.flatMap((turn: { completion_token_ids: number[] }) => turn.completion_token_ids),
    )
  })
}

t.test('tool calls are tool calls on every turn, and none of their markup is text', async (t) => {
  const proxy = shared.local
  const messages = await runConversation(proxy, ECHOES['as it came']!, 'calls')
  const calls = messages.flatMap((message) => ('tool_calls' in message ? (message.tool_calls ?? []) : []))
  t.ok(calls.length >= 2)
  for (const message of messages) {
    if (message.role === 'assistant') t.notMatch(message.content ?? '', /tool_call|<\|im_/)
  }
})

t.test('the session continues from the recorded tokens after a restart', async (t) => {
  const engine = await startEngine(t)
  const db = `${t.testdir({})}/restart.db`
  const config = { engineUrls: [engine.url], tokenizer: 'embedded', db }
  const before = await startProxy(t, config)
  const first = (
    await client(before).chat.completions.create({
      model: 'embedded',
      messages: [user('Hello.')],
      max_tokens: 5,
    })
  ).choices[0]!.message
  await before.server.stop(1_000)
  const after = await startProxy(t, config)
  await client(after).chat.completions.create({
    model: 'embedded',
    messages: [user('Hello.'), first, user('Go on.')],
    max_tokens: 5,
  })
  const { turns } = await after.get('/sessions/s')
  t.match(turns[1].annotations.prompt, { reason: 'extended', from: turns[0].turn_id })
  t.equal((await after.get('/sessions/s/trajectories')).trajectories.length, 1)
})

t.test('a truncated completion is closed by rule, with mask 0, before the next message', async (t) => {
  const proxy = shared.local
  const openai = client(proxy, 'cut')
  const cut = (
    await openai.chat.completions.create({
      model: 'embedded',
      messages: [user('Tell me much.')],
      max_tokens: 3,
      ...{ ignore_eos: true },
    })
  ).choices[0]!
  t.equal(cut.finish_reason, 'length')
  await openai.chat.completions.create({
    model: 'embedded',
    messages: [user('Tell me much.'), cut.message, user('Go on.')],
    max_tokens: 3,
  })
  const [row] = (await proxy.get('/sessions/cut/trajectories')).trajectories
  const { turns } = await proxy.get('/sessions/cut')
  const end = (await proxy.get('/sessions/cut')).turns[1].prompt_token_ids[
    turns[0].prompt_token_ids.length + 3
  ]
  const { tokens } = (await (
    await fetch(`${(await proxy.get('/health')).engines[0].name}/tokenize`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: 'embedded', prompt: '<|im_end|>' }),
    })
  ).json()) as { tokens: number[] }
  t.equal(end, tokens[0])
  t.equal(row.response_mask[3], 0)
})

t.test('a sub-agent and a compaction become separate rows', async (t) => {
  const { proxy } = await startTokenProxy(t)
  const openai = client(proxy)
  const sendRequest = async (messages: ChatCompletionMessageParam[]) =>
    (await openai.chat.completions.create({ model: 'embedded', messages, max_tokens: 6 })).choices[0]!.message
  const main: ChatCompletionMessageParam[] = [{ role: 'system', content: 'Main.' }, user('One.')]
  main.push(await sendRequest(main), user('Two.'))
  const sub: ChatCompletionMessageParam[] = [{ role: 'system', content: 'Sub-agent.' }, user('Look.')]
  sub.push(await sendRequest(sub), user('More.'))
  await sendRequest(sub)
  main.push(await sendRequest(main), user('Three.'))
  await sendRequest(main)
  await sendRequest([{ role: 'system', content: 'Main.' }, user('Summary of before. Four.')])
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.same(
    trajectories.map((row: { line: string; num_turns: number }) => [row.line, row.num_turns]),
    [
      ['subagent:1', 2],
      ['main', 3],
      ['main', 1],
    ],
  )
  t.same((await proxy.get('/health')).prompts, { first: 1, extended: 3, branched: 2 })
})

t.test('a turn that is continued a second time forks there', async (t) => {
  const proxy = shared.local
  const sendRequest = async (messages: ChatCompletionMessageParam[]) =>
    (await client(proxy, 'fork').chat.completions.create({ model: 'embedded', messages, max_tokens: 6 }))
      .choices[0]!.message
  const first = await sendRequest([user('One.')])
  await sendRequest([user('One.'), first, user('Two.')])
  await sendRequest([user('One.'), first, user('Two, edited.')])
  const { turns, prompts } = await proxy.get('/sessions/fork')
  t.match(turns[2].annotations.prompt, { reason: 'forked', from: turns[0].turn_id })
  t.same(prompts, { first: 1, extended: 1, forked: 1 })
})

t.test('a prompt that fills the context gets an empty response at once, and is recorded', async (t) => {
  const { proxy, engine } = await startTokenProxy(t, { contextLength: 40 })
  const sendRequest = (content: string) =>
    client(proxy).chat.completions.create({ model: 'embedded', messages: [user(content)] })
  const short = await sendRequest('Hi.')
  t.ok(short.usage!.total_tokens <= 40, 'the rest of the context bounds the completion')
  const served = engine.server.counters.served
  const full = await sendRequest('A long story, told at length. '.repeat(20))
  t.match(full.choices[0], { finish_reason: 'length', message: { content: '' } })
  t.equal(engine.server.counters.served, served, 'no engine received a request')
  const { turns } = await proxy.get('/sessions/s')
  t.match(turns[1], {
    status: 'completed',
    exact: true,
    completion_token_ids: { length: 0 },
    finish_reason: 'length',
  })
})

t.test('a row ends with the last engine request, not with a prompt that fills the context', async (t) => {
  const { proxy } = await startTokenProxy(t, { contextLength: 60 })
  const messages: ChatCompletionMessageParam[] = [user('Hi.')]
  const sendRequest = async () => {
    const body = { model: 'embedded', messages, max_tokens: 5 }
    return (await client(proxy).chat.completions.create(body)).choices[0]!.message
  }
  messages.push(await sendRequest(), user('A long story, told at length. '.repeat(20)))
  t.equal((await sendRequest()).content, '')
  const { turns } = await proxy.get('/sessions/s')
  const { trajectories, excluded_turns: excluded } = await proxy.get('/sessions/s/trajectories')
  t.equal(trajectories.length, 1)
  t.same(trajectories[0].response_ids, turns[0].completion_token_ids)
  t.match(excluded, { empty: 1 })
})

t.test(
  'where agents shorten their conversation for it, a prompt that fills the context is an error',
  async (t) => {
    const { proxy, engine } = await startTokenProxy(t, { contextLength: 40 })
    const content = 'A long story, told at length. '.repeat(20)
    const messages = await proxy.post('/s/v1/messages', {
      model: 'm',
      max_tokens: 9,
      messages: [user(content)],
    })
    t.match(messages.error, {
      type: 'invalid_request_error',
      message: /^prompt is too long: \d+ tokens > 40 maximum$/,
    })
    const response = await proxy.post('/s/v1/responses', { model: 'm', input: content })
    t.match(response.error, { type: 'invalid_request_error', code: 'context_length_exceeded' })
    t.equal(engine.server.counters.served, 0, 'no engine received a request')
    const { turns } = await proxy.get('/sessions/s')
    for (const turn of turns) t.match(turn, { status: 'failed', error: { code: 'context_length_exceeded' } })
    t.same((await proxy.get('/sessions/s/trajectories')).trajectories, [])
  },
)

t.test('requests that token mode does not support are rejected by name', async (t) => {
  const proxy = shared.local
  const reject = async (extra: object) =>
    client(proxy, 'refused')
      .chat.completions.create({ model: 'embedded', messages: [user('x')], tools: [calculator], ...extra })
      .then(
        () => ({}),
        (error: unknown) => error,
      )
  const allowed = {
    mode: 'auto',
    tools: [{ type: 'function', function: { name: calculator.function.name } }],
  }
  t.match(await reject({ tool_choice: { type: 'allowed_tools', allowed_tools: allowed } }), {
    status: 400,
    param: 'tool_choice',
    code: 'unsupported',
  })
  t.match(await reject({ continue_final_message: true, add_generation_prompt: true }), {
    param: 'continue_final_message',
  })
  t.match(await reject({ chat_template: '{{ messages }}' }), { param: 'chat_template' })
})

t.test('an engine that accepts no token ids is rejected at the start', async (t) => {
  const { url } = await startEngine(t)
  await t.rejects(startProxy(t, { engineUrls: [url], engineKind: 'openai', tokenizer: 'embedded' }), {
    code: 'start_failed',
    message: /accepts token ids/,
  })
})

t.test('stop strings end the text as the engine would, and their tokens are recorded', async (t) => {
  const proxy = shared.local
  const openai = client(proxy, 'stopped')
  const question = [user('What is 2 + 2?')]
  const full = (
    await openai.chat.completions.create({ model: 'embedded', messages: question, tools: [calculator] })
  ).choices[0]!
  const messages = [
    ...question,
    full.message,
    { role: 'tool' as const, tool_call_id: full.message.tool_calls![0]!.id, content: '4' },
  ]
  const stopped = await openai.chat.completions.create({
    model: 'embedded',
    messages,
    tools: [calculator],
    stop: [' is'],
  })
  t.match(stopped.choices[0], {
    finish_reason: 'stop',
    stop_reason: ' is',
    message: { content: 'The answer' },
  })
  const { turns } = await proxy.get('/sessions/stopped')
  t.equal(turns[1].completion_token_ids.length, stopped.usage?.completion_tokens)
})

t.test('tokens are counted for the actual prompt, which is not rendered again', async (t) => {
  const proxy = shared.local
  // So hot that the model writes words in tokens which the tokenizer would never choose.
  const hot = { temperature: 4, seed: 7 }
  const unthinking = { ...hot, chat_template_kwargs: { enable_thinking: false } }
  await proxy.post('/sessions', { session_id: 'hot', sampling_params: hot })
  await proxy.post('/sessions', { session_id: 'unthinking', sampling_params: unthinking })
  for (const sessionId of ['hot', 'unthinking']) {
    const anthropic = new Anthropic({ baseURL: `${proxy.url}/${sessionId}`, apiKey: 'none', maxRetries: 0 })
    const messages: Anthropic.MessageParam[] = []
    for (const question of ['Tell a long story.', 'And then?', 'Why?']) {
      messages.push({ role: 'user', content: question })
      const prompt = { model: 'embedded', messages }
      const counted = await anthropic.messages.countTokens(prompt)
      const second = await anthropic.messages.countTokens(prompt)
      const { usage, content } = await anthropic.messages.create({ ...prompt, max_tokens: 40 })
      t.equal(counted.input_tokens, usage.input_tokens, `${sessionId}: ${question}`)
      t.equal(second.input_tokens, usage.input_tokens, 'a count changes nothing')
      const text = content[0]?.type === 'text' ? content[0].text.trim() : ''
      messages.push({ role: 'assistant', content: text || 'nothing' })
    }
    const { turns } = await proxy.get(`/sessions/${sessionId}`)
    t.same(
      turns.map((turn: { index: number }) => turn.index),
      [0, 1, 2],
    )
    t.equal(turns[2].annotations.prompt.reason, 'extended')
  }
})

t.test('health reports what renders prompts: the template', async (t) => {
  const { proxy } = await startTokenProxy(t)
  t.match((await proxy.get('/health')).prompt_format, { name: 'template', chosen_by: 'template' })
})

t.test('health reports what renders prompts: the rules that the operator selected', async (t) => {
  const { proxy } = await startTokenProxy(t, { promptFormat: 'harmony' })
  t.match(await proxy.get('/health'), {
    prompt_format: { name: 'harmony', chosen_by: 'name' },
    reasoning_efforts: { accepted: ['low', 'medium', 'high'], read: true },
  })
  const request = { model: 'm', messages: [user('Well?')], reasoning_effort: 'none', max_tokens: 1 }
  t.match(await proxy.post('/s/v1/chat/completions', request), {
    error: { message: /harmony supports only low, medium, high/ },
  })
})
