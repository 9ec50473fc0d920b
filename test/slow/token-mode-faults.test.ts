/** Known faults of recorders of LLM requests, in token mode, with engines that are reached directly or by workers. */
import OpenAI from 'openai'
import type { ChatCompletionMessage, ChatCompletionMessageParam } from 'openai/resources/chat/completions'
import t, { type Test } from 'tap'
import { Playbook } from '../../src/embedded/engine/playbook.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startEngine } from '../helpers/engine.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker } from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

const user = (content: string): ChatCompletionMessageParam => ({ role: 'user', content })
const tool = (name: string) => ({
  type: 'function' as const,
  function: { name, parameters: { type: 'object' } },
})

interface Row {
  response_ids: number[]
  response_mask: number[]
  turns: { turn_id: string }[]
}

interface Turn {
  turn_id: string
  status: string
  prompt_token_ids: number[]
  completion_token_ids: number[]
  annotations: { prompt: { reason: string; from?: string; mismatched: boolean } }
}

const getSampled = (rows: Row[]) =>
  rows.flatMap((row) => row.response_ids.filter((_, i) => row.response_mask[i] === 1))
const getRows = async (proxy: TestProxy): Promise<Row[]> =>
  (await proxy.get('/sessions/s/trajectories')).trajectories
const getTurns = async (proxy: TestProxy): Promise<Turn[]> => (await proxy.get('/sessions/s')).turns
const turnIds = (rows: Row[]) => rows.map((row) => row.turns.map(({ turn_id }) => turn_id)).sort()

function client(proxy: TestProxy, options: ConstructorParameters<typeof OpenAI>[0] = {}): OpenAI {
  return new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0, ...options })
}

async function sendRequest(
  openai: OpenAI,
  messages: ChatCompletionMessageParam[],
  extra: object = {},
  signal?: AbortSignal,
): Promise<ChatCompletionMessage> {
  const body = { model: 'embedded', messages, max_tokens: 8, ...extra }
  return (await openai.chat.completions.create(body, { signal })).choices[0]!.message
}

type Start = (t: Test, engineUrl: string, overrides?: Partial<ServeConfig>) => Promise<TestProxy>

const MODES = {
  local: (t: Test, engineUrl: string, overrides: Partial<ServeConfig> = {}) =>
    startProxy(t, { engineUrls: [engineUrl], tokenizer: 'embedded', ...overrides }),
  relay: async (t: Test, engineUrl: string, overrides: Partial<ServeConfig> = {}) => {
    const proxy = await startProxy(t, { mode: 'relay', tokenizer: 'embedded', ...overrides })
    joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engineUrl] })
    return proxy
  },
}

