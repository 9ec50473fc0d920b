/** A rollout server over HTTP: its results, its access control, and rollouts that are abandoned or cancelled. */
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { SERVE_COMMAND } from '../../src/commands.ts'
import { startServer } from '../../src/main.ts'
import { loadConfig } from '../../src/proxy/config/load.ts'
import { RemoteAgentLoop } from '../../src/rollout/remote-agent-loop.ts'
import type { AgentRunner, AgentTask } from '../../src/rollout/runners/runner.ts'
import { toRolloutSettings } from '../../src/rollout/server/request.ts'
import { Rollouts } from '../../src/rollout/server/rollouts.ts'
import { buildRolloutServer } from '../../src/rollout/server/server.ts'
import { startProxy } from '../helpers/proxy.ts'
import { sendRaw } from '../helpers/raw-connection.ts'
import { silentLogger } from '../helpers/silent-logger.ts'
import { until } from '../helpers/until.ts'

interface Rig {
  proxyUrl: string
  /** Tasks of the agents, in order. */
  tasks: AgentTask[]
  url: string
  rollouts: Rollouts
  /** Samples whose agents run. */
  atWork: Set<unknown>
  runs: number
  letGo(): void
}

/** Starts a server whose agents send one request, and run until the test releases them. */
async function rig(t: Test, { concurrency = 8, keys = [] as string[], graceMs = 0 } = {}): Promise<Rig> {
  const proxy = await startProxy(t)
  const go = Promise.withResolvers<void>()
  const it = {
    ...{ url: '', proxyUrl: proxy.url, atWork: new Set<unknown>(), tasks: [] as AgentTask[], runs: 0 },
    letGo: go.resolve,
  } as Rig
  const run: AgentRunner['run'] = async (task, signal) => {
    const { openaiBaseUrl, apiKey, sample } = task
    it.tasks.push(task)
    it.atWork.add(sample.name)
    it.runs += 1
    const headers = { authorization: `Bearer ${apiKey}` }
    for (const content of (sample.questions as string[]) ?? ['What is the sea?']) {
      const messages = [{ role: 'user', content }]
      const body = JSON.stringify({ model: 'm', messages, max_tokens: 50 })
      const url = openaiBaseUrl.replace('localhost', '127.0.0.1')
      const response = await fetch(`${url}/chat/completions`, { method: 'POST', headers, body })
      await response.text()
    }
    if (sample.rewards !== undefined) {
      const body = JSON.stringify(sample.rewards)
      const reward = `${proxy.url}/sessions/${encodeURIComponent(task.sessionId)}/reward`
      await fetch(reward, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
    }
    const off = Promise.withResolvers<void>()
    signal.addEventListener('abort', () => off.resolve())
    if (sample.fails === true) return { status: 'timeout', rewards: {}, error: 'no time' }
    if (!signal.aborted) await Promise.race([go.promise, off.promise])
    it.atWork.delete(sample.name)
    signal.throwIfAborted()
    return { status: 'completed', rewards: { reward: 0.5 } }
  }
  const loop = new RemoteAgentLoop({ proxyUrl: proxy.url, runner: { run, close: async () => {} } }, {})
  it.rollouts = new Rollouts({
    run: (request, off) =>
      loop.rollout(request.sampling_params ?? {}, request.sample, toRolloutSettings(request), off),
    concurrency,
    graceMs,
  })
  const server = buildRolloutServer({ rollouts: it.rollouts, keys, heartbeatMs: 5 })
  await server.listen({ host: '127.0.0.1', port: 0 })
  it.url = `http://127.0.0.1:${(server.server.address() as AddressInfo).port}`
  t.teardown(async () => {
    await it.rollouts.stop(0)
    await server.close()
    await loop.close()
  })
  return it
}

function post(it: Rig, body: unknown, more: RequestInit = {}): Promise<Response> {
  const headers = { 'content-type': 'application/json', ...more.headers }
  return fetch(`${it.url}/rollouts`, { method: 'POST', body: JSON.stringify(body), ...more, headers })
}

// biome-ignore lint/suspicious/noExplicitAny: each test looks at its own answers
async function readJson(response: Promise<Response>): Promise<any> {
  return (await response).json()
}

const get = async (it: Rig, path: string) => readJson(fetch(it.url + path))

t.test('a rollout returns rows and a reward, with keep-alives until it has ended', async (t) => {
  const it = await rig(t)
  const response = await post(it, {
    sample: { name: 'a' },
    sampling_params: { max_tokens: 7, temperature: 0 },
  })
  const begun = {
    status: 'running',
    ended_at: null,
    session_id: null,
    reward: null,
    tries: null,
    error: null,
  }
  t.match(await get(it, '/rollouts'), { rollouts: [begun] })
  const reader = response.body!.getReader()
  t.match(Buffer.from((await reader.read()).value!).toString(), /^ +$/, 'while the agent runs')
  it.letGo()
  let text = ''
  for await (const chunk of { [Symbol.asyncIterator]: () => readChunks(reader) }) text += chunk
  const { rollout_id, status, rows, error } = JSON.parse(text)
  t.equal(rollout_id, response.headers.get('x-rollout-id'))
  t.match({ status, error }, { status: 'done', error: null })
  t.match(rows, [{ reward_score: 0.5, num_turns: 1, metrics: { tries: 1, failed: 0 } }])
  t.equal(rows[0].response_ids.length, 7, 'the sampling parameters are those of the agent')
  const { session_id } = rows[0].extra_fields
  const outcome = { rollout_id, status: 'done', session_id, reward: 0.5, tries: 1, error: null }
  t.match(await get(it, `/rollouts/${rollout_id}`), outcome, 'so that its session is found')
  const metrics = await (await fetch(`${it.url}/metrics`)).text()
  t.match(metrics, 'llm_proxy_rollouts_total{outcome="done"} 1\n')
})

async function* readChunks(reader: ReadableStreamDefaultReader<Uint8Array>): AsyncGenerator<string> {
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    yield Buffer.from(value).toString()
  }
}

