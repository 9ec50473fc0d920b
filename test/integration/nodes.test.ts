/** Several equal proxies, each with its own sessions: none serves, makes or shows a session of another one. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { nodeOfSession } from '../../src/proxy/session/state/nodes.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'

/** An id that belongs to this node of four. */
function idOf(node: number, name = 'rollout'): string {
  for (let i = 0; ; i += 1) if (nodeOfSession(`${name}-${i}`, 4) === node) return `${name}-${i}`
}

const second = (t: Test, more: Partial<ServeConfig> = {}) => startProxy(t, { node: '2/4', ...more })

function chat(proxy: TestProxy, sessionId: string, apiKey = 'none') {
  const client = new OpenAI({ baseURL: proxy.baseUrl(sessionId), apiKey, maxRetries: 2 })
  return client.chat.completions.create({
    model: 'embedded',
    messages: [{ role: 'user', content: 'Hi.' }],
    max_tokens: 5,
  })
}

t.test('a node serves its own sessions, and says which node it is', async (t) => {
  const proxy = await second(t)
  await chat(proxy, idOf(2))
  t.match(await proxy.get(`/sessions/${idOf(2)}`), { turn_count: 1 })
  t.match(await proxy.get('/health'), { node: '2/4' })
})

t.test(
  'a call for a session of another node is refused by name, once, in the shape of its dialect',
  async (t) => {
    const proxy = await second(t)
    const error = await chat(proxy, idOf(3)).catch((thrown) => thrown)
    t.match(error, { status: 421, code: 'wrong_node' })
    t.match(error.message, 'belongs to node 3/4, and this is 2/4')
    t.equal(error.headers.get('x-llm-proxy-node'), '3/4')
    const anthropic = new Anthropic({ baseURL: `${proxy.url}/${idOf(4)}`, apiKey: 'none', maxRetries: 2 })
    const messages = [{ role: 'user' as const, content: 'Hi.' }]
    const refused = await anthropic.messages
      .create({ model: 'm', max_tokens: 5, messages })
      .catch((thrown) => thrown)
    t.match(refused, { status: 421, error: { error: { details: { error_code: 'wrong_node' } } } })
    t.match(await proxy.get('/sessions'), { sessions: [] }, 'none was made')
  },
)

t.test('no route shows or changes a session of another node, however it is named', async (t) => {
  const proxy = await second(t)
  const foreign = idOf(1)
  for (const path of ['', '/trajectories', '/tree', '/traces', '/live', '/wait'])
    t.match(await proxy.get(`/sessions/${foreign}${path}`), { code: 'wrong_node' }, path)
  for (const path of ['', '/complete', '/abort', '/reset'])
    t.match(await proxy.post(`/sessions/${foreign}${path}`), { code: 'wrong_node' }, path)
  t.match(await proxy.post('/sessions', { session_id: foreign }), { code: 'wrong_node' })
  t.match(await proxy.get(`/traces/${foreign}:turn`), { code: 'wrong_node' })
  const slashed = `harbor/${foreign}:0`
  const isOwn = nodeOfSession(slashed, 4) === 2
  t.match(await proxy.get(`/sessions/${slashed}`), { code: isOwn ? 'session_not_found' : 'wrong_node' })
  const client = new OpenAI({ baseURL: `${proxy.url}/v1`, apiKey: foreign, maxRetries: 0 })
  const named = client.chat.completions.create({ model: 'm', messages: [{ role: 'user', content: 'Hi.' }] })
  await t.rejects(named, { code: 'wrong_node' })
})

t.test('ids that a node makes are its own', async (t) => {
  const proxy = await second(t)
  for (let i = 0; i < 8; i += 1) {
    const { session_id: sessionId } = await proxy.post('/sessions')
    t.equal(nodeOfSession(sessionId, 4), 2)
  }
})

t.test("an agent's key is refused where its session is not", async (t) => {
  const keys = { db: 'memory', adminKeys: ['admin-key-0123456789'], agentKeySecrets: ['s'.repeat(32)] }
  const [one, two] = [
    await startProxy(t, { node: '1/2', ...keys }),
    await second(t, { node: '2/2', ...keys }),
  ]
  const { session_id: sessionId, agent_key: key } = await one.post('/sessions')
  t.ok((await chat(one, sessionId, key)).choices[0])
  const client = new OpenAI({ baseURL: `${two.url}/v1`, apiKey: key, maxRetries: 0 })
  const asked = client.chat.completions.create({ model: 'm', messages: [{ role: 'user', content: 'Hi.' }] })
  await t.rejects(asked, { code: 'wrong_node' })
})

t.test('a place that is none is refused at the start', async (t) => {
  await t.rejects(startProxy(t, { node: '5/4' }), { code: 'config_invalid' })
})
