/** Several choices for one request (`n` above 1), with the official client, in each mode. */
import OpenAI from 'openai'
import type { ChatCompletionMessageParam } from 'openai/resources/chat/completions'
import t, { type Test } from 'tap'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startEngine } from '../helpers/engine.ts'
import { KEYS } from '../helpers/keys.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { getTurns, joinWorker } from '../helpers/relay-rig.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

const question: ChatCompletionMessageParam[] = [{ role: 'user', content: 'Tell me about otters.' }]
const N = 3

const MODES: Record<string, Partial<ServeConfig>> = {
  'local, chat mode': {},
  'local, token mode': { tokenizer: 'embedded' },
  'relay, chat mode': { mode: 'relay' },
  'relay, token mode': { mode: 'relay', tokenizer: 'embedded' },
}

async function startMode(t: Test, config: Partial<ServeConfig>): Promise<TestProxy> {
  const engine = await startEngine(t)
  if (config.mode !== 'relay') return startProxy(t, { engineUrls: [engine.url], ...config })
  const proxy = await startProxy(t, config)
  joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engine.url] })
  return proxy
}

const client = (proxy: TestProxy, sessionId: string) =>
  new OpenAI({ baseURL: proxy.baseUrl(sessionId), apiKey: 'none', maxRetries: 0 })

interface Choice {
  text: string
  ids: number[]
  finish: string | null
}

/** Collects the choices of a stream, and the order of their chunks. */
async function readStream(chunks: AsyncIterable<OpenAI.ChatCompletionChunk | OpenAI.Completion>) {
  const choices: Choice[] = Array.from({ length: N }, () => ({ text: '', ids: [], finish: null }))
  const order: number[] = []
  const ids = new Set<string>()
  let usage: OpenAI.CompletionUsage | null | undefined
  for await (const chunk of chunks) {
    ids.add(chunk.id)
    usage = chunk.usage ?? usage
    for (const choice of chunk.choices) {
      const collected = choices[choice.index]!
      collected.text += ('delta' in choice ? choice.delta.content : choice.text) ?? ''
      collected.ids.push(...((choice as { token_ids?: number[] }).token_ids ?? []))
      collected.finish = choice.finish_reason ?? collected.finish
      order.push(choice.index)
    }
  }
  return { choices, order, usage, ids: [...ids] }
}

/** Checks that each choice is a turn as the agent read it, exact, and trained once. */
async function checkTurns(t: Test, proxy: TestProxy, choices: Choice[], usage: OpenAI.CompletionUsage) {
  const turns = await getTurns(proxy, 's')
  t.same(
    turns.map((turn: { completion_text: string; completion_token_ids: number[]; finish_reason: string }) => ({
      text: turn.completion_text,
      ids: turn.completion_token_ids,
      finish: turn.finish_reason,
    })),
    choices,
  )
  t.ok(new Set(choices.map(({ text }) => text)).size > 1, 'they are not copies of one another')
  t.ok(
    turns.every(({ exact, status }: { exact: boolean; status: string }) => exact && status === 'completed'),
  )
  const prompt = turns[0].prompt_token_ids.length
  const sampled = choices.reduce((sum, { ids }) => sum + ids.length, 0)
  t.match(usage, { prompt_tokens: prompt, completion_tokens: sampled, total_tokens: prompt + sampled })
  const { trajectories, excluded_turns: excluded } = await proxy.get('/sessions/s/trajectories')
  t.equal(excluded.superseded, 0)
  t.same(
    trajectories.map((row: { response_ids: number[] }) => row.response_ids),
    choices.map(({ ids }) => ids),
  )
  t.ok(trajectories.every((row: { response_mask: number[] }) => row.response_mask.every((bit) => bit === 1)))
}

const params = {
  model: 'embedded',
  n: N,
  seed: 5,
  max_tokens: 12,
  temperature: 1,
  ...{ return_token_ids: true },
}

for (const [mode, config] of Object.entries(MODES)) {
  t.test(`${mode}: n choices are n turns, each exact and trained once, streamed or not`, async (t) => {
    const proxy = await startMode(t, config)
    await t.test('chat', (t) => chatChoices(t, proxy))
    await proxy.post('/sessions/s/reset')
    await t.test('completions', (t) => completionChoices(t, proxy))
  })
}

