/** A session names the model of each agent role, and no agent, engine or worker can change it. */
import t, { type Test } from 'tap'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startEngine, type TestEngine } from '../helpers/engine.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { createAgent, getTurns, joinWorker } from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

/** Starts two engines with one model each. */
async function startTwoEngines(t: Test, mode: 'local' | 'relay', config: Partial<ServeConfig> = {}) {
  const engines = await Promise.all(['actor', 'critic'].map((model) => startEngine(t, { model })))
  const urls = engines.map(({ url }) => url)
  const proxy = await startProxy(t, mode === 'local' ? { engineUrls: urls, ...config } : { mode, ...config })
  if (mode === 'relay')
    for (const [index, url] of urls.entries())
      joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [url], workerId: `w${index}` })
  await untilModels(proxy)
  return { proxy, actor: engines[0]!, critic: engines[1]! }
}

const untilModels = (proxy: TestProxy) =>
  until(async () => (await proxy.get('/s/v1/models')).data?.length === 2)

const sendRequest = (proxy: TestProxy, agentRole?: string) =>
  createAgent(proxy, 's').chat.completions.create(
    { model: 'gpt-4o', messages: [{ role: 'user', content: `I am ${agentRole}` }], max_tokens: 4 },
    agentRole === undefined ? {} : { headers: { 'x-llm-proxy-line': agentRole } },
  )

/** Two requests before an engine's first one measure its logprobs mode. */
const MEASURING = 2
const countServed = ({ server }: TestEngine) => Math.max(0, server.counters.served - MEASURING)

for (const mode of ['local', 'relay'] as const) {
  t.test(`${mode}: each agent role is sampled by its policy, whatever the agent requests`, async (t) => {
    const { proxy, actor, critic } = await startTwoEngines(t, mode)
    const policy = { main: 'actor', 'subagent:critic': 'critic' }
    await proxy.post('/sessions', { session_id: 's', policy, sampling_params: { model: 'base' } })
    for (const agentRole of [undefined, 'subagent:critic', 'main', 'compaction', 'subagent:critic'])
      await sendRequest(proxy, agentRole)
    t.same([countServed(actor), countServed(critic)], [3, 2])
    const turns = await getTurns(proxy, 's')
    t.same(
      turns.map((turn: { model: string; params: { model: string }; annotations: { policy: string } }) => [
        turn.model,
        turn.params.model,
        turn.annotations.policy,
      ]),
      ['actor', 'critic', 'actor', 'actor', 'critic'].map((name) => [name, name, name]),
    )
    t.same((await proxy.get('/sessions/s')).policy, policy)
    const { trajectories } = await proxy.get('/sessions/s/trajectories?select=policy:critic')
    t.same(
      trajectories.map((row: { policy: string; line: string }) => [row.policy, row.line]),
      [
        ['critic', 'subagent:critic'],
        ['critic', 'subagent:critic'],
      ],
    )
  })

  t.test(
    `${mode}: a policy that no engine serves fails, and never runs on another one's weights`,
    async (t) => {
      const { proxy, actor, critic } = await startTwoEngines(t, mode, { queueWaitMs: 100 })
      await proxy.post('/sessions', { session_id: 's', policy: 'gone' })
      const rejected = await sendRequest(proxy).catch((error: unknown) => error)
      t.match(rejected, { status: 503, code: 'policy_not_served' })
      t.match((rejected as Error).message, /no engine lists the policy gone; they list actor, critic$/)
      t.same((await proxy.get('/sessions/s/trajectories')).trajectories, [])
      t.same([countServed(actor), countServed(critic)], [0, 0])
      await proxy.post('/sessions', { session_id: 'free' })
      const free = createAgent(proxy, 'free')
      await free.chat.completions.create({
        model: 'actor',
        messages: [{ role: 'user', content: 'hi' }],
        max_tokens: 2,
      })
      t.equal(countServed(actor), 1, 'sessions without a policy continue')
    },
  )
}

t.test('rewards are set for the session and for its agent roles', async (t) => {
  const { proxy } = await startTwoEngines(t, 'local')
  await proxy.post('/sessions', { session_id: 's', policy: { '*': 'actor', 'subagent:critic': 'critic' } })
  await sendRequest(proxy, 'main')
  await sendRequest(proxy, 'subagent:critic')
  const response = await proxy.post('/sessions/s/reward', { reward: 1, lines: { 'subagent:critic': -0.5 } })
  t.match(response, { reward: 1, reward_lines: { 'subagent:critic': -0.5 } })
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.same(
    trajectories.map((row: { line: string; reward: number }) => [row.line, row.reward]),
    [
      ['main', 1],
      ['subagent:critic', -0.5],
    ],
  )
  const { reward, reward_lines } = await proxy.post('/sessions/s/reward', { reward: 2 })
  t.strictSame([reward, reward_lines], [2, {}])
})

t.test('requests accept the present and the former names, and responses have both', async (t) => {
  const { proxy } = await startTwoEngines(t, 'local')
  await proxy.post('/sessions', { session_id: 's' })
  await createAgent(proxy, 's').chat.completions.create(
    { model: 'actor', messages: [{ role: 'user', content: 'hi' }], max_tokens: 4 },
    { headers: { 'x-llm-proxy-agent-role': 'subagent:critic' } },
  )
  const roles = { 'subagent:critic': -0.5 }
  const rewarded = { reward: 1, reward_agent_roles: roles, reward_lines: roles }
  t.match(await proxy.post('/sessions/s/reward', { reward: 1, lines: roles }), rewarded)
  t.match(await proxy.post('/sessions/s/reward', { reward: 1, agent_roles: roles }), rewarded)
  t.match(await proxy.post('/sessions/s/reward', { reward: 1, agent_roles: roles, lines: roles }), {
    code: 'invalid_request',
    param: 'lines',
  })
  const role = { agent_role: 'subagent:critic', line: 'subagent:critic' }
  const declared = { told: 'subagent:critic', rule: 'header' }
  t.match((await proxy.get('/sessions/s')).turns, [
    {
      ...role,
      ...{ agent_role_rule: 'header', line_rule: 'header' },
      annotations: { agent_role: declared, line: declared },
    },
  ])
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  t.match(trajectories, [{ ...role, reward: -0.5, turns: [role] }])
  t.match((await proxy.get('/sessions/s/rows')).rows, [{ ...role, turns: [role] }])
  t.match((await proxy.get('/sessions/s/tree')).turns, [role])
  const forest = await proxy.get('/sessions/s/forest')
  t.match(forest.rows, [{ ...role, turns: [role] }])
  t.match(forest.nodes.at(-1), role)
})

t.test('a policy of an invalid agent role is rejected, and so is an unknown selection', async (t) => {
  const proxy = await startProxy(t)
  t.match(await proxy.post('/sessions', { policy: { critic: 'x' } }), {
    code: 'invalid_request',
    param: 'policy',
  })
  await proxy.post('/sessions', { session_id: 's' })
  t.match(await proxy.get('/sessions/s/trajectories?select=policy:'), { code: 'invalid_request' })
})
