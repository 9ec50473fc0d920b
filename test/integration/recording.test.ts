/** Known errors of recorders of LLM requests, from the agent's socket to the trainer's rows. */
import OpenAI from 'openai'
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions'
import t from 'tap'
import { loadEmbeddedModel } from '../../src/embedded/engine/embedded-model.ts'
import { rankTokens } from '../../src/embedded/engine/score.ts'
import { ToolCallIds } from '../../src/proxy/session/matching/tool-call-ids.ts'
import { startEngine } from '../helpers/engine.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

const user = (content: string): ChatCompletionMessageParam => ({ role: 'user', content })

function client(proxy: TestProxy, options: Partial<ConstructorParameters<typeof OpenAI>[0]> = {}): OpenAI {
  return new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0, ...options })
}

async function sendRequest(openai: OpenAI, messages: ChatCompletionMessageParam[], extra: object = {}) {
  const body = { model: 'embedded', messages, max_tokens: 8, ...extra }
  return (await openai.chat.completions.create(body)).choices[0]!.message
}

interface Row {
  response_ids: number[]
  response_mask: number[]
  turns: { turn_id: string }[]
}

const getSampled = (rows: Row[]) =>
  rows.flatMap((row) => row.response_ids.filter((_, i) => row.response_mask[i] === 1))

t.test('the logprobs of a recorded session equal those computed from its ids', async (t) => {
  const { url } = await startEngine(t)
  const proxy = await startProxy(t, { engineUrls: [url] })
  const openai = client(proxy)
  const messages = [user('Tell me of the sea.')]
  for (let i = 0; i < 3; i++) {
    messages.push(
      await sendRequest(openai, messages, { temperature: 1.3, top_p: 0.9, seed: i, max_tokens: 25 }),
      user('Go on.'),
    )
  }
  const { ngrams } = loadEmbeddedModel()
  const { turns } = await proxy.get('/sessions/s')
  t.equal(turns.length, 3)
  for (const turn of turns) {
    t.equal(turn.exact, true)
    const { prompt_token_ids: prompt, completion_token_ids: completion } = turn
    const ranked = rankTokens(ngrams, [...prompt, ...completion], prompt.length, 0)
    const logprobs = ranked.map(({ logprob }) => logprob)
    t.same(turn.completion_logprobs, logprobs)
  }
})

t.test(
  'the same prompt sampled twice and continued from the first completion is built on the first',
  async (t) => {
    const proxy = await startProxy(t)
    const openai = client(proxy)
    const first = await sendRequest(openai, [user('Hello.')], { seed: 1 })
    const second = await sendRequest(openai, [user('Hello.')], { seed: 2 })
    t.not(first.content, second.content)
    await sendRequest(openai, [user('Hello.'), first, user('And then?')], { seed: 3 })
    const { turns } = await proxy.get('/sessions/s')
    const { trajectories } = await proxy.get('/sessions/s/trajectories')
    const ids = (row: Row) => row.turns.map((turn) => turn.turn_id)
    t.same(trajectories.map(ids).sort(), [[turns[0].turn_id, turns[2].turn_id], [turns[1].turn_id]].sort())
  },
)

t.test('an edited assistant message is recorded as edited, and starts a separate row', async (t) => {
  const proxy = await startProxy(t)
  const openai = client(proxy)
  await sendRequest(openai, [user('Hello.')])
  const edited: ChatCompletionMessageParam = {
    role: 'assistant',
    content: 'Something that was never sampled.',
  }
  await sendRequest(openai, [user('Hello.'), edited, user('Go on.')])
  const { turns } = await proxy.get('/sessions/s')
  t.same(turns[1].request_messages[1], edited)
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.equal(trajectories.length, 2)
  t.same(
    getSampled(trajectories).sort(),
    turns.flatMap((turn: { completion_token_ids: number[] }) => turn.completion_token_ids).sort(),
  )
})

