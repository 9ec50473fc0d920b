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
  runningSamples: Set<unknown>
  runs: number
  /** Lets the agents end. */
  release(): void
}

/** Starts a server whose agents send one request, and run until the test releases them. */
async function startRig(t: Test, { concurrency = 8, keys = [] as string[], graceMs = 0 } = {}): Promise<Rig> {
  const proxy = await startProxy(t)
  const released = Promise.withResolvers<void>()
  const rig = {
    ...{
      url: '',
      proxyUrl: proxy.url,
      runningSamples: new Set<unknown>(),
      tasks: [] as AgentTask[],
      runs: 0,
    },
    release: released.resolve,
  } as Rig
  const run: AgentRunner['run'] = async (task, signal) => {
    const { openaiBaseUrl, apiKey, sample } = task
    rig.tasks.push(task)
    rig.runningSamples.add(sample.name)
    rig.runs += 1
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
    const cancelled = Promise.withResolvers<void>()
    signal.addEventListener('abort', () => cancelled.resolve())
    if (sample.fails === true) return { status: 'timeout', rewards: {}, error: 'no time' }
    if (!signal.aborted) await Promise.race([released.promise, cancelled.promise])
    rig.runningSamples.delete(sample.name)
    signal.throwIfAborted()
    return { status: 'completed', rewards: { reward: 0.5 } }
  }
  const loop = new RemoteAgentLoop({ proxyUrl: proxy.url, runner: { run, close: async () => {} } }, {})
  rig.rollouts = new Rollouts({
    run: (request, signal) =>
      loop.rollout(request.sampling_params ?? {}, request.sample, toRolloutSettings(request), signal),
    concurrency,
    graceMs,
  })
  const server = buildRolloutServer({ rollouts: rig.rollouts, keys, heartbeatMs: 5 })
  await server.listen({ host: '127.0.0.1', port: 0 })
  rig.url = `http://127.0.0.1:${(server.server.address() as AddressInfo).port}`
  t.teardown(async () => {
    await rig.rollouts.stop(0)
    await server.close()
    await loop.close()
  })
  return rig
}

function post(rig: Rig, body: unknown, more: RequestInit = {}): Promise<Response> {
  const headers = { 'content-type': 'application/json', ...more.headers }
  return fetch(`${rig.url}/rollouts`, { method: 'POST', body: JSON.stringify(body), ...more, headers })
}

// biome-ignore lint/suspicious/noExplicitAny: each test looks at its own responses
async function readJson(response: Promise<Response>): Promise<any> {
  return (await response).json()
}

const get = async (rig: Rig, path: string) => readJson(fetch(rig.url + path))

t.test('a rollout returns rows and a reward, with keep-alives until it has ended', async (t) => {
  const rig = await startRig(t)
  const response = await post(rig, {
    sample: { name: 'a' },
    sampling_params: { max_tokens: 7, temperature: 0 },
  })
  const running = {
    status: 'running',
    ended_at: null,
    session_id: null,
    reward: null,
    tries: null,
    error: null,
  }
  t.match(await get(rig, '/rollouts'), { rollouts: [running] })
  const reader = response.body!.getReader()
  t.match(Buffer.from((await reader.read()).value!).toString(), /^ +$/, 'while the agent runs')
  rig.release()
  let text = ''
  for await (const chunk of readChunks(reader)) text += chunk
  const { rollout_id, status, rows, error } = JSON.parse(text)
  t.equal(rollout_id, response.headers.get('x-rollout-id'))
  t.match({ status, error }, { status: 'done', error: null })
  t.match(rows, [{ reward_score: 0.5, num_turns: 1, metrics: { tries: 1, failed: 0 } }])
  t.equal(rows[0].response_ids.length, 7, 'the sampling parameters are those of the agent')
  const { session_id } = rows[0].extra_fields
  const outcome = { rollout_id, status: 'done', session_id, reward: 0.5, tries: 1, error: null }
  t.match(await get(rig, `/rollouts/${rollout_id}`), outcome, 'so that its session is found')
  const metrics = await (await fetch(`${rig.url}/metrics`)).text()
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
  const rig = await startRig(t)
  rig.release()
  const body = '{"sample":{"name":"a"},"sampling_params":{"seed":9007199254740993,"max_tokens":7}}'
  await (await post(rig, undefined, { body })).text()
  const [task] = rig.tasks
  t.equal(JSON.stringify(task!.samplingParams), '{"seed":9007199254740993,"max_tokens":7}')
  const session = await fetch(`${rig.proxyUrl}/sessions/${encodeURIComponent(task!.sessionId)}`)
  t.match(await session.text(), '"sampling_params":{"seed":9007199254740993,')
})