t.test("a seed above 2^53 reaches the runner and the rollout's session with all of its digits", async (t) => {
  const it = await rig(t)
  it.letGo()
  const body = '{"sample":{"name":"a"},"sampling_params":{"seed":9007199254740993,"max_tokens":7}}'
  await (await post(it, undefined, { body })).text()
  const [task] = it.tasks
  t.equal(JSON.stringify(task!.samplingParams), '{"seed":9007199254740993,"max_tokens":7}')
  const session = await fetch(`${it.proxyUrl}/sessions/${encodeURIComponent(task!.sessionId)}`)
  t.match(await session.text(), '"sampling_params":{"seed":9007199254740993,')
})

t.test("a rollout may have its own settings, and the server's otherwise", async (t) => {
  const it = await rig(t)
  it.letGo()
  const own = {
    ...{ model_name: 'policy', agent_host: 'localhost', max_retries: 1, retry_base_delay_s: 0.001 },
    ...{ agent_name: 'swe', agent_kwargs: { steps: 3 }, environment_overrides: { LANG: 'C' } },
  }
  const [retried] = (await readJson(post(it, { sample: { name: 'a', fails: true }, ...own }))).rows
  t.match(retried, { metrics: { tries: 2, failed: 1 }, extra_fields: { error: 'no time' } })
  t.match(await get(it, '/rollouts'), {
    rollouts: [{ status: 'done', tries: 2, reward: null, error: 'no time' }],
  })
  t.match(it.tasks[0], {
    ...{ modelName: 'policy', openaiBaseUrl: /^http:\/\/localhost:/ },
    settings: { agentName: 'swe', agentKwargs: { steps: 3 }, environmentOverrides: { LANG: 'C' } },
  })
  t.strictSame(Object.keys(it.tasks[0]!.settings!), ['agentName', 'agentKwargs', 'environmentOverrides'])
  const kept = {
    ...{ sample: { name: 'b', fails: true }, sampling_params: { temperature: 0 } },
    ...{ on_time_limit: 'keep', response_length: 5 },
  }
  const { rows, reward } = await readJson(post(it, kept))
  t.match(rows, [{ metrics: { tries: 1, failed: 0 }, extra_fields: { truncated: true } }])
  t.equal(rows[0].response_ids.length, 5)
  t.equal(reward, null, 'which is not a reward of 0')
  t.match(it.tasks[2], { modelName: undefined, openaiBaseUrl: new RegExp(`^${it.proxyUrl}/`) })
})

