import t, { type Test } from 'tap'
import { RemoteAgentLoop, type RemoteAgentLoopOptions } from '../../src/rollout/remote-agent-loop.ts'
import type { AgentResult, AgentRunner, AgentTask } from '../../src/rollout/runners/runner.ts'
import { startHarborServer } from '../helpers/harbor-server.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { until } from '../helpers/until.ts'

type Run = (task: AgentTask, signal: AbortSignal) => Promise<AgentResult>

/** A runner whose agent is a function. */
function createRunner(run: Run): AgentRunner {
  return { run, close: async () => {} }
}

function createLoop(
  t: Test,
  proxyUrl: string,
  run: Run,
  options: RemoteAgentLoopOptions = {},
): RemoteAgentLoop {
  const loop = new RemoteAgentLoop(
    { proxyUrl, runner: createRunner(run), retryBaseDelayMs: 1, ...options },
    {},
  )
  t.teardown(() => loop.close())
  return loop
}

async function sendRequest(
  { openaiBaseUrl, apiKey }: Pick<AgentTask, 'openaiBaseUrl' | 'apiKey'>,
  question = 'What is the sea?',
) {
  const response = await fetch(`${openaiBaseUrl}/chat/completions`, {
    method: 'POST',
    headers: { authorization: `Bearer ${apiKey}` },
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: question }], max_tokens: 50 }),
  })
  if (!response.ok) throw new Error(`status ${response.status}`)
  await response.text()
}

const GOOD: AgentResult = { status: 'completed', rewards: { solved: 1, style: 0.5 } }

t.test("a rollout is the rows of its session, with the runner's reward", async (t) => {
  const proxy = await startProxy(t)
  const loop = createLoop(t, proxy.url, async (task) => {
    await sendRequest(task)
    return GOOD
  })
  const outputs = await loop.run(
    { temperature: 0.7, max_tokens: 7, logprobs: false },
    { instance_id: 'a/b c' },
  )
  t.match(outputs, [{ reward_score: 1.5, num_turns: 1, metrics: { tries: 1, num_rows: 1 } }])
  const { trial_id: trialId, session_id: sessionId } = outputs[0].extra_fields
  t.match(trialId, /^a_b_c-[0-9a-f]{16}$/)
  t.equal(sessionId, trialId)
  const session = await proxy.get(`/sessions/${sessionId}`)
  t.match(session, {
    status: 'completed',
    reward: 1.5,
    reward_components: { solved: 1, style: 0.5 },
    metadata: { trial_id: trialId, try: 1, instance_id: 'a/b c' },
  })
  t.strictSame(
    session.sampling_params,
    { temperature: 0.7, max_tokens: 7 },
    "verl's logprobs is not for the agent",
  )
  t.equal(outputs[0].response_ids.length, 7, 'the sampling parameters override the agent')
  const { trajectories } = await proxy.get(`/sessions/${sessionId}/trajectories`)
  for (const name of ['prompt_ids', 'response_ids', 'response_mask', 'response_logprobs'] as const) {
    t.strictSame(outputs[0][name], trajectories[0][name], name)
  }
})

t.test(
  'a session that branched has several rows, all or the selected ones, each with the reward',
  async (t) => {
    const proxy = await startProxy(t)
    const run: Run = async (task) => {
      await sendRequest(task, 'What is the sea?')
      await sendRequest(task, 'What is the moon?')
      return GOOD
    }
    t.match(await createLoop(t, proxy.url, run).run({}, { instance_id: 'x' }), [
      { reward_score: 1.5, metrics: { num_rows: 2 }, extra_fields: { row: 0, line: 'main' } },
      { reward_score: 1.5, metrics: { num_rows: 2 }, extra_fields: { row: 1 } },
    ])
    const chosen = await createLoop(t, proxy.url, run, { select: 'last' }).run({}, { instance_id: 'x' })
    t.match(chosen, [{ reward_score: 1.5, metrics: { num_rows: 1 }, extra_fields: { row: 0 } }])
    t.equal(chosen.length, 1)
  },
)