t.test("a rollout may have its own settings, and the server's otherwise", async (t) => {
  const rig = await startRig(t)
  rig.release()
  const own = {
    ...{ model_name: 'policy', agent_host: 'localhost', max_retries: 1, retry_base_delay_s: 0.001 },
    ...{ agent_name: 'swe', agent_kwargs: { steps: 3 }, environment_overrides: { LANG: 'C' } },
  }
  const [retried] = (await readJson(post(rig, { sample: { name: 'a', fails: true }, ...own }))).rows
  t.match(retried, { metrics: { tries: 2, failed: 1 }, extra_fields: { error: 'no time' } })
  t.match(await get(rig, '/rollouts'), {
    rollouts: [{ status: 'done', tries: 2, reward: null, error: 'no time' }],
  })
  t.match(rig.tasks[0], {
    ...{ modelName: 'policy', openaiBaseUrl: /^http:\/\/localhost:/ },
    settings: { agentName: 'swe', agentKwargs: { steps: 3 }, environmentOverrides: { LANG: 'C' } },
  })
  t.strictSame(Object.keys(rig.tasks[0]!.settings!), ['agentName', 'agentKwargs', 'environmentOverrides'])
  const truncated = {
    ...{ sample: { name: 'b', fails: true }, sampling_params: { temperature: 0 } },
    ...{ on_time_limit: 'keep', response_length: 5 },
  }
  const { rows, reward } = await readJson(post(rig, truncated))
  t.match(rows, [{ metrics: { tries: 1, failed: 0 }, extra_fields: { truncated: true } }])
  t.equal(rows[0].response_ids.length, 5)
  t.equal(reward, null, 'which is not a reward of 0')
  t.match(rig.tasks[2], { modelName: undefined, openaiBaseUrl: new RegExp(`^${rig.proxyUrl}/`) })
})

t.test(
  'rewards of turns and agent roles that were set persist where the runner has its own rewards',
  async (t) => {
    const rig = await startRig(t)
    rig.release()
    const rewards = {
      reward: 9,
      components: { tests: 9 },
      turns: { 0: 0.25 },
      lines: { 'subagent:critic': -1 },
    }
    const { rows } = await readJson(post(rig, { sample: { name: 'a', rewards } }))
    const { session_id, reward_components, turn_rewards } = rows[0].extra_fields
    t.match(rows, [{ reward_score: 0.5 }])
    t.strictSame(reward_components, { reward: 0.5 })
    t.match(turn_rewards, [{ start: 0, reward: 0.25 }])
    const session = await readJson(fetch(`${rig.proxyUrl}/sessions/${encodeURIComponent(session_id)}`))
    t.match(session, { reward: 0.5, reward_turns: { 0: 0.25 }, reward_lines: { 'subagent:critic': -1 } })
  },
)

t.test('rows that are not the complete session declare what they leave out', async (t) => {
  const rig = await startRig(t)
  rig.release()
  const sample = { name: 'a', questions: ['What is the sea?', 'What is a lake?', 'What is a river?'] }
  for (const [select, rowCount, leftOut] of [
    ['all', 3, 0],
    ['longest', 1, 2],
    ['last', 1, 2],
  ] as const) {
    const { rows, left_out_turns } = await readJson(post(rig, { sample, select }))
    t.strictSame([rows.length, left_out_turns], [rowCount, leftOut], select)
  }
})

t.test('one id is one rollout: a second request joins it, and a later one gets its result', async (t) => {
  const rig = await startRig(t)
  const body = { rollout_id: 'step-1/a', sample: { name: 'a' } }
  const responses = [readJson(post(rig, body)), readJson(post(rig, body))]
  await until(() => rig.runningSamples.size === 1)
  t.match(await readJson(post(rig, { ...body, sample: { name: 'b' } })), {
    code: 'invalid_request',
    detail: /another sample/,
  })
  rig.release()
  const [first, second] = await Promise.all(responses)
  t.strictSame(second, first)
  t.strictSame(await readJson(post(rig, body)), first)
  t.equal(rig.runs, 1)
})