t.test('rewards of turns and lines that were set stay where the runner has its own rewards', async (t) => {
  const it = await rig(t)
  it.letGo()
  const rewards = {
    reward: 9,
    components: { tests: 9 },
    turns: { 0: 0.25 },
    lines: { 'subagent:critic': -1 },
  }
  const { rows } = await readJson(post(it, { sample: { name: 'a', rewards } }))
  const { session_id, reward_components, turn_rewards } = rows[0].extra_fields
  t.match(rows, [{ reward_score: 0.5 }])
  t.strictSame(reward_components, { reward: 0.5 })
  t.match(turn_rewards, [{ start: 0, reward: 0.25 }])
  const session = await readJson(fetch(`${it.proxyUrl}/sessions/${encodeURIComponent(session_id)}`))
  t.match(session, { reward: 0.5, reward_turns: { 0: 0.25 }, reward_lines: { 'subagent:critic': -1 } })
})

t.test('rows that are not the complete session declare what they leave out', async (t) => {
  const it = await rig(t)
  it.letGo()
  const sample = { name: 'a', questions: ['What is the sea?', 'What is a lake?', 'What is a river?'] }
  for (const [select, input, left] of [
    ['all', 3, 0],
    ['longest', 1, 2],
    ['last', 1, 2],
  ] as const) {
    const { rows, left_out_turns } = await readJson(post(it, { sample, select }))
    t.strictSame([rows.length, left_out_turns], [input, left], select)
  }
})

t.test('one id is one rollout: a second request joins it, and a later one gets its result', async (t) => {
  const it = await rig(t)
  const body = { rollout_id: 'step-1/a', sample: { name: 'a' } }
  const responses = [readJson(post(it, body)), readJson(post(it, body))]
  await until(() => it.atWork.size === 1)
  t.match(await readJson(post(it, { ...body, sample: { name: 'b' } })), {
    code: 'invalid_request',
    detail: /another sample/,
  })
  it.letGo()
  const [first, second] = await Promise.all(responses)
  t.strictSame(second, first)
  t.strictSame(await readJson(post(it, body)), first)
  t.equal(it.runs, 1)
})

t.test('an agent is stopped when all of its callers have left, and continues if one returns', async (t) => {
  const it = await rig(t)
  const leave = new AbortController()
  const left = post(it, { sample: { name: 'left' } }, { signal: leave.signal })
  await left
  await until(() => it.atWork.has('left'))
  leave.abort()
  await until(() => it.atWork.size === 0)
  await until(() => it.rollouts.ended.cancelled === 1)

  const patient = await rig(t, { graceMs: 60_000 })
  const blink = new AbortController()
  const body = { rollout_id: 'r', sample: { name: 'back' } }
  await post(patient, body, { signal: blink.signal })
  await until(() => patient.atWork.has('back'))
  blink.abort()
  const second = readJson(post(patient, body))
  patient.letGo()
  t.match(await second, { status: 'done' })
  t.equal(patient.runs, 1)
})

t.test(
  'no more than the limit run at a time, and one that is removed ends and can be restarted',
  async (t) => {
    const it = await rig(t, { concurrency: 1 })
    const first = readJson(post(it, { rollout_id: 'first', sample: { name: 'first' } }))
    await until(() => it.atWork.has('first'))
    const second = readJson(post(it, { rollout_id: 'second', sample: { name: 'second' } }))
    await until(() => it.rollouts.waiting === 1)
    t.match(await get(it, '/health'), { status: 'ok', running: 1, waiting: 1 })
    const removed = await readJson(fetch(`${it.url}/rollouts/first`, { method: 'DELETE' }))
    t.match(removed, { rollout_id: 'first', status: 'cancelled' })
    t.match(await first, { status: 'cancelled', rows: [], error: { code: 'rollout_cancelled' } })
    await until(() => it.atWork.has('second'))
    it.letGo()
    t.match(await second, { status: 'done' })
    t.match(await get(it, '/rollouts/first'), { code: 'rollout_not_found' })
    t.match(await readJson(post(it, { rollout_id: 'first', sample: { name: 'first' } })), { status: 'done' })
  },
)

t.test('a server that is stopped ends its agents, reports it, and accepts no more', async (t) => {
  const it = await rig(t)
  const response = readJson(post(it, { sample: { name: 'a' } }))
  await until(() => it.atWork.size === 1)
  t.equal(await it.rollouts.stop(0), false)
  t.equal(it.atWork.size, 0)
  t.match(await response, { status: 'cancelled', error: { code: 'shutting_down' } })
  const late = await post(it, { sample: { name: 'b' } })
  t.match({ status: late.status, body: await late.json() }, { status: 503, body: { code: 'shutting_down' } })
})

