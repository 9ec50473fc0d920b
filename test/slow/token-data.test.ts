import { readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { tableFromIPC } from 'apache-arrow'
import Database from 'better-sqlite3'
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { getEmbeddedModelFolder } from '../../src/embedded/engine/embedded-model.ts'
import { TOKEN_DATA_KINDS } from '../../src/protocol/token-data/kinds.ts'
import { unpackTokenData } from '../../src/protocol/token-data/token-data.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import { createLocalBackend } from '../../src/proxy/engines/dispatch/local-backend.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { loadTokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readParquet } from '../../src/rollout/datasets/parquet-file.ts'
import { HttpClient } from '../../src/rollout/http-client.ts'
import { ProxyClient } from '../../src/rollout/proxy-client.ts'
import { type DetailedEngineOptions, startDetailedEngine } from '../helpers/detailed-engine.ts'
import { startEngine } from '../helpers/engine.ts'
import { Forwarder } from '../helpers/forwarder.ts'
import { runLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { startRelayProxy, startWorkerClient, untilWorkers } from '../helpers/relay-rig.ts'
import { findFault, getMask, type TokenDataJson } from '../helpers/reported-details.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { IS_FULL } from '../helpers/tier.ts'

const ALL = ['sampling_mask', 'top_logprobs:2', 'prompt_logprobs:1', 'routed_experts', 'weight_versions']
const STREAMED_KINDS = ['sampling_mask', 'top_logprobs:2', 'weight_versions']
/** A mask is requested where top_k bounds it. */
const FILTERED = { temperature: 0.9, top_p: 0.8, top_k: 40 }

let lastSeed = 0
async function startTestEngine(t: Test, options: Partial<DetailedEngineOptions> = {}) {
  const engine = await startDetailedEngine({ seed: ++lastSeed, ...options })
  t.teardown(() => engine.close())
  return engine
}

type Message = OpenAI.ChatCompletionMessageParam

/** Sends one request. @returns the completion's text */
async function sendRequest(
  proxy: TestProxy,
  sessionId: string,
  messages: Message[],
  stream: boolean,
): Promise<string> {
  const agent = new OpenAI({ baseURL: proxy.baseUrl(sessionId), apiKey: 'none', maxRetries: 0 })
  const body = { model: 'detailed', messages, ...FILTERED, max_tokens: 16 }
  if (!stream) return (await agent.chat.completions.create(body)).choices[0]!.message.content!
  let text = ''
  for await (const chunk of await agent.chat.completions.create({ ...body, stream }))
    text += chunk.choices[0]?.delta.content ?? ''
  return text
}

const user = (content: string): Message => ({ role: 'user', content })
const assistant = (content: string): Message => ({ role: 'assistant', content })

/** Sends two turns, then two that continue the second one: a branch. */
async function runConversation(proxy: TestProxy, sessionId: string, stream: boolean): Promise<void> {
  const first = [user('a long first question'), assistant('')]
  first[1] = assistant(await sendRequest(proxy, sessionId, first.slice(0, 1), stream))
  const second = [...first, user('and then')]
  second.push(assistant(await sendRequest(proxy, sessionId, second, stream)))
  await sendRequest(proxy, sessionId, [...second, user('this')], stream)
  await sendRequest(proxy, sessionId, [...second, user('or that')], stream)
}

interface Row extends TokenDataJson {
  prompt_ids: number[]
  response_ids: number[]
  response_mask: number[]
  truncated: boolean
  turns: { turn_id: string; start: number; end: number; trained: boolean; sampling: object }[]
}

async function getRows(proxy: TestProxy, sessionId: string, query = ''): Promise<Row[]> {
  return (await proxy.get(`/sessions/${sessionId}/trajectories?details=all${query}`)).trajectories
}

const getTokens = ({ prompt_ids: prompt, response_ids: response, response_mask: mask, ...row }: Row) => ({
  ...row,
  prompt,
  response,
  mask,
})

for (const [name, kind, isTokenMode, streams] of [
  ['chat mode on vLLM', 'vllm', false, [true]],
  ['token mode on vLLM', 'vllm', true, [false]],
  ['token mode on SGLang', 'sglang', true, [true]],
] as const) {
  for (const stream of IS_FULL ? [false, true] : streams) {
    const title = `${name}, ${stream ? 'streamed' : 'complete'}`
    t.test(
      `${title}: the engine's data is returned for each token, across turns, branches and a restart`,
      async (t) => {
        const tokenizer = await loadTokenizer(getEmbeddedModelFolder())
        const tokens = isTokenMode ? { tokens: tokenizer.encode('the agent reads files and lists them') } : {}
        const engine = await startTestEngine(t, tokens)
        const overrides: Partial<ServeConfig> = {
          engineUrls: [engine.url],
          engineKind: kind,
          db: join(t.testdir({}), 'proxy.db'),
          record: !isTokenMode && stream ? STREAMED_KINDS : ALL,
          ...(isTokenMode && { tokenizer: 'embedded' }),
        }
        const proxy = await startProxy(t, overrides)
        await runConversation(proxy, 's', stream)
        await proxy.server.stop(0)
        const restarted = await startProxy(t, overrides)
        await runConversation(restarted, 's', stream)
        const rows = await getRows(restarted, 's')
        t.equal(rows.length, 4)
        for (const row of rows) {
          t.equal(findFault(getTokens(row), 2), undefined)
          t.ok(row.sampling_mask?.some((mask) => mask !== null) && row.top_logprob_ids)
          if (isTokenMode || !stream) t.ok(row.routed_experts && row.prompt_logprobs)
          if (isTokenMode) t.ok(row.weight_versions)
          if (kind === 'sglang') t.ok(row.sampling_logprobs)
        }
        for (const row of await getRows(restarted, 's', '&per_turn=true'))
          t.equal(findFault(getTokens(row), 2), undefined)
        const traces = await restarted.get('/sessions/s/traces?details=sampling_mask,top_logprobs,sampling')
        t.equal(traces.length, 8)
        for (const { prompt_token_ids: prompt, completion_token_ids: response, ...trace } of traces) {
          const mask = response.map(() => 1)
          t.equal(findFault({ ...trace, prompt, response, mask }, 2), undefined)
          t.match(trace.sampling, {
            values: FILTERED,
            from: { temperature: 'agent', top_k: 'agent', min_p: 'engine' },
          })
        }
      },
    )
  }
}

t.test('for an extended prompt only the missing experts are requested', async (t) => {
  const tokenizer = await loadTokenizer(getEmbeddedModelFolder())
  const engine = await startTestEngine(t, { tokens: tokenizer.encode('lists and files') })
  const config = {
    engineUrls: [engine.url],
    engineKind: 'sglang',
    tokenizer: 'embedded',
    record: ALL,
  } as const
  const proxy = await startProxy(t, config)
  await runConversation(proxy, 's', false)
  const bodies = engine.requests.filter(({ path }) => path === '/generate').map(({ body }) => body)
  const [first, second, third, fourth] = bodies.map((body) => body.routed_experts_start_len)
  t.equal(first, 0)
  const { turns } = await proxy.get('/sessions/s')
  const lengths = turns.map(
    (turn: { prompt_token_ids: number[]; completion_token_ids: number[] }) =>
      turn.prompt_token_ids.length + turn.completion_token_ids.length,
  )
  t.same([second, third, fourth], [lengths[0] - 1, lengths[1] - 1, lengths[1] - 1])
})

t.test(
  'a mask is requested from SGLang only where top_k bounds it, because it rejects the request otherwise',
  async (t) => {
    const tokenizer = await loadTokenizer(getEmbeddedModelFolder())
    const engine = await startTestEngine(t, { tokens: tokenizer.encode('lists and files') })
    const proxy = await startProxy(t, {
      engineUrls: [engine.url],
      engineKind: 'sglang',
      tokenizer: 'embedded',
      record: ['sampling_mask'],
    })
    const agent = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0 })
    const body = { model: 'detailed', messages: [user('hi')], max_tokens: 8 }
    for (const filter of [{ top_p: 0.8 }, { top_k: -1, top_p: 0.8 }, { top_k: 20 }])
      await agent.chat.completions.create({ ...body, ...filter })
    const bodies = engine.requests.filter(({ path }) => path === '/generate').map(({ body }) => body)
    t.same(
      bodies.map(({ return_sampling_mask: mask }) => mask),
      [undefined, undefined, true],
    )
  },
)

