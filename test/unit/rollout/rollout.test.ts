import t, { type Test } from 'tap'
import { RemoteAgentLoop } from '../../../src/rollout/remote-agent-loop.ts'
import type { AgentResult } from '../../../src/rollout/runners/runner.ts'
import { type IncomingRequest, sendJson, startScriptedServer } from '../../helpers/scripted-server.ts'

const NOT_FOUND = { detail: 'Session not found', code: 'session_not_found' }
const NO_ROWS = { reward: null, reward_components: {}, excluded_turns: {}, trajectories: [] }

/**
 * Starts a proxy whose first session is removed before its request for `removedAt`, as the proxy answers them:
 * requests that end a session report `not_found`, others are rejected.
 */
async function startProxy(t: Test, removedAt: string) {
  const sessions: string[] = []
  let isRemoved = false
  const respond = ({ path, body }: IncomingRequest): [body: unknown, status?: number] => {
    if (path === '/sessions') return [{ session_id: sessions[sessions.push(body.session_id) - 1] }]
    isRemoved = sessions.length === 1 && (isRemoved || path.includes(removedAt))
    if (/\/(complete|abort)$/.test(path)) return [{ status: isRemoved ? 'not_found' : 'completed' }]
    if (isRemoved) return [NOT_FOUND, 404]
    return [path.includes('/trajectories') ? NO_ROWS : { status: 'active' }]
  }
  const server = await startScriptedServer((request, response) => sendJson(response, ...respond(request)))
  t.teardown(() => server.close())
  return { url: server.url, sessions }
}

for (const [removedAt, rewards] of [
  ['/complete', {}],
  ['/wait', { tests: 1 }],
  ['/reward', { tests: 1 }],
  ['/trajectories', { tests: 1 }],
] as const) {
  t.test(`an attempt whose session is removed before its request to ${removedAt} is retried`, async (t) => {
    const proxy = await startProxy(t, removedAt)
    const run = async (): Promise<AgentResult> => ({ status: 'completed', rewards })
    const runner = { run, close: async () => {} }
    const reasons: unknown[] = []
    const warn = (fields: object) => reasons.push((fields as { reason?: unknown }).reason)
    const logger = { debug() {}, info() {}, warn, error: warn }
    const loop = new RemoteAgentLoop({ proxyUrl: proxy.url, retryBaseDelayMs: 1, runner, logger }, {})
    t.teardown(() => loop.close())
    const [row] = await loop.run({}, { instance_id: 'a' })
    t.equal(row.metrics.tries, 2)
    t.equal(row.extra_fields.session_id, proxy.sessions[1])
    t.strictSame(reasons, ['its session was removed'])
  })
}

t.test('a rollout fails if the proxy rejects its reward for another reason', async (t) => {
  const server = await startScriptedServer(({ path }, response) => {
    if (path.includes('/wait')) return sendJson(response, { detail: 'no', code: 'unauthorized' }, 401)
    sendJson(response, { session_id: 'a', status: 'active' })
  })
  t.teardown(() => server.close())
  const run = async (): Promise<AgentResult> => ({ status: 'completed', rewards: { tests: 1 } })
  const loop = new RemoteAgentLoop({ proxyUrl: server.url, runner: { run, close: async () => {} } }, {})
  t.teardown(() => loop.close())
  await t.rejects(loop.run({}, {}), { code: 'unauthorized' })
})