t.test(
  'a failed attempt leaves nothing in the result; its session is aborted and rejects late requests',
  async (t) => {
    const proxy = await startProxy(t)
    const tasks: AgentTask[] = []
    const logged: object[] = []
    const run: Run = async (task) => {
      tasks.push(task)
      await sendRequest(task, `This is try ${task.tryNumber}`)
      if (task.tryNumber === 1) throw new Error('it failed')
      if (task.tryNumber === 2) return { status: 'failed', rewards: { solved: 1 }, error: 'gave up' }
      return GOOD
    }
    const logger = { debug() {}, info() {}, warn: (fields: object) => logged.push(fields), error() {} }
    const outputs = await createLoop(t, proxy.url, run, { logger }).run({}, { instance_id: 'x' })
    const [first, second, third] = tasks.map(({ sessionId }) => sessionId)
    t.match(outputs, [
      {
        num_turns: 1,
        reward_score: 1.5,
        metrics: { tries: 3, failed: 0 },
        extra_fields: { session_id: third },
      },
    ])
    t.equal(new Set([first, second, third]).size, 3)
    for (const sessionId of [first, second])
      t.match(await proxy.get(`/sessions/${sessionId}`), { status: 'aborted', reward: null })
    await t.rejects(sendRequest(tasks[0]!), { message: 'status 409' })
    t.match(logged, [
      { session_id: first, agent_status: 'error', reason: 'it failed', attempt: 1 },
      { session_id: second, agent_status: 'failed', reason: 'gave up', attempt: 2 },
    ])
  },
)

t.test('when every attempt failed, the row is masked and has the reason', async (t) => {
  const proxy = await startProxy(t)
  const run: Run = async (task) => {
    await sendRequest(task)
    return { status: 'failed', rewards: { solved: 1 }, error: 'gave up' }
  }
  t.match(await createLoop(t, proxy.url, run, { maxRetries: 2 }).run({}, { instance_id: 'x' }), [
    {
      response_mask: [0],
      reward_score: null,
      metrics: { tries: 3, failed: 1, inert: 1 },
      extra_fields: { agent_status: 'failed', error: 'gave up' },
    },
  ])
})

t.test('an agent that sent no request has a masked row with its reward, and is not run again', async (t) => {
  const proxy = await startProxy(t)
  t.match(await createLoop(t, proxy.url, async () => GOOD).run({}, { instance_id: 'x' }), [
    { response_mask: [0], reward_score: 1.5, metrics: { tries: 1, failed: 0, inert: 1 } },
  ])
})

t.test('a timed-out agent has failed, unless such attempts are kept', async (t) => {
  const proxy = await startProxy(t)
  const run: Run = async (task) => {
    await sendRequest(task)
    return { status: 'timeout', rewards: { solved: 0.5 } }
  }
  t.match(await createLoop(t, proxy.url, run, { maxRetries: 0 }).run({}, {}), [
    { metrics: { failed: 1, inert: 1 } },
  ])
  t.match(await createLoop(t, proxy.url, run, { onTimeLimit: 'keep' }).run({}, {}), [
    {
      num_turns: 1,
      reward_score: 0.5,
      metrics: { failed: 0, tries: 1 },
      extra_fields: { agent_status: 'timeout' },
    },
  ])
})

t.test('a reward that is not a number is an error', async (t) => {
  const proxy = await startProxy(t)
  const run: Run = async () => ({ status: 'completed', rewards: { solved: Number.NaN } })
  t.match(await createLoop(t, proxy.url, run, { maxRetries: 0 }).run({}, {}), [
    {
      metrics: { failed: 1 },
      extra_fields: { error: 'its reward "solved" is NaN, which is not a finite number' },
    },
  ])
})

t.test("an agent's changes to its inputs are invisible to other attempts and to the caller", async (t) => {
  const proxy = await startProxy(t)
  const sample = { instance_id: 'x', extra: { list: [1] } }
  const samplingParams = { stop: ['a'] }
  const run: Run = async (task) => {
    const { extra } = task.sample as typeof sample
    const { stop } = task.samplingParams as typeof samplingParams
    t.strictSame([extra.list, stop], [[1], ['a']])
    extra.list.push(2)
    stop.push('b')
    return task.tryNumber === 1 ? { status: 'failed', rewards: {} } : GOOD
  }
  await createLoop(t, proxy.url, run).run(samplingParams, sample)
  t.strictSame([sample.extra.list, samplingParams.stop], [[1], ['a']])
})