for (const mode of ['local', 'relay'] as const) {
  const start: Start = MODES[mode]
  t.test(`in ${mode} mode`, async (t) => {
    t.test('the same prompt sampled twice and continued from the first is built on the first', async (t) => {
      const proxy = await start(t, (await startEngine(t)).url)
      const openai = client(proxy)
      const first = await sendRequest(openai, [user('Hello.')], { seed: 1 })
      const second = await sendRequest(openai, [user('Hello.')], { seed: 2 })
      t.not(first.content, second.content)
      await sendRequest(openai, [user('Hello.'), first, user('And then?')])
      const [one, two, three] = (await getTurns(proxy)) as [Turn, Turn, Turn]
      t.equal(three.annotations.prompt.from, one.turn_id)
      t.same(turnIds(await getRows(proxy)), [[one.turn_id, three.turn_id], [two.turn_id]].sort())
    })

    t.test(
      'an edited message and other tools start separate rows, and nothing sampled is lost',
      async (t) => {
        const proxy = await start(t, (await startEngine(t)).url)
        const openai = client(proxy)
        const completion = await sendRequest(openai, [user('Hello.')], { tools: [tool('a')] })
        const edited: ChatCompletionMessageParam = { role: 'assistant', content: 'Nobody sampled this.' }
        await sendRequest(openai, [user('Hello.'), edited, user('Go on.')], { tools: [tool('a')] })
        await sendRequest(openai, [user('Hello.'), completion, user('Go on.')], { tools: [tool('b')] })
        const turns = await getTurns(proxy)
        t.same(
          turns.map((turn) => turn.annotations.prompt.reason),
          ['first', 'branched', 'branched'],
        )
        const rows = await getRows(proxy)
        t.equal(rows.length, 3)
        t.same(getSampled(rows).sort(), turns.flatMap((turn) => turn.completion_token_ids).sort())
      },
    )

    t.test(
      'a tool call with malformed arguments is returned as text, and stays as it was sampled',
      async (t) => {
        const content = '<tool_call>\n{"name": "a", "arguments": {"x": 1,}}\n</tool_call>'
        const playbook = new Playbook({ rules: [{ name: 'only', when: {}, answer: { content } }] })
        const proxy = await start(t, (await startEngine(t, { playbook })).url)
        const openai = client(proxy)
        const completion = await sendRequest(openai, [user('Hello.')], { tools: [tool('a')], max_tokens: 60 })
        t.equal(completion.content, content, 'an invalid call is returned as it was written')
        await sendRequest(openai, [user('Hello.'), completion, user('Go on.')], { tools: [tool('a')] })
        const turns = await getTurns(proxy)
        t.equal(turns[1]!.annotations.prompt.reason, 'extended')
        t.same(
          getSampled(await getRows(proxy)),
          turns.flatMap((turn) => turn.completion_token_ids),
        )
      },
    )

    t.test(
      'a response that its client cancelled is not trained, and one that was lost and retried is trained once',
      async (t) => {
        const { url } = await startEngine(t, { latencyMs: 300 })
        const proxy = await start(t, url)
        const controller = new AbortController()
        const lost = sendRequest(client(proxy), [user('Hello.')], {}, controller.signal).catch(
          (error: unknown) => error,
        )
        await until(async () => /"in_flight":1/.test(JSON.stringify(await proxy.get('/health'))))
        controller.abort()
        t.ok((await lost) instanceof OpenAI.APIUserAbortError)
        // Another question, because the client knows that the one above failed, and a retry would belong to it.
        for (const retry of ['0', '1'])
          await sendRequest(client(proxy, { defaultHeaders: { 'x-stainless-retry-count': retry } }), [
            user('Hi.'),
          ])
        const turns = await getTurns(proxy)
        t.same(
          turns.map(({ status }) => status),
          ['aborted', 'completed'],
        )
        t.same(getSampled(await getRows(proxy)), turns[1]!.completion_token_ids)
      },
    )

    t.test('max_completion_tokens limits a response as max_tokens does, and neither means 16', async (t) => {
      const proxy = await start(t, (await startEngine(t)).url)
      for (const limit of [{ max_tokens: undefined, max_completion_tokens: 3 }, { max_tokens: 40 }])
        await sendRequest(client(proxy), [user('Go on and on.')], { ...limit, ignore_eos: true })
      const lengths = (await getTurns(proxy)).map((turn) => turn.completion_token_ids.length)
      t.same(lengths, [3, 40])
    })

    t.test('concurrent requests of one session are separate turns, and each can be continued', async (t) => {
      const { url } = await startEngine(t, { latencyMs: 100 })
      const proxy = await start(t, url)
      const openai = client(proxy)
      const runConversation = async (question: string) => {
        const completion = await sendRequest(openai, [user(question)])
        await sendRequest(openai, [user(question), completion, user('Go on.')])
      }
      await Promise.all([runConversation('One.'), runConversation('Two.'), runConversation('Three.')])
      const turns = await getTurns(proxy)
      t.equal(turns.filter((turn) => turn.annotations.prompt.reason === 'extended').length, 3)
      const rows = await getRows(proxy)
      t.same(
        rows.map((row) => row.turns.length),
        [2, 2, 2],
      )
      t.same(getSampled(rows).sort(), turns.flatMap((turn) => turn.completion_token_ids).sort())
    })

    t.test('a prompt that fills the context ends a stream at once, empty, and is recorded', async (t) => {
      const engine = await startEngine(t)
      const proxy = await start(t, engine.url, { contextLength: 40 })
      await sendRequest(client(proxy), [user('Hi.')])
      const { served } = engine.server.counters
      const full = await client(proxy)
        .chat.completions.stream({ model: 'embedded', messages: [user('A long story. '.repeat(40))] })
        .finalChatCompletion()
      t.match(full.choices[0], { finish_reason: 'length', message: { content: '' } })
      t.equal(engine.server.counters.served, served, 'no engine received a request')
      t.match((await getTurns(proxy))[1], {
        status: 'completed',
        exact: true,
        completion_token_ids: { length: 0 },
      })
    })

    t.test(
      'an engine that reports another prompt than it received is counted, and recorded as reported',
      async (t) => {
        const { url, close } = await startFakeVllm({ model: 'embedded', reportedPromptIds: [101, 102, 103] })
        t.teardown(close)
        const proxy = await start(t, url)
        await sendRequest(client(proxy), [user('Hello.')])
        const { turns, prompts } = await proxy.get('/sessions/s')
        t.same(turns[0].annotations.prompt, { reason: 'first', reused_tokens: 0, mismatched: true })
        t.same(turns[0].prompt_token_ids, [101, 102, 103], 'the prompt that the engine reports')
        t.same(prompts, { first: 1, mismatched: 1 })
        t.same((await proxy.get('/health')).prompts, { first: 1, mismatched: 1 })
      },
    )
  })
}