t.test('a request requires a key, and an invalid rollout is rejected and starts nothing', async (t) => {
  const it = await rig(t, { keys: ['first', 'second'] })
  const sample = { name: 'a' }
  for (const authorization of ['', 'Bearer other', 'second']) {
    t.equal((await post(it, { sample }, { headers: { authorization } })).status, 401)
  }
  t.equal((await fetch(`${it.url}/rollouts`)).status, 401)
  t.equal((await fetch(`${it.url}/health`)).status, 200)
  const headers = { authorization: 'Bearer second' }
  for (const body of [{}, { sample: 'x' }, { sample, rollout_id: '' }, { sample, sampling_parms: {} }, []]) {
    const rejected = await post(it, body, { headers })
    t.match(
      { status: rejected.status, body: await rejected.json() },
      { status: 400, body: { code: 'invalid_request' } },
    )
  }
  const plain = await post(it, { sample }, { headers: { ...headers, 'content-type': 'text/plain' } })
  t.equal(plain.status, 415, 'which a page of another site could send')
  t.equal(it.runs, 0)
  it.letGo()
  t.match(await readJson(post(it, { sample }, { headers })), { status: 'done' })
})

t.test('a proxy forwards rollouts unbuffered, for clients with its admin key', async (t) => {
  const it = await rig(t, { keys: ['admin'] })
  const config = { rolloutServer: `${it.url}/`, adminKeys: ['admin'], viewKeys: ['view'], basePath: '/llm' }
  const proxy = await startProxy(t, { ...config, db: 'memory', maxBodyBytes: 1024 })
  const target = { ...it, url: proxy.url }
  const addKey = (key: string, more: RequestInit = {}) => ({
    ...more,
    headers: { authorization: `Bearer ${key}` },
  })
  const sample = { name: 'a', long: 'x'.repeat(5000) }
  for (const [key, status] of [
    ['other', 401],
    ['view', 403],
  ] as const) {
    t.equal((await post(target, { sample }, addKey(key))).status, status)
  }
  t.equal(it.runs, 0)
  for (const id of ['%2E', '%2E%2E', '..']) {
    const received = await sendRaw(
      proxy.url,
      `GET /llm/rollouts/${id} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer admin\r\nconnection: close\r\n\r\n`,
      5_000,
    )
    t.match(received, /rollout_not_found/, `${id} is an id, and not a path at the rollout server`)
  }

  const response = await post(target, { sample, rollout_id: 'step/a' }, addKey('admin'))
  t.equal(response.headers.get('x-rollout-id'), 'step%2Fa')
  const reader = response.body!.getReader()
  t.match(Buffer.from((await reader.read()).value!).toString(), /^ +$/, 'while the agent runs')
  const one = await readJson(fetch(`${target.url}/rollouts/step%2Fa`, addKey('admin')))
  t.match(one, { rollout_id: 'step/a', status: 'running' })
  // It runs before its session is created.
  await until(() => it.runs === 1)
  await reader.cancel()
  await until(() => it.rollouts.ended.cancelled === 1)

  const removed = post(target, { sample, rollout_id: 'b' }, addKey('admin'))
  await until(() => it.runs === 2)
  await fetch(`${target.url}/rollouts/b`, addKey('admin', { method: 'DELETE' }))
  t.match(await readJson(removed), { status: 'cancelled' })
  it.letGo()
  t.match(await readJson(post(target, { sample }, addKey('admin'))), {
    status: 'done',
    rows: [{ reward_score: 0.5 }],
  })
  t.match(await readJson(post(target, { sampel: {} }, addKey('admin'))), { code: 'invalid_request' })
})

t.test('a proxy reports an unavailable or missing rollout server', async (t) => {
  const unavailable = await startProxy(t, { rolloutServer: 'http://127.0.0.1:9', db: 'memory' })
  const none = await startProxy(t, { db: 'memory' })
  t.match(await unavailable.post('/rollouts', { sample: {} }), {
    code: 'rollout_server_away',
    detail: /127.0.0.1:9/,
  })
  t.match(await none.post('/rollouts', { sample: {} }), { code: 'route_not_found' })
})

t.test('a proxy reports that its rollout server rejects its key', async (t) => {
  const it = await rig(t, { keys: ['other'] })
  const proxy = await startProxy(t, { rolloutServer: it.url, adminKeys: ['admin'], db: 'memory' })
  const headers = { authorization: 'Bearer admin' }
  const rejected = await post({ ...it, url: proxy.url }, { sample: {} }, { headers })
  t.equal(rejected.status, 500, 'clients must not retry')
  t.match(await rejected.json(), {
    code: 'rollout_server_refused',
    detail: /rejects the proxy's first admin key/,
  })
})