t.test('a cancelled rollout stops its agent and aborts its session', async (t) => {
  const proxy = await startProxy(t)
  const controller = new AbortController()
  let sessionId = ''
  const run: Run = (task, signal) => {
    sessionId = task.sessionId
    return new Promise((_, reject) => {
      signal.addEventListener('abort', () => reject(signal.reason))
      controller.abort(new Error('cancelled'))
    })
  }
  await t.rejects(createLoop(t, proxy.url, run).run({}, {}, controller.signal), { message: 'cancelled' })
  t.match(await proxy.get(`/sessions/${sessionId}`), { status: 'aborted' })
})

t.test("agents get the proxy's address as they reach it, and the session's key", async (t) => {
  const proxy = await startProxy(t)
  let seen: AgentTask | undefined
  const run: Run = async (task) => {
    seen = task
    return GOOD
  }
  const [{ extra_fields }] = await createLoop(t, proxy.url, run, {
    agentHost: '10.0.0.9',
    modelName: 'm-1',
  }).run({}, {})
  const base = `http://10.0.0.9:${new URL(proxy.url).port}/${extra_fields.session_id}`
  t.match(seen, {
    openaiBaseUrl: `${base}/v1`,
    anthropicBaseUrl: base,
    apiKey: extra_fields.session_id,
    modelName: 'm-1',
  })
})

t.test(
  "requests to a proxy with keys use its admin key, and the agent's key allows nothing else",
  async (t) => {
    const adminKeys = ['admin-key-0123456789']
    const proxy = await startProxy(t, { adminKeys, agentKeySecrets: ['agent-secret-0123456789'] })
    const run: Run = async (task) => {
      await sendRequest(task)
      const headers = { authorization: `Bearer ${task.apiKey}` }
      const response = await fetch(`${proxy.url}/sessions/${task.sessionId}/complete`, {
        method: 'POST',
        headers,
      })
      t.equal(response.status, 403)
      return GOOD
    }
    t.match(await createLoop(t, proxy.url, run, { adminKeys }).run({}, {}), [
      { num_turns: 1, reward_score: 1.5 },
    ])
    await t.rejects(createLoop(t, proxy.url, run).run({}, {}), { code: 'unauthorized' })
  },
)

t.test('a short outage of the proxy fails no rollout', async (t) => {
  const proxy = await startProxy(t)
  const failures = ['cut', 'cut', '503', '502']
  const front = await startScriptedServer(async ({ method, path, body }, response) => {
    const failure = failures.pop()
    if (failure === 'cut') return void response.destroy()
    if (failure !== undefined) return sendJson(response, {}, Number(failure))
    const reply = await fetch(proxy.url + path, { method, ...(body && { body: JSON.stringify(body) }) })
    sendJson(response, await reply.json(), reply.status)
  })
  t.teardown(() => front.close())
  const loop = createLoop(t, front.url, async () => GOOD, { random: () => 0 })
  t.match(await loop.run({}, {}), [{ reward_score: 1.5, metrics: { tries: 1 } }])
  t.strictSame(failures, [])
})

t.test("the proxy's errors are errors of the rollout, with its messages", async (t: Test) => {
  const proxy: TestProxy = await startProxy(t)
  const loop = createLoop(t, proxy.url, async () => GOOD)
  await t.rejects(loop.run({ n: 2 }, {}), { code: 'unsupported', message: /must be 1/ })
  const other = await startScriptedServer((_, response) => sendJson(response, { hello: 'world' }))
  t.teardown(() => other.close())
  await t.rejects(createLoop(t, other.url, async () => GOOD).run({}, {}), {
    code: 'proxy_failed',
    message: `${other.url}/sessions does not respond as this version of llm-proxy does (200)`,
  })
})