t.test('rows are truncated with their token data', async (t) => {
  const engine = await startTestEngine(t)
  const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'vllm', record: ALL })
  await runConversation(proxy, 's', false)
  const [full] = await getRows(proxy, 's', '&select=longest')
  const [cut] = await getRows(proxy, 's', '&select=longest&prompt_length=5&response_length=7')
  t.same(cut!.prompt_ids, full!.prompt_ids.slice(-5))
  t.same(cut!.response_ids, full!.response_ids.slice(0, 7))
  for (const list of ['sampling_mask', 'sampling_mask_logprobs', 'top_logprob_ids', 'top_logprobs'] as const)
    t.same(cut![list], full![list]?.slice(0, 7), list)
  const start = full!.prompt_ids.length - 5
  t.same(cut!.prompt_logprobs, full!.prompt_logprobs?.slice(start, start + 12))
  const { data, shape } = cut!.routed_experts!
  t.same(shape, [12, 2, 3])
  t.same(
    Buffer.from(data, 'base64'),
    Buffer.from(full!.routed_experts!.data, 'base64').subarray(start * 6, (start + 12) * 6),
  )
})

t.test('relay mode: token data arrives complete although the connection is lost repeatedly', async (t) => {
  const engine = await startTestEngine(t)
  const proxy = await startRelayProxy(t, { record: STREAMED_KINDS })
  const forwarder = await Forwarder.to(t, Number(new URL(proxy.url).port))
  const backend = createLocalBackend({
    clients: [createVllmClient({ url: engine.url })],
    logger: silentLogger,
  })
  t.teardown(() => backend.close())
  startWorkerClient(t, `http://127.0.0.1:${forwarder.port}`, 'w', backend)
  await untilWorkers(proxy, 'w')
  const conversations = Array.from({ length: 6 }, async (_, number) => {
    await runConversation(proxy, `s${number}`, true)
  })
  let cuts = 0
  const cutTimer = setInterval(() => {
    cuts += 1
    forwarder.cut()
  }, 30)
  t.teardown(() => clearInterval(cutTimer))
  await Promise.all(conversations).finally(() => clearInterval(cutTimer))
  for (const number of conversations.keys()) {
    const rows = await getRows(proxy, `s${number}`)
    t.equal(rows.length, 2)
    for (const row of rows) {
      t.equal(findFault(getTokens(row), 2), undefined)
      t.ok(row.sampling_mask && row.top_logprobs)
    }
  }
  t.comment(`${cuts} cuts`)
})