t.test("a response after the client's timeout is not trained; the next one is", async (t) => {
  const { url, engine } = await startEngine(t)
  const generate = engine.generate.bind(engine)
  const [arrived, released] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  // The engine responds to the client's first request after its second one, however long either takes.
  engine.generate = async (request, sink, signal) => {
    if (JSON.stringify(request.body).includes('Hello.')) {
      engine.generate = generate
      arrived.resolve()
      await released.promise
    }
    await generate(request, sink, signal)
  }
  const proxy = await startProxy(t, { engineUrls: [url], retryGraceMs: 50 })
  const patience = new AbortController()
  const body = { model: 'embedded', messages: [user('Hello.')] }
  const impatient = client(proxy).chat.completions.create(body, { signal: patience.signal })
  await arrived.promise
  patience.abort()
  t.ok((await impatient.catch((error) => error)) instanceof OpenAI.APIUserAbortError)
  const getStatus = async (turn: number) => (await proxy.get('/sessions/s')).turns[turn]?.status
  await until(async () => (await getStatus(0)) === 'aborted')
  await sendRequest(client(proxy), [user('Hello.')])
  released.resolve()
  const turns = await until(async () => {
    const session = await proxy.get('/sessions/s')
    return session.turns.every(({ status }: { status: string }) => status !== 'open') && session.turns
  })
  t.same(
    turns.map((turn: { status: string }) => turn.status),
    ['aborted', 'completed'],
  )
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.same(getSampled(trajectories), turns[1].completion_token_ids)
})

t.test('a response that was lost and retried is trained once, because the client gets it', async (t) => {
  const proxy = await startProxy(t)
  const post = (retry: number, content: string) =>
    fetch(`${proxy.baseUrl('s')}/chat/completions`, {
      method: 'POST',
      headers: { 'x-stainless-retry-count': String(retry) },
      body: JSON.stringify({ model: 'embedded', messages: [user(content)], max_tokens: 5 }),
    }).then((response) => response.json())
  const original = await post(0, 'Hello.')
  t.same(await post(1, 'Hello.'), original)
  const { turns } = await proxy.get('/sessions/s')
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.same(getSampled(trajectories), turns[0].completion_token_ids)
})

t.test('max_completion_tokens limits a response as max_tokens does, and neither means 16', async (t) => {
  const { url } = await startEngine(t)
  const proxy = await startProxy(t, { engineUrls: [url] })
  const openai = client(proxy)
  const limits = [{ max_tokens: undefined, max_completion_tokens: 3 }, { max_tokens: 40 }]
  for (const limit of limits)
    await sendRequest(openai, [user('Go on and on.')], { ...limit, ignore_eos: true })
  const { turns } = await proxy.get('/sessions/s')
  t.same(
    turns.map((turn: { completion_token_ids: number[] }) => turn.completion_token_ids.length),
    [3, 40],
  )
})

t.test('a crashed engine listed first does not make new sessions fail', async (t) => {
  const { url } = await startEngine(t)
  const dead = 'http://127.0.0.1:1'
  for (const engineKind of ['auto', 'vllm'] as const) {
    const proxy = await startProxy(t, { engineUrls: [dead, url], engineKind, db: 'memory' })
    for (let i = 0; i < 5; i++) {
      const openai = client(proxy, { baseURL: proxy.baseUrl(`${engineKind}-${i}`) })
      t.ok((await sendRequest(openai, [user('Hello.')])).role)
    }
  }
})

t.test('the next request leaves a crashed engine for another one', async (t) => {
  const [first, second] = [await startEngine(t), await startEngine(t)]
  const proxy = await startProxy(t, { engineUrls: [first.url, second.url], healthIntervalMs: 60_000 })
  const openai = client(proxy)
  await sendRequest(openai, [user('Hello.')])
  const { turns } = await proxy.get('/sessions/s')
  const [stuck, other] = turns[0].engine === first.url ? [first, second] : [second, first]
  await stuck.server.close()
  await sendRequest(openai, [user('Hello.'), user('Again.')])
  const after = (await proxy.get('/sessions/s')).turns
  t.equal(after[1].status, 'completed')
  t.equal(after[1].engine, other.url)
})