async function chatChoices(t: Test, proxy: TestProxy) {
  const openai = client(proxy, 's')
  const full = await openai.chat.completions.create({ ...params, messages: question })
  const expected = full.choices.map(({ message, finish_reason, ...choice }, index) => {
    t.equal(choice.index, index)
    return {
      text: message.content ?? '',
      ids: (choice as unknown as { token_ids: number[] }).token_ids,
      finish: finish_reason,
    }
  })
  await checkTurns(t, proxy, expected, full.usage!)
  await proxy.post('/sessions/s/reset')
  const stream = await openai.chat.completions.create({
    ...params,
    messages: question,
    stream: true,
    stream_options: { include_usage: true },
  })
  const streamed = await readStream(stream)
  t.same(streamed.choices, expected, 'the same seed: the same choices')
  t.equal(streamed.ids.length, 1, 'one response has one id')
  t.same(new Set(streamed.order), new Set([0, 1, 2]))
  await checkTurns(t, proxy, streamed.choices, streamed.usage!)
}

async function completionChoices(t: Test, proxy: TestProxy) {
  const openai = client(proxy, 's')
  const full = await openai.completions.create({ ...params, prompt: 'The', best_of: N })
  const expected = full.choices.map(({ text, finish_reason, ...choice }) => {
    return { text, ids: (choice as unknown as { token_ids: number[] }).token_ids, finish: finish_reason }
  })
  await checkTurns(t, proxy, expected, full.usage!)
  await proxy.post('/sessions/s/reset')
  const stream = await openai.completions.create({
    ...params,
    prompt: 'The',
    stream: true,
    stream_options: { include_usage: true },
  })
  const streamed = await readStream(stream)
  t.same(streamed.choices, expected)
  await checkTurns(t, proxy, streamed.choices, streamed.usage!)
}

t.test('an agent continues from any of the choices: the others remain separate rows', async (t) => {
  const proxy = await startMode(t, { tokenizer: 'embedded' })
  const openai = client(proxy, 's')
  const { choices } = await openai.chat.completions.create({ ...params, messages: question })
  const messages = [...question, choices[1]!.message, { role: 'user' as const, content: 'And seals?' }]
  await openai.chat.completions.create({ model: 'embedded', messages, max_tokens: 5 })
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.same(
    trajectories.map((row: { turns: { index: number }[] }) => row.turns.map(({ index }) => index)),
    [[0], [2], [1, 3]],
  )
})

t.test('more choices than --choice-limit allows are rejected with the limit', async (t) => {
  const proxy = await startMode(t, { choiceLimit: 2 })
  const openai = client(proxy, 's')
  await t.rejects(openai.chat.completions.create({ ...params, messages: question }), {
    status: 400,
    param: 'n',
    message: /'n' must be at most 2, and is 3/,
  })
  const { choices } = await openai.chat.completions.create({ ...params, n: 2, messages: question })
  t.equal(choices.length, 2)
})

t.test("an agent's choices count as its requests", async (t) => {
  const proxy = await startMode(t, { ...KEYS, agentCallLimit: N })
  const { agent_key: apiKey } = await proxy.post('/sessions', { session_id: 's' })
  const openai = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey, maxRetries: 0 })
  for (let attempt = 0; attempt < 2; attempt += 1) {
    const { choices } = await openai.chat.completions.create({ ...params, messages: question })
    t.equal(choices.length, N, 'they are released')
  }
  await t.rejects(openai.chat.completions.create({ ...params, n: N + 1, messages: question }), {
    status: 429,
    code: 'too_many_calls',
  })
})

for (const stream of [false, true]) {
  t.test(
    `a request with choices fails with the engine's error for one of them, stream: ${stream}`,
    async (t) => {
      const engine = await startScriptedServer((request, response) => {
        if (request.method === 'GET') return sendJson(response, { data: [{ id: 'm', owned_by: 'vllm' }] })
        sendJson(response, { error: { message: 'no such adapter', type: 'BadRequestError', code: 400 } }, 400)
      })
      t.teardown(() => engine.close())
      const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'vllm' })
      const rejected = client(proxy, 's').chat.completions.create({ ...params, messages: question, stream })
      await t.rejects(rejected, { status: 400, message: /no such adapter/ })
      const turns = await getTurns(proxy, 's')
      t.equal(turns.length, N)
      t.ok(turns.every(({ status }: { status: string }) => status === 'failed' || status === 'aborted'))
    },
  )
}