for (const tokenizer of [undefined, 'embedded'])
  await t.test(
    `relay mode, ${tokenizer ? 'token' : 'chat'} mode: a request that is not streamed returns experts and prompt logprobs`,
    async (t) => {
      const tokens = tokenizer && {
        tokens: (await loadTokenizer(getEmbeddedModelFolder())).encode('reads and lists'),
      }
      const engine = await startTestEngine(t, tokens || {})
      const proxy = await startRelayProxy(t, { ...(tokenizer && { tokenizer }) })
      const backend = createLocalBackend({
        clients: [createVllmClient({ url: engine.url })],
        logger: silentLogger,
      })
      t.teardown(() => backend.close())
      startWorkerClient(t, proxy.url, 'w', backend)
      await untilWorkers(proxy, 'w')
      await proxy.post('/sessions', { session_id: 's', record: ALL })
      await runConversation(proxy, 's', true)
      const rows = await getRows(proxy, 's')
      t.ok(rows.length > 0)
      for (const row of rows) {
        t.equal(findFault(getTokens(row), 2), undefined)
        t.ok(row.routed_experts && row.prompt_logprobs && row.sampling_mask)
      }
    },
  )

t.test('a response that was cut off keeps the token data of the received tokens', async (t) => {
  let cutAfter: number | undefined = 2
  const engine = await startTestEngine(t, { cutAfter: () => cutAfter })
  const db = join(t.testdir({}), 'proxy.db')
  const proxy = await startProxy(t, {
    engineUrls: [engine.url],
    engineKind: 'vllm',
    db,
    record: STREAMED_KINDS,
  })
  await t.rejects(sendRequest(proxy, 's', [user('hi')], true))
  cutAfter = undefined
  await sendRequest(proxy, 's', [user('hello')], true)
  await proxy.server.stop(0)
  const store = await openSqliteStore({ path: db, durability: 'process' })
  t.teardown(() => store.close())
  const turns = await Array.fromAsync(store.readTurns('s'))
  t.match(turns, [{ status: 'failed' }, { status: 'completed' }])
  const [cut] = turns
  const found = await store.readDetails('s', [cut!.turnId], TOKEN_DATA_KINDS)
  const { sampling_mask: mask, top_logprobs: top } = unpackTokenData(found.get(cut!.turnId)!)
  t.equal(cut!.completionTokenIds.length, 2)
  t.same(mask?.ids, [...cut!.completionTokenIds].flatMap(getMask))
  t.equal(top?.counts.length, 2)
})