t.test('lists of a turn are lists, whatever its outcome', async (t) => {
  const { url } = await startEngine(t)
  const proxy = await startProxy(t, { engineUrls: [url] })
  await sendRequest(client(proxy), [user('Hello.')], { max_tokens: 100_000_000 }).catch(() => undefined)
  const session = await proxy.get('/sessions/s')
  t.equal(session.turns[0].status, 'failed')
  t.equal(session.turns[0].error.code, 'engine_rejected')
  for (const field of [
    'request_messages',
    'completion_token_ids',
    'completion_logprobs',
    'prompt_token_ids',
    'tool_calls',
    'tools',
  ]) {
    t.ok(Array.isArray(session.turns[0][field]), field)
  }
  t.equal(session.turns[0].completion_text, '')
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.same(trajectories, [])
})

t.test('an engine that reports no ids is recorded as inexact, and nothing of it is trained', async (t) => {
  const { url, close } = await startFakeVllm({ strict: true, model: 'embedded' })
  t.teardown(close)
  const proxy = await startProxy(t, { engineUrls: [url] })
  const message = await sendRequest(client(proxy), [user('Hello.')])
  const { turns } = await proxy.get('/sessions/s')
  t.equal(turns[0].completion_text, message.content ?? '')
  t.equal(turns[0].exact, false)
  t.match(turns[0].inexact_reason, /token ids of the prompt/)
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.match(trajectories, [
    { exact: false, response_ids: { length: 0 }, inexact_reason: /token ids of the prompt/ },
  ])
})

t.test("the session's sampling parameters reach the engine, whatever the agent requests", async (t) => {
  const proxy = await startProxy(t)
  await proxy.post('/sessions', { session_id: 's', sampling_params: { max_tokens: 2, ignore_eos: true } })
  await sendRequest(client(proxy), [user('Hello.')], {
    max_tokens: 50,
    logprobs: null,
    return_token_ids: false,
  })
  const { turns } = await proxy.get('/sessions/s')
  t.equal(turns[0].completion_token_ids.length, 2)
  t.equal(turns[0].exact, true, "the client's logprobs fields do not disable recording")
})

t.test('two concurrent requests of one session are two turns', async (t) => {
  const { url } = await startEngine(t, { latencyMs: 100 })
  const proxy = await startProxy(t, { engineUrls: [url] })
  const openai = client(proxy)
  const responses = await Promise.all(
    ['One.', 'Two.', 'Three.'].map((text) => sendRequest(openai, [user(text)])),
  )
  const { turns } = await proxy.get('/sessions/s')
  t.same(
    turns.map((turn: { index: number }) => turn.index),
    [0, 1, 2],
  )
  t.same(
    turns.map((turn: { completion_text: string }) => turn.completion_text).sort(),
    responses.map((message) => message.content).sort(),
  )
})

/** The same completion each time, which the template renders as it was sampled. */
const GREEDY = { max_tokens: 40, temperature: 0 }

t.test(
  'in chat mode each turn records whether its prompt still begins with the turn that it continues',
  async (t) => {
    const proxy = await startProxy(t)
    const openai = client(proxy)
    const first = await sendRequest(openai, [user('Hello.')], GREEDY)
    await sendRequest(openai, [user('Hello.'), first, user('Go on.')])
    // Trimmed white space is the same message for matching, and other tokens for a template that renders it again.
    const padded = { ...first, content: `  ${first.content}` } as ChatCompletionMessageParam
    await sendRequest(openai, [user('Hello.'), padded, user('Go on, please.')])
    await sendRequest(openai, [user('Something else.')])
    const { turns } = await proxy.get('/sessions/s')
    t.same(
      turns.map((turn: { annotations: { prompt: unknown } }) => turn.annotations.prompt),
      [
        { reason: 'first' },
        { reason: 'extended', from: turns[0].turn_id },
        { reason: 'broken', from: turns[0].turn_id },
        { reason: 'branched' },
      ],
    )
    t.same((await proxy.get('/health')).prompts, { first: 1, extended: 1, broken: 1, branched: 1 })
  },
)

