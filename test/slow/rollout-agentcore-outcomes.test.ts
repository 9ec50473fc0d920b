/**
 * Each failure on AgentCore is one outcome of one attempt: the sample is run again, and only its last attempt is
 * trained.
 */
import { join } from 'node:path'
import t from 'tap'
import { RemoteAgentLoop } from '../../src/rollout/remote-agent-loop.ts'
import { AgentCoreRunner } from '../../src/rollout/runners/agentcore/agentcore-runner.ts'
import {
  type ContainerResponse,
  type FakeAgentCore,
  type Fault,
  startFakeAgentCore,
} from '../helpers/fake-agentcore.ts'
import { startProxy } from '../helpers/proxy.ts'

interface Payload {
  _config?: { base_url: string; api_key: string }
  _agentcore_runtime: { operation: 'start' | 'get'; invocation_id: string }
}

/** Sends an agent's only request to its model. @returns the status of the response */
async function runConversation({ _config }: Payload): Promise<number> {
  const { base_url, api_key } = _config!
  const response = await fetch(`${base_url}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${api_key}` },
    body: JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'Hi' }], max_tokens: 6 }),
  })
  await response.text()
  return response.status
}

function state(id: string, status: string, more: object = {}): ContainerResponse {
  return { body: JSON.stringify({ version: 1, invocation_id: id, status, ...more }) }
}

const complete = (result: unknown) => (id: string) => state(id, 'completed', { result })
const THROTTLED: Fault = { name: 'ThrottlingException', status: 429 }
const QUOTA: Fault = { name: 'ServiceQuotaExceededException', status: 402 }
const times = (count: number, fault: Fault) => Array.from({ length: count }, () => fault)

/** By title: the behaviour of a sample's first session after its request, and AgentCore's faults. */
const FIRST: Record<string, { respond?: (id: string) => ContainerResponse; faults?: Fault[] }> = {
  'an agent that raises': { respond: (id) => state(id, 'completed', { error: 'boom' }) },
  'a result that is no JSON object': { respond: complete('<html>') },
  "another sample's result": { respond: complete({ reward: 1, input_id: 'yours' }) },
  'a reward that is no number': { respond: complete({ reward: 'good' }) },
  'a container that fails': { respond: () => ({ status: 500, body: 'out of memory' }) },
  'a session that AgentCore ended by itself': { respond: (id) => state(id, 'not_found') },
  'an agent out of time': { respond: (id) => state(id, 'in_progress') },
  'a lost start': { faults: ['cut'] },
  'a start that is throttled to the end': { faults: times(8, THROTTLED) },
  'a start that exceeds the quota to the end': { faults: times(8, QUOTA) },
}

for (const [title, { respond, faults = [] }] of Object.entries(FIRST)) {
  t.test(`${title} is run again, and nothing of it is trained`, async (t) => {
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const startedIds: string[] = []
    const container = async (id: string, payload: Payload): Promise<ContainerResponse> => {
      if (payload._agentcore_runtime.operation === 'start') {
        startedIds.push(id)
        t.equal(await runConversation(payload), 200)
      }
      return id === startedIds[0] && respond !== undefined
        ? respond(id)
        : state(id, 'completed', { result: { reward: 1 } })
    }
    const front: FakeAgentCore = await startFakeAgentCore(t, container)
    front.invokeFaults.push(...faults)
    const runner = new AgentCoreRunner({
      arn: `arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/${title.replaceAll(' ', '_')}`,
      ledger: join(t.testdirName, 'ledger'),
      tps: 1_000,
      retryBaseMs: 1,
      // The second attempt takes a moment, and must fit into this on a busy machine as well.
      timeLimitMs: title.includes('out of time') ? 6_000 : 120_000,
    })
    const options = { proxyUrl: proxy.url, runner, maxRetries: 1, retryBaseDelayMs: 1 }
    const loop = new RemoteAgentLoop(options, {})
    const [row, ...more] = await loop.run({ temperature: 1 }, { instance_id: 'x' })
    await loop.close()
    t.match(row, { reward_score: 1, num_turns: 1, metrics: { tries: 2, failed: 0, inert: 0 } })
    t.strictSame(more, [])
    const { session_id: last } = row!.extra_fields
    const { trajectories } = await proxy.get(`/sessions/${last}/trajectories`)
    t.strictSame(trajectories[0].response_ids, row!.response_ids)
    const first = last.replace('~2', '')
    t.equal((await proxy.get(`/sessions/${first}`)).status, 'aborted')
    const { trajectories: firstRows } = await proxy.get(`/sessions/${first}/trajectories`)
    t.strictSame(
      firstRows.map(({ finished }: { finished: boolean }) => finished),
      faults.length === 0 ? [false] : [],
      'an agent that started has a row',
    )
    t.strictSame(
      front.stopped.filter((id) => front.started.includes(id)).toSorted(),
      front.started.toSorted(),
    )
  })
}

t.test('an agent that runs although its start was lost adds nothing to any session', async (t) => {
  const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
  const agents: Payload[] = []
  const front = await startFakeAgentCore(t, async (id, payload: Payload) => {
    if (payload._agentcore_runtime.operation === 'start') agents.push(payload)
    if (agents.length === 2) await runConversation(payload)
    return state(id, 'completed', { result: { reward: 1 } })
  })
  front.invokeFaults.push('cut late')
  const runner = new AgentCoreRunner({
    arn: 'arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/works_on',
    ledger: join(t.testdirName, 'ledger'),
    retryBaseMs: 1,
  })
  const loop = new RemoteAgentLoop({ proxyUrl: proxy.url, runner, maxRetries: 1, retryBaseDelayMs: 1 }, {})
  const [row] = await loop.run({ temperature: 1 }, { instance_id: 'x' })
  await loop.close()
  t.match(row, { num_turns: 1, metrics: { tries: 2 } })
  t.equal(await runConversation(agents[0]!), 409, 'its session has ended')
  const { trajectories } = await proxy.get(`/sessions/${row!.extra_fields.session_id}/trajectories`)
  t.equal(trajectories.length, 1)
})
