import t, { type Test } from 'tap'
import { RemoteAgentLoop } from '../../src/rollout/remote-agent-loop.ts'
import { HttpRunner } from '../../src/rollout/runners/http-runner.ts'
import { createAgentTask } from '../helpers/agent-task.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

async function startWebhook(t: Test, script: Script) {
  const server = await startScriptedServer(script)
  t.teardown(() => server.close())
  return server
}

function createLoop(t: Test, proxy: TestProxy, webhookUrl: string, timeLimitMs = 30_000): RemoteAgentLoop {
  const runner = new HttpRunner({ webhookUrl, timeLimitMs, headers: { 'x-key': 'k' } })
  const loop = new RemoteAgentLoop(
    {
      proxyUrl: proxy.url,
      runner,
      maxRetries: 1,
      retryBaseDelayMs: 1,
      modelName: 'm-1',
      continueResponses: true,
    },
    {},
  )
  t.teardown(() => loop.close())
  return loop
}

const REQUEST = { model: 'm', messages: [{ role: 'user', content: 'What is the sea?' }], max_tokens: 5 }

t.test('a webhook receives the task; the rollout ends when a client completes the session', async (t) => {
  const proxy = await startProxy(t)
  const hook = await startWebhook(t, async ({ body }, response) => {
    sendJson(response, {}, 202)
    const { session_id: id } = body
    await proxy.post(`/${id}/v1/chat/completions`, REQUEST)
    await proxy.post(`/sessions/${id}/reward`, { reward: 0.75, components: { judged: 0.75 } })
    await proxy.post(`/sessions/${id}/complete`)
  })
  const sample = { instance_id: 'sea', prompt: 'What is the sea?' }
  const [output, ...others] = await createLoop(t, proxy, `${hook.url}/hook`).run({ temperature: 0.5 }, sample)
  t.strictSame(others, [])
  const { trial_id: trialId } = output.extra_fields
  t.match(await proxy.get(`/sessions/${trialId}`), { continue_responses: true })
  const [{ path, headers, body }] = hook.requests as [(typeof hook.requests)[0]]
  t.match(
    { path, key: headers['x-key'], type: headers['content-type'] },
    {
      path: '/hook',
      key: 'k',
      type: 'application/json',
    },
  )
  t.strictSame(body, {
    trial_id: trialId,
    session_id: trialId,
    try: 1,
    openai_base_url: `${proxy.url}/${trialId}/v1`,
    anthropic_base_url: `${proxy.url}/${trialId}`,
    api_key: trialId,
    model_name: 'm-1',
    task_path: null,
    sampling_params: { temperature: 0.5 },
    task: sample,
  })
  t.match(output, {
    reward_score: 0.75,
    num_turns: 1,
    metrics: { failed: 0, inert: 0, tries: 1 },
    extra_fields: { reward_components: { judged: 0.75 }, agent_status: 'completed' },
  })
  t.equal(output.response_mask.length, 5)
})

t.test('an aborted session is a failed attempt, and the next one has a new session', async (t) => {
  const proxy = await startProxy(t)
  const hook = await startWebhook(t, async ({ body }, response) => {
    sendJson(response, {})
    const { session_id: id, try: tryNumber } = body
    await proxy.post(`/${id}/v1/chat/completions`, REQUEST)
    await proxy.post(`/sessions/${id}/${tryNumber === 1 ? 'abort' : 'complete'}`)
  })
  const [output] = await createLoop(t, proxy, hook.url).run({}, { instance_id: 'sea' })
  t.match(output, { num_turns: 1, metrics: { tries: 2, failed: 0 }, extra_fields: { session_id: /~2$/ } })
})

t.test('a webhook that rejects is an error of the attempt', async (t) => {
  const hook = await startWebhook(t, (_, response) => sendJson(response, { detail: 'no place' }, 507))
  const runner = new HttpRunner({ webhookUrl: hook.url })
  t.teardown(() => runner.close())
  await t.rejects(runner.run(createAgentTask(), new AbortController().signal), {
    message: 'the webhook responded with 507: {"detail":"no place"}',
  })
})

t.test('a session that is never completed times out', async (t) => {
  const proxy = await startProxy(t)
  const hook = await startWebhook(t, (_, response) => sendJson(response, {}))
  const [output] = await createLoop(t, proxy, hook.url, 50).run({}, { instance_id: 'sea' })
  t.match(output, {
    response_mask: [0],
    reward_score: null,
    metrics: { failed: 1, inert: 1, tries: 2 },
    extra_fields: { agent_status: 'timeout', error: 'the session was not ended in time' },
  })
})