t.test(
  'a session declares what it records; without a declaration nothing is requested of engines or stored',
  async (t) => {
    const engine = await startTestEngine(t)
    const db = join(t.testdir({}), 'proxy.db')
    const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'vllm', db })
    await runConversation(proxy, 'plain', false)
    // Two single-token requests come first: they measure the logprobs mode.
    const [, , plain] = engine.requests.filter(({ path }) => path === '/v1/chat/completions')
    for (const field of ['prompt_logprobs', 'top_logprobs', 'return_tokens_as_token_ids', 'return_meta_info'])
      t.notOk(field in plain!.body, field)
    const [row] = await getRows(proxy, 'plain')
    for (const list of ['sampling_mask', 'top_logprobs', 'prompt_logprobs', 'routed_experts'] as const)
      t.equal(row![list], null, list)
    t.notOk('sampling_mask' in (await proxy.get('/sessions/plain/trajectories')).trajectories[0])
    const database = new Database(db, { readonly: true })
    t.teardown(() => database.close())
    t.same(database.prepare('SELECT count(*) AS rows FROM details').get(), { rows: 0 })

    t.match(await proxy.post('/sessions', { session_id: 'own', record: ['sampling_mask'] }), {
      status: 'created',
    })
    t.same((await proxy.get('/sessions/own')).record, ['sampling_mask'])
    await runConversation(proxy, 'own', false)
    const [own] = await getRows(proxy, 'own')
    t.ok(own!.sampling_mask && own!.top_logprobs === null)
    t.match(await proxy.post('/sessions', { record: ['mask'] }), { code: 'invalid_request', param: 'record' })
    t.match(await proxy.get('/sessions/own/trajectories?details=masks'), {
      code: 'invalid_request',
      param: 'details',
    })
  },
)

t.test('an agent receives the alternatives that it requested, and no more', async (t) => {
  const engine = await startTestEngine(t)
  const proxy = await startProxy(t, {
    engineUrls: [engine.url],
    engineKind: 'vllm',
    record: ['top_logprobs:5'],
  })
  const agent = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none' })
  const body = { model: 'detailed', messages: [user('hi')], max_tokens: 8 }
  const plain = await agent.chat.completions.create(body)
  t.equal(plain.choices[0]!.logprobs ?? null, null)
  const response = await agent.chat.completions.create({ ...body, logprobs: true, top_logprobs: 1 })
  const [entry] = response.choices[0]!.logprobs!.content!
  t.equal(entry!.top_logprobs.length, 1)
  t.match(entry, { token: /^t\d+$/, top_logprobs: [{ token: /^t\d+$/ }] }, 'with the text of its tokens')
  t.notMatch(JSON.stringify(response), /sampling_mask|routed_experts/)
  const rows = await getRows(proxy, 's')
  t.ok(rows.length > 0)
  for (const row of rows) t.equal(row.top_logprob_ids?.[0]?.length, 5)
})

t.test('in token mode alternatives are recorded also where the agent requests logprobs', async (t) => {
  const { url } = await startEngine(t)
  const proxy = await startProxy(t, {
    engineUrls: [url],
    engineKind: 'vllm',
    tokenizer: 'embedded',
    record: ['top_logprobs:5'],
  })
  const agent = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none' })
  // With this seed the text ends at the limit: the entry of an end-of-turn token would have text that the response
  // lacks.
  const body = { model: 'embedded', messages: [user('hi')], max_tokens: 6, logprobs: true, seed: 1 }
  const { choices } = await agent.chat.completions.create({ ...body, top_logprobs: 2 })
  const entries = choices[0]!.logprobs!.content!
  t.equal(entries[0]!.top_logprobs.length, 2, 'the agent gets as many as it requested')
  t.notMatch(JSON.stringify(entries), /token_id:/, 'with the text of the tokens')
  t.equal(
    entries
      .map(({ token }) => token)
      .join('')
      .trim(),
    choices[0]!.message.content!.trim(),
  )
  const asIds = { ...body, return_tokens_as_token_ids: true }
  const { choices: byIds } = await agent.chat.completions.create(asIds)
  t.match(byIds[0]!.logprobs!.content![0]!.token, /^token_id:\d+$/, 'or as ids, on request')
  const rows = await getRows(proxy, 's')
  t.ok(rows.length > 0)
  for (const row of rows) t.ok(row.top_logprob_ids![0]!.length >= 5)
})