t.test('an agent is stopped when all of its callers have left, and continues if one returns', async (t) => {
  const rig = await startRig(t)
  const leave = new AbortController()
  const left = post(rig, { sample: { name: 'left' } }, { signal: leave.signal })
  await left
  await until(() => rig.runningSamples.has('left'))
  leave.abort()
  await until(() => rig.runningSamples.size === 0)
  await until(() => rig.rollouts.ended.cancelled === 1)

  const patient = await startRig(t, { graceMs: 60_000 })
  const blink = new AbortController()
  const body = { rollout_id: 'r', sample: { name: 'back' } }
  await post(patient, body, { signal: blink.signal })
  await until(() => patient.runningSamples.has('back'))
  blink.abort()
  const second = readJson(post(patient, body))
  patient.release()
  t.match(await second, { status: 'done' })
  t.equal(patient.runs, 1)
})

t.test(
  'no more than the limit run at a time, and one that is removed ends and can be restarted',
  async (t) => {
    const rig = await startRig(t, { concurrency: 1 })
    const first = readJson(post(rig, { rollout_id: 'first', sample: { name: 'first' } }))
    await until(() => rig.runningSamples.has('first'))
    const second = readJson(post(rig, { rollout_id: 'second', sample: { name: 'second' } }))
    await until(() => rig.rollouts.waiting === 1)
    t.match(await get(rig, '/health'), { status: 'ok', running: 1, waiting: 1 })
    const removed = await readJson(fetch(`${rig.url}/rollouts/first`, { method: 'DELETE' }))
    t.match(removed, { rollout_id: 'first', status: 'cancelled' })
    t.match(await first, { status: 'cancelled', rows: { length: 0 }, error: { code: 'rollout_cancelled' } })
    await until(() => rig.runningSamples.has('second'))
    rig.release()
    t.match(await second, { status: 'done' })
    t.match(await get(rig, '/rollouts/first'), { code: 'rollout_not_found' })
    t.match(await readJson(post(rig, { rollout_id: 'first', sample: { name: 'first' } })), { status: 'done' })
  },
)

t.test('a server that is stopped ends its agents, reports it, and accepts no more', async (t) => {
  const rig = await startRig(t)
  const response = readJson(post(rig, { sample: { name: 'a' } }))
  await until(() => rig.runningSamples.size === 1)
  t.equal(await rig.rollouts.stop(0), false)
  t.equal(rig.runningSamples.size, 0)
  t.match(await response, { status: 'cancelled', error: { code: 'shutting_down' } })
  const late = await post(rig, { sample: { name: 'b' } })
  t.match({ status: late.status, body: await late.json() }, { status: 503, body: { code: 'shutting_down' } })
})

t.test('a request requires a key, and an invalid rollout is rejected and starts nothing', async (t) => {
  const rig = await startRig(t, { keys: ['first', 'second'] })
  const sample = { name: 'a' }
  for (const authorization of ['', 'Bearer other', 'second']) {
    t.equal((await post(rig, { sample }, { headers: { authorization } })).status, 401)
  }
  t.equal((await fetch(`${rig.url}/rollouts`)).status, 401)
  t.equal((await fetch(`${rig.url}/health`)).status, 200)
  const headers = { authorization: 'Bearer second' }
  for (const body of [{}, { sample: 'x' }, { sample, rollout_id: '' }, { sample, sampling_parms: {} }, []]) {
    const rejected = await post(rig, body, { headers })
    t.match(
      { status: rejected.status, body: await rejected.json() },
      { status: 400, body: { code: 'invalid_request' } },
    )
  }
  for (const levels of [999, 20_000]) {
    const body = `{"sample":{"name":"a"},"agent_kwargs":{"x":${'['.repeat(levels)}${']'.repeat(levels)}}}`
    const type = { 'content-type': 'application/json' }
    const rejected = await fetch(`${rig.url}/rollouts`, {
      method: 'POST',
      headers: { ...headers, ...type },
      body,
    })
    t.equal(rejected.status, 400)
    t.match(await rejected.json(), { detail: /nested too deeply: 1000 levels/ })
  }
  const plain = await post(rig, { sample }, { headers: { ...headers, 'content-type': 'text/plain' } })
  t.equal(plain.status, 415, 'which a page of another site could send')
  t.equal(rig.runs, 0)
  rig.release()
  t.match(await readJson(post(rig, { sample }, { headers })), { status: 'done' })
})

