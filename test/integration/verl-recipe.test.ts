/**
 * The loop and the worker of alibaba/verl-recipe (`agentic/`, commit a3105f6) with this proxy: `PROXY_SERVER_URL` names
 * a proxy that they do not know.
 */
import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'
import { V1Worker } from '../helpers/v1-worker.ts'

/** Responses as its `vllm_provider.py` and `worker_client.py` send them: the ids stay in the worker's cache. */
const createFrame = (text: string) => ({
  completion_text: text,
  content_text: text,
  tool_calls: null,
  finish_reason: 'stop',
  error: null,
  node_id: 'server-0',
  gpu_id: null,
  worker_id: 'w1',
  rank_info: null,
  timing: { worker_received_at: 1.25, worker_inference_started_at: 1.5 },
})

/** Returns the messages of the gaps between turns, by the rule of its `_reconstruct_output`. */
const getGaps = (turns: { request_messages: { role: string; content: string }[] }[]) =>
  turns
    .slice(1)
    .map(({ request_messages: added }) =>
      added.filter(({ role }) => ['tool', 'user', 'system'].includes(role)).map(({ content }) => content),
    )

for (const turnMessages of ['new', 'all'] as const) {
  t.test(`its loop reads messages of turns as --turn-messages ${turnMessages} returns them`, async (t) => {
    const proxy = await startProxy(t, { mode: 'relay', turnMessages })
    const responses = ['one', 'two', 'three']
    await V1Worker.connect(`${proxy.url.replace('http', 'ws')}/ws/worker`, 'w1', () =>
      createFrame(responses.shift()!),
    )
    t.equal((await fetch(`${proxy.url}/sessions/t-1`, { method: 'POST' })).status, 200)
    const messages = [{ role: 'user', content: 'Task' }]
    for (const next of ['First', 'Second', 'Third']) {
      const response = await fetch(`${proxy.baseUrl('t-1')}/chat/completions`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'm', messages }),
      })
      const { choices, usage } = (await response.json()) as {
        choices: { message: (typeof messages)[number] }[]
        usage: { completion_tokens: number }
      }
      t.ok(usage.completion_tokens > 0, 'estimated from the text')
      messages.push(choices[0]!.message, { role: 'user', content: next })
    }
    const session = await proxy.get('/sessions/t-1')
    t.match(session.turns[0].request_messages, [{ role: 'user', content: 'Task' }])
    const full = [
      ['Task', 'First'],
      ['Task', 'First', 'Second'],
    ]
    t.strictSame(getGaps(session.turns), turnMessages === 'new' ? [['First'], ['Second']] : full)
    t.strictSame(getGaps((await proxy.get('/sessions/t-1?messages=all')).turns), full)
    t.match(session.turns[0].inexact_reason, 'did not report token ids of the completion')
    const { workers } = await proxy.get('/health')
    t.match(workers, [{ name: 'w1', warning: 'its responses have no token ids' }])
    const { trajectories } = await proxy.get('/sessions/t-1/trajectories')
    t.ok(
      trajectories.every(({ exact }: { exact: boolean }) => !exact),
      'and the rows report it',
    )

    t.equal((await fetch(`${proxy.url}/sessions/t-1`, { method: 'POST' })).status, 200, 'a retry finds it')
    t.equal((await fetch(`${proxy.url}/sessions/t-1/reset`, { method: 'POST' })).status, 200)
    t.strictSame((await proxy.get('/sessions/t-1')).turns, [])
  })
}

t.test('its routes for timings are rejected with the reason', async (t) => {
  const proxy = await startProxy(t)
  for (const [method, path] of [
    ['POST', '/training/timing'],
    ['GET', '/training/timing/5'],
  ] as const) {
    const response = await fetch(proxy.url + path, { method })
    t.equal(response.status, 404)
    t.match(
      await response.json(),
      { code: 'route_not_found', detail: /records no timings of trainers/ },
      path,
    )
  }
})