t.test('without options, everything comes from the environment', async (t) => {
  const root = t.testdir({ one: { 'task.toml': '' } })
  const proxy = await startProxy(t, { db: `${root}/proxy.db` })
  const harbor = await startHarborServer(t, async () => ({
    body: {
      run_id: 'r',
      status: 'completed',
      rewards: { tests: 1, style: 0.5 },
      rollout_details: null,
      error: null,
    },
  }))
  const loop = new RemoteAgentLoop(
    {},
    {
      PROXY_SERVER_URL: proxy.url.replace('http', 'ws'),
      LLM_PROXY_IP: 'localhost',
      HARBOR_SERVER_URL: harbor.url,
      HARBOR_TIMEOUT: '20',
      HARBOR_DATASET_DIRS: `/nowhere:${root}`,
      REMOTE_AGENT_NAME: 'swe-agent',
      REMOTE_AGENT_IMPORT_PATH: 'a:B',
      REMOTE_MODEL_NAME: 'openai/m',
      REMOTE_AGENT_KWARGS: '{"max_turns": 3}',
      REMOTE_AGENT_MAX_RETRIES: '1',
      REMOTE_AGENT_RETRY_BASE_DELAY: '0.5',
      REMOTE_AGENT_ENVIRONMENT_OVERRIDES: '{"HTTP_PROXY": "http://p"}',
      REMOTE_AGENT_ENVIRONMENT_KWARGS: '{"namespace": "rl"}',
    },
  )
  t.teardown(() => loop.close())
  const [{ reward_score, extra_fields }] = await loop.run({}, { instance_id: 'one' })
  t.equal(reward_score, 1.5)
  const { port } = new URL(proxy.url)
  t.match(harbor.runs[0]!.metadata, {
    task_path: `${root}/one`,
    agent: {
      name: 'swe-agent',
      import_path: 'a:B',
      model_name: 'openai/m',
      llm_proxy_url: `http://localhost:${port}/${extra_fields.session_id}/v1`,
      kwargs: { max_turns: 3 },
    },
    environment_overrides: { HTTP_PROXY: 'http://p' },
    environment_kwargs: { namespace: 'rl' },
  })
})

t.test('an invalid setting is rejected with the name of its variable', async (t) => {
  const env = { PROXY_SERVER_URL: 'http://proxy:8080', HARBOR_SERVER_URL: 'http://harbor:8080' }
  for (const [name, value] of Object.entries({
    REMOTE_AGENT_KWARGS: '{"max_turns": 3',
    REMOTE_AGENT_ENVIRONMENT_OVERRIDES: '["a"]',
    REMOTE_AGENT_ENVIRONMENT_KWARGS: 'null',
    REMOTE_AGENT_MAX_RETRIES: 'many',
    REMOTE_AGENT_RETRY_BASE_DELAY: '-1',
    HARBOR_TIMEOUT: 'soon',
    HARBOR_SERVER_URL: 'harbor',
    PROXY_SERVER_URL: 'proxy',
    LLM_PROXY_IP: 'http://10.0.0.1',
  })) {
    const message = new RegExp(`^${name}: `)
    t.throws(
      () => new RemoteAgentLoop({}, { ...env, [name]: value }),
      { code: 'config_invalid', message },
      name,
    )
  }
  t.throws(() => new RemoteAgentLoop({}, {}), { code: 'config_invalid', message: /PROXY_SERVER_URL/ })
})

t.test('rollouts that wait between attempts are cancelled at once, all by one signal', async (t) => {
  const proxy = await startProxy(t)
  const controller = new AbortController()
  const failing: Run = async () => ({ status: 'failed', rewards: {} })
  const loop = createLoop(t, proxy.url, failing, { retryBaseDelayMs: 60_000 })
  const rollouts = Array.from({ length: 30 }, () => loop.run({}, {}, controller.signal))
  await until(async () => (await proxy.get('/sessions?status=aborted')).sessions.length === 30)
  controller.abort(new Error('cancelled'))
  for (const outcome of await Promise.allSettled(rollouts))
    t.match(outcome, { reason: { message: 'cancelled' } })
})