t.test('the effective sampling parameters of a turn are reported', async (t) => {
  const engine = await startTestEngine(t)
  const proxy = await startProxy(t, {
    engineUrls: [engine.url],
    engineKind: 'vllm',
    // The engine's alternatives are made up, so that nothing can be measured with them.
    logprobsMode: 'processed_logprobs',
  })
  await proxy.post('/sessions', { session_id: 's', sampling_params: { temperature: 0.5, seed: 7 } })
  await sendRequest(proxy, 's', [user('hi')], false)
  const [row] = await getRows(proxy, 's')
  t.same(row!.turns[0]!.sampling, {
    logprobs_mode: 'processed_logprobs',
    values: {
      temperature: 0.5,
      top_p: 0.8,
      top_k: 40,
      min_p: null,
      frequency_penalty: null,
      presence_penalty: null,
      repetition_penalty: null,
      seed: 7,
    },
    from: {
      temperature: 'session',
      top_p: 'agent',
      top_k: 'agent',
      min_p: 'engine',
      frequency_penalty: 'engine',
      presence_penalty: 'engine',
      repetition_penalty: 'engine',
      seed: 'session',
    },
  })
})

t.test('the TypeScript loop has sessions recorded, and its rows contain the data', async (t) => {
  const engine = await startTestEngine(t)
  const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'vllm' })
  const http = new HttpClient()
  t.teardown(() => http.close())
  const client = new ProxyClient({ proxyUrl: proxy.url, http })
  const { signal } = new AbortController()
  const record = ['sampling_mask', 'top_logprobs:2', 'routed_experts']
  await client.createSession({ session_id: 's', metadata: {}, sampling_params: {}, record }, signal)
  await runConversation(proxy, 's', false)
  await client.complete('s', signal)
  const session = await client.getTrajectories('s', { select: 'all', record }, signal)
  t.ok(session.trajectories.length > 0)
  for (const row of session.trajectories) {
    t.equal(findFault(getTokens(row as unknown as Row), 2), undefined)
    t.ok(row.sampling_mask && row.top_logprob_ids && row.routed_experts)
    t.notOk('prompt_logprobs' in row)
  }
})

t.test('an export has the requested token data, the same from a database and a proxy', async (t) => {
  const engine = await startTestEngine(t)
  const db = join(t.testdir({}), 'details.db')
  const proxy = await startProxy(t, { engineUrls: [engine.url], record: ALL, db })
  await runConversation(proxy, 's', false)
  const rows = await getRows(proxy, 's')
  t.ok(rows.some(({ sampling_mask: mask }) => mask?.some((ids) => ids !== null)))
  for (const source of [
    ['--db', db],
    ['--url', proxy.url],
  ]) {
    const { stdout } = await runLlmProxy(['sessions', 'export', 's', ...source, '--details', 'all'])
    const lines = stdout.trim().split('\n')
    t.same(
      lines.map((line) => JSON.parse(line)),
      rows.map((row) => ({ session_id: 's', ...row })),
    )
    const masks = await runLlmProxy(['sessions', 'export', 's', ...source, '--details', 'sampling_mask'])
    const [first] = masks.stdout.trim().split('\n')
    t.match(JSON.parse(first!), { sampling_mask: Array, top_logprobs: undefined })
  }

  const folder = dirname(db)
  const all = await runLlmProxy(['sessions', 'export', 's', '--db', db, '--details', 'all'])
  const lines = all.stdout
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))
  const exportRows = (output: string, ...options: string[]) =>
    runLlmProxy(['sessions', 'export', 's', '--db', db, '--output', join(folder, output), ...options])
  await exportRows('rows.parquet', '--details', 'all')
  const read = await Array.fromAsync(readParquet(join(folder, 'rows.parquet')))
  // Objects with different keys per row become JSON text there.
  const asColumns = (_row: unknown, index: number) => {
    const row = structuredClone(lines[index])
    row.reward_components = JSON.stringify(row.reward_components)
    for (const turn of row.turns) turn.sampling = JSON.stringify(turn.sampling)
    return withoutNull(row)
  }
  t.same(read.map(withoutNull), read.map(asColumns), 'columns have the same content as lines')
  await exportRows('rows.arrow', '--format', 'sft')
  const table = tableFromIPC(readFileSync(join(folder, 'rows.arrow')))
  const [row] = rows
  t.strictSame(
    [...table.get(0)!.input_ids].map(Number),
    [...row!.prompt_ids, ...row!.response_ids],
    'so do those of an Arrow file',
  )
  t.equal(read.length, lines.length)
  t.match(await exportRows('turns.parquet', '--format', 'turns'), {
    code: 2,
    stderr: /--format turns has no rows: name an --output that ends in .jsonl/,
  })
})

/** Removes nulls: a column exists for every row. */
function withoutNull(value: object): unknown {
  return JSON.parse(JSON.stringify(value), (_key, each) => each ?? undefined)
}