t.test('a proxy forwards rollouts unbuffered, for clients with its admin key', async (t) => {
  const rig = await startRig(t, { keys: ['admin'] })
  const config = { rolloutServer: `${rig.url}/`, adminKeys: ['admin'], viewKeys: ['view'], basePath: '/llm' }
  const proxy = await startProxy(t, { ...config, db: 'memory', maxBodyBytes: 1024 })
  const target = { ...rig, url: proxy.url }
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
  t.equal(rig.runs, 0)
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
  await until(() => rig.runs === 1)
  await reader.cancel()
  await until(() => rig.rollouts.ended.cancelled === 1)

  const removed = post(target, { sample, rollout_id: 'b' }, addKey('admin'))
  await until(() => rig.runs === 2)
  await fetch(`${target.url}/rollouts/b`, addKey('admin', { method: 'DELETE' }))
  t.match(await readJson(removed), { status: 'cancelled' })
  rig.release()
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
  const rig = await startRig(t, { keys: ['other'] })
  const proxy = await startProxy(t, { rolloutServer: rig.url, adminKeys: ['admin'], db: 'memory' })
  const headers = { authorization: 'Bearer admin' }
  const rejected = await post({ ...rig, url: proxy.url }, { sample: {} }, { headers })
  t.equal(rejected.status, 500, 'clients must not retry')
  t.match(await rejected.json(), {
    code: 'rollout_server_refused',
    detail: /rejects the proxy's first admin key/,
  })
})

t.test('a proxy runs rollouts itself', async (t) => {
  const sendRequest = `curl -sf "$OPENAI_BASE_URL/chat/completions" -H "authorization: Bearer $OPENAI_API_KEY" -d "$REQUEST_BODY"`
  const command = `case "$(cat "$TASK_FILE")" in *slow*) exec sleep 600;; *fails*) exit 3;; esac; ${sendRequest}`
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
      REQUEST_BODY: JSON.stringify({
        model: 'm',
        messages: [{ role: 'user', content: 'What is the sea?' }],
        max_tokens: 9,
        temperature: 0,
      }),
    },
  }
  const proxy = await startProxy(t, config)
  const at = { url: proxy.url } as Rig
  const addKey = (key: string) => ({ headers: { authorization: `Bearer ${key}` } })
  const sample = { name: 'a' }

  await t.test('for clients with its admin key', async (t) => {
    t.equal((await post(at, { sample }, addKey('view'))).status, 403)
    const plain = { headers: { ...addKey('admin').headers, 'content-type': 'text/plain' } }
    t.equal((await post(at, { sample }, plain)).status, 415, 'not for a page of another site')
    t.match(await readJson(post(at, { sampel: {} }, addKey('admin'))), { code: 'invalid_request' })
    t.match(await readJson(post(at, { sample, rollout_id: 'one' }, addKey('admin'))), {
      status: 'done',
      rows: [{ reward_score: 1, num_turns: 1, response_mask: new Array(9).fill(1) }],
    })
    t.match(await readJson(fetch(`${proxy.url}/rollouts`, addKey('admin'))), {
      rollouts: [{ rollout_id: 'one', status: 'done' }],
    })
  })

  await t.test('and counts them', async (t) => {
    t.match(await readJson(post(at, { sample: { fails: true } }, addKey('admin'))), {
      rows: [{ metrics: { failed: 1 } }],
    })
    const metrics = await (await fetch(`${proxy.url}/metrics`, addKey('admin'))).text()
    t.match(metrics, 'llm_proxy_rollouts_total{outcome="done"} 2\n')
    t.match(metrics, 'llm_proxy_rollouts{state="running"} 0\n')
    t.match(metrics, 'llm_proxy_rollout_tries_total 3\n', 'a failed one twice')
    t.match(metrics, /llm_proxy_rollout_seconds_total [\d.]+\n/)
  })

  await t.test('until it is stopped, which ends their agents', async (t) => {
    const slow = readJson(post(at, { sample: { name: 'slow' } }, addKey('admin')))
    const waits = readJson(post(at, { sample: { name: 'b' } }, addKey('admin')))
    const states = async () => {
      const { rollouts } = await readJson(fetch(`${proxy.url}/rollouts`, addKey('admin')))
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