t.test('a turn that is continued a second time forks there, in chat mode too', async (t) => {
  const proxy = await startProxy(t)
  const openai = client(proxy)
  const first = await sendRequest(openai, [user('Hello.')], GREEDY)
  const second = await sendRequest(openai, [user('Hello.'), first, user('Go on.')], GREEDY)
  await sendRequest(openai, [user('Hello.'), first, user('Go on, but shorter.')])
  await sendRequest(openai, [user('Hello.'), first, user('Go on.'), second, user('More.')])
  const { turns, prompts } = await proxy.get('/sessions/s')
  t.same(
    turns.map((turn: { annotations: { prompt: unknown } }) => turn.annotations.prompt),
    [
      { reason: 'first' },
      { reason: 'extended', from: turns[0].turn_id },
      { reason: 'forked', from: turns[0].turn_id },
      { reason: 'extended', from: turns[1].turn_id },
    ],
  )
  t.same(prompts, { first: 1, extended: 2, forked: 1 })
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.equal(trajectories.length, 2, 'the reason names the origin of the second row')
})

t.test('a tool call of a lost turn is reported in the session, its tree and the metrics', async (t) => {
  for (const tokenizer of [undefined, 'embedded']) {
    const proxy = await startProxy(t, { db: 'memory', ...(tokenizer && { tokenizer }) })
    const openai = client(proxy)
    await sendRequest(openai, [user('task')])
    const id = new ToolCallIds().create(undefined)
    const called = { id, type: 'function' as const, function: { name: 'f', arguments: '{}' } }
    const messages: ChatCompletionMessageParam[] = [
      { role: 'assistant', content: null, tool_calls: [called] },
      { role: 'tool', tool_call_id: id, content: 'done' },
    ]
    await sendRequest(openai, [user('task'), ...messages])
    // Reported once: the next request repeats it.
    await sendRequest(openai, [user('task'), ...messages, user('Go on.')])
    const kinds = [undefined, ['unknown_id'], undefined]
    const { turns, changed_calls: counts } = await proxy.get('/sessions/s')
    t.same(counts, { unknown_id: 1 })
    t.same(
      turns.map((turn: { annotations: { echo?: { kinds: string[] } } }) => turn.annotations.echo?.kinds),
      kinds,
    )
    const tree = await proxy.get('/sessions/s/tree')
    t.same(
      tree.turns.map((turn: { changed_calls: string[] }) => turn.changed_calls),
      kinds.map((kind) => kind ?? []),
    )
    const metrics = await (await fetch(`${proxy.url}/metrics`)).text()
    t.match(metrics, 'llm_proxy_changed_echoes_total{kind="unknown_id"} 1\n')
  }
})

t.test("examples in a session's first request are not lost turns", async (t) => {
  const proxy = await startProxy(t)
  const examples = [user('1 + 1?'), { role: 'assistant', content: '2' } as const]
  await sendRequest(client(proxy), [...examples, user('2 + 2?')])
  await sendRequest(client(proxy), [...examples, user('3 + 3?')])
  t.same((await proxy.get('/sessions/s')).prompts, { first: 1, branched: 1 })
})

t.test('a prompt that chat mode cannot compare is unknown', async (t) => {
  const db = `${t.testdir({})}/restart.db`
  const before = await startProxy(t, { db })
  const first = await sendRequest(client(before), [user('Hello.')])
  await before.server.stop(1_000)
  const after = await startProxy(t, { db })
  const openai = client(after)
  const second = await sendRequest(openai, [user('Hello.'), first, user('Go on.')])
  await sendRequest(openai, [user('Hello.'), first, user('Go on.'), second, user('And on.')])
  const { turns, prompts } = await after.get('/sessions/s')
  t.same(turns[1].annotations.prompt, { reason: 'unknown' }, 'the previous turn is from another process')
  t.match(turns[2].annotations.prompt, { from: turns[1].turn_id })
  t.match(prompts, { first: 1, unknown: 1 })
  await sendRequest(openai, [user('Something else.')])
  t.match((await after.get('/sessions/s')).prompts, { first: 1, branched: 1 })
})