t.test('a proxy runs rollouts itself', async (t) => {
  const ask = `curl -sf "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" -d "$ASKED"`
  const command = `case "$(cat "$TASK_FILE")" in *slow*) exec sleep 600;; *fails*) exit 3;; esac; ${ask}`
  const config = {
    ...({
      runner: 'command',
      command,
      verifier: 'true',
      sandbox: 'none',
      basePath: '/llm',
      db: 'memory',
    } as const),
    ...{
      adminKeys: ['admin'],
      viewKeys: ['view'],
      agentKeySecrets: ['secret'],
      concurrency: 1,
      maxRetries: 1,
      retryBaseDelayMs: 1,
    },
    environmentOverrides: {
      ASKED: JSON.stringify({
        model: 'm',
        messages: [{ role: 'user', content: 'What is the sea?' }],
        max_tokens: 9,
        temperature: 0,
      }),
    },
  }
  const proxy = await startProxy(t, config)
  const at = { url: proxy.url } as Rig
  const as = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
  const sample = { name: 'a' }

  await t.test('for clients with its admin key', async (t) => {
    t.equal((await post(at, { sample }, as('view'))).status, 403)
    const plain = { headers: { ...as('admin').headers, 'content-type': 'text/plain' } }
    t.equal((await post(at, { sample }, plain)).status, 415, 'not for a page of another site')
    t.match(await readJson(post(at, { sampel: {} }, as('admin'))), { code: 'invalid_request' })
    t.match(await readJson(post(at, { sample, rollout_id: 'one' }, as('admin'))), {
      status: 'done',
      rows: [{ reward_score: 1, num_turns: 1, response_mask: new Array(9).fill(1) }],
    })
    t.match(await readJson(fetch(`${proxy.url}/rollouts`, as('admin'))), {
      rollouts: [{ rollout_id: 'one', status: 'done' }],
    })
  })

  await t.test('and counts them', async (t) => {
    t.match(await readJson(post(at, { sample: { fails: true } }, as('admin'))), {
      rows: [{ metrics: { failed: 1 } }],
    })
    const metrics = await (await fetch(`${proxy.url}/metrics`, as('admin'))).text()
    t.match(metrics, 'llm_proxy_rollouts_total{outcome="done"} 2\n')
    t.match(metrics, 'llm_proxy_rollouts{state="running"} 0\n')
    t.match(metrics, 'llm_proxy_rollout_tries_total 3\n', 'a failed one twice')
    t.match(metrics, /llm_proxy_rollout_seconds_total [\d.]+\n/)
  })

  await t.test('until it is stopped, which ends their agents', async (t) => {
    const slow = readJson(post(at, { sample: { name: 'slow' } }, as('admin')))
    const waits = readJson(post(at, { sample: { name: 'b' } }, as('admin')))
    const states = async () => {
      const { rollouts } = await readJson(fetch(`${proxy.url}/rollouts`, as('admin')))
      return rollouts.map(({ status }: { status: string }) => status).join(' ')
    }
    await until(async () => (await states()) === 'waiting running done done')
    const stopped = proxy.server.stop(60_000)
    for (const each of [slow, waits])
      t.match(await each, { status: 'cancelled', error: { code: 'shutting_down' } })
    await stopped
  })
})

t.test(
  'a proxy that cannot run rollouts, or would for unauthenticated clients, does not start',
  async (t) => {
    const runner = { runner: 'command', command: 'true' } as const
    for (const [config, reason] of [
      [{ runner: 'command' }, /needs --command/],
      [{ ...runner, rolloutServer: 'http://127.0.0.1:9' }, /both serve \/rollouts/],
      [{ ...runner, host: '0.0.0.0' }, /run agents on this machine: give an admin-key/],
      [{ ...runner, tlsCert: 'a', tlsKey: 'b' }, /without TLS/],
    ] as const) {
      const start = async () => {
        const full = { ...loadConfig(SERVE_COMMAND, {}, {}), db: 'memory', port: 0, ...config }
        await startServer(full, { logger: silentLogger })
      }
      await t.rejects(start(), { code: 'config_invalid', message: reason })
    }
  },
)
