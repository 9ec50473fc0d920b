import { mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { hostname } from 'node:os'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import {
  AgentCoreRunner,
  type AgentCoreRunnerOptions,
} from '../../src/rollout/runners/agentcore/agentcore-runner.ts'
import type { AgentResult } from '../../src/rollout/runners/runner.ts'
import { createAgentTask } from '../helpers/agent-task.ts'
import {
  type Container,
  type ContainerResponse,
  createArn,
  type FakeAgentCore,
  type FakeAgentCoreOptions,
  startFakeAgentCore,
} from '../helpers/fake-agentcore.ts'
import { until } from '../helpers/until.ts'

const NEVER = new AbortController().signal

/** A container program that returns this result at the first poll. */
const createContainer =
  (result: object): Container =>
  (_, { _agentcore_runtime: { operation, invocation_id } }) =>
    getState(
      invocation_id,
      operation === 'start' ? { status: 'in_progress' } : { status: 'completed', ...result },
    )

function getState(id: string, state: object): ContainerResponse {
  return { body: JSON.stringify({ version: 1, invocation_id: id, ...state }) }
}

interface Rig {
  front: FakeAgentCore
  runner: AgentCoreRunner
  messages: string[]
  ledger: string
}

async function startRig(
  t: Test,
  container: Container,
  options: Partial<AgentCoreRunnerOptions> = {},
  limits: FakeAgentCoreOptions = {},
): Promise<Rig> {
  const front = await startFakeAgentCore(t, container, limits)
  const ledger = options.ledger ?? join(t.testdir({}), 'ledger')
  const messages: string[] = []
  const warn = (text: string) => messages.push(text)
  const runner = new AgentCoreRunner({
    arn: createArn(),
    tps: 1_000,
    retryBaseMs: 1,
    warn,
    ...options,
    ledger,
  })
  t.teardown(() => runner.close())
  return { front, runner, messages, ledger }
}

const listLedger = ({ ledger }: Rig) => readdirSync(ledger)

t.test('an agent is started in a new session, polled for its result, and stopped', async (t) => {
  const seen: object[] = []
  const rig = await startRig(t, (id, payload) => {
    seen.push(payload)
    return createContainer({ result: { reward: 0.5, steps: 3 } })(id, payload)
  })
  const task = createAgentTask({
    sample: { prompt: 'Hi' },
    apiKey: 'key',
    modelName: 'm',
    sessionId: 'trial/1~2',
  })
  t.match(await rig.runner.run(task, NEVER), {
    status: 'completed',
    rewards: { reward: 0.5 },
    details: { steps: 3 },
  })
  await rig.runner.close()
  const [id] = rig.front.started
  t.match(id, /^llm-proxy-trial-1-2-[0-9a-f-]{36}$/)
  t.strictSame(rig.front.stopped, [id])
  t.strictSame(listLedger(rig), [], 'nothing is left to stop')
  t.strictSame(seen, [
    {
      prompt: 'Hi',
      _config: { base_url: task.openaiBaseUrl, api_key: 'key', model_id: 'm' },
      _agentcore_runtime: { version: 1, invocation_id: id, operation: 'start', background: true },
    },
    { _agentcore_runtime: { version: 1, invocation_id: id, operation: 'get' } },
  ])
})

t.test("the agent gets the row's payload, if there is one", async (t) => {
  let seen: object = {}
  const rig = await startRig(t, (_, payload) => {
    seen = payload
    return { body: '{"reward": 1}' }
  })
  const sample = { payload: { prompt: 'Hi' }, answer: '42' }
  const result = await rig.runner.run(createAgentTask({ sample }), NEVER)
  t.match(
    result,
    { status: 'completed', rewards: { reward: 1 } },
    'an app without the envelope responds at once',
  )
  t.match(seen, { prompt: 'Hi' })
  t.notMatch(seen, { answer: '42' })
})

const outcome = (status: string, error: RegExp | string) => ({ status, error })

/** Checks an attempt that failed, and has no rewards therefore. */
function checkOutcome(t: Test, result: AgentResult, expected: object): void {
  t.match(result, expected)
  t.strictSame(result.rewards, {})
}

const OUTCOMES: [string, Container, object][] = [
  ['raises', createContainer({ error: 'boom' }), outcome('failed', 'boom')],
  [
    'returns no number',
    createContainer({ result: { reward: 'good' } }),
    outcome('error', /not a number: good/),
  ],
  [
    'is ended by AgentCore',
    createContainer({ status: 'interrupted' }),
    outcome('error', /ended its session early/),
  ],
  ['is not found', createContainer({ status: 'not_found' }), outcome('error', /ended its session early/)],
  [
    'crashes',
    () => ({ status: 500, body: 'out of memory' }),
    outcome('failed', /the AgentCore container failed.*out of memory/),
  ],
  ['returns nothing', () => ({ body: '' }), outcome('error', /not a JSON object/)],
  ['requires S3', () => ({ body: '{"status":"processing"}' }), outcome('error', /use --results s3/)],
]
for (const [what, container, expected] of OUTCOMES) {
  t.test(`an agent that ${what} is one clear outcome, and its session is stopped`, async (t) => {
    const rig = await startRig(t, container)
    checkOutcome(t, await rig.runner.run(createAgentTask(), NEVER), expected)
    await rig.runner.close()
    t.strictSame(rig.front.stopped, rig.front.started)
    t.strictSame(listLedger(rig), [])
  })
}

const THROTTLED = { name: 'ThrottlingException', status: 429 }
const QUOTA = { name: 'ServiceQuotaExceededException', status: 402 }
const CONFLICT = { name: 'RetryableConflictException', status: 409 }

t.test('a start that was not accepted is repeated, in the same session', async (t) => {
  const rig = await startRig(t, createContainer({ result: { reward: 1 } }))
  rig.front.invokeFaults.push(THROTTLED, QUOTA, CONFLICT)
  t.match(await rig.runner.run(createAgentTask(), NEVER), { status: 'completed' })
  t.equal(rig.front.started.length, 1)
  t.match(
    rig.runner.describe(),
    /1 started, \d running, 0 waiting, 1 done, 0 failed, 1 calls throttled, 1 in/,
  )
})

for (const [fault, error] of [
  [THROTTLED, /throttled every attempt/],
  [QUOTA, /allows no further AgentCore session/],
  [{ name: 'AccessDeniedException', status: 403 }, /rejected the call/],
  [{ name: 'ResourceNotFoundException', status: 404 }, /runtime or session does not exist/],
] as const) {
  t.test(
    `${fault.name} on each attempt is an error; a session that never started is not stopped`,
    async (t) => {
      const rig = await startRig(t, createContainer({}))
      rig.front.invokeFaults.push(...Array.from({ length: 8 }, () => fault))
      checkOutcome(t, await rig.runner.run(createAgentTask(), NEVER), outcome('error', error))
      await rig.runner.close()
      t.strictSame([rig.front.started, rig.front.stopped, listLedger(rig)], [[], [], []])
    },
  )
}

t.test('a lost start is not repeated: a second agent would join the session of the first', async (t) => {
  const rig = await startRig(t, createContainer({ result: { reward: 1 } }))
  rig.front.invokeFaults.push('cut')
  checkOutcome(t, await rig.runner.run(createAgentTask(), NEVER), outcome('error', /is unknown/))
  await rig.runner.close()
  t.strictSame(rig.front.started, [])
  t.equal(rig.front.stopped.length, 1, 'it is stopped nevertheless')
})

t.test('a lost poll is repeated', async (t) => {
  const rig = await startRig(t, (id, payload) => {
    rig.front.invokeFaults.push('cut', THROTTLED)
    rig.front.invokeFaults.splice(2)
    if (payload._agentcore_runtime.operation === 'get') rig.front.invokeFaults.length = 0
    return createContainer({ result: { reward: 1 } })(id, payload)
  })
  t.match(await rig.runner.run(createAgentTask(), NEVER), { status: 'completed', rewards: { reward: 1 } })
})

t.test('a session whose polls are all rejected is stopped, because it runs', async (t) => {
  const rig = await startRig(t, (id) => {
    rig.front.invokeFaults.push(...Array.from({ length: 8 }, () => THROTTLED))
    return getState(id, { status: 'in_progress' })
  })
  checkOutcome(t, await rig.runner.run(createAgentTask(), NEVER), outcome('error', /throttled every attempt/))
  await rig.runner.close()
  t.equal(rig.front.started.length, 1)
  t.strictSame(rig.front.stopped, rig.front.started)
})

t.test('an agent that takes too long has timed out, and is stopped', async (t) => {
  const rig = await startRig(t, (id) => getState(id, { status: 'in_progress' }), { timeLimitMs: 200 })
  checkOutcome(
    t,
    await rig.runner.run(createAgentTask(), NEVER),
    outcome('timeout', /no result within 0.2 s/),
  )
  await rig.runner.close()
  t.strictSame(rig.front.stopped, rig.front.started)
})

t.test('a session whose start still waits at the timeout is not created', async (t) => {
  // The second start waits for a second.
  const options = { timeLimitMs: 200, tps: 1 }
  const rig = await startRig(t, (id) => getState(id, { status: 'in_progress' }), options)
  const runs = [1, 2].map(() => rig.runner.run(createAgentTask(), NEVER))
  checkOutcome(t, (await Promise.all(runs))[1]!, outcome('timeout', /its session was not started/))
  await rig.runner.close()
  t.ok(rig.front.started.length < 2)
  t.strictSame(rig.front.stopped, rig.front.started)
})

t.test('a result that is available at the timeout counts', async (t) => {
  // The first poll would come after a second.
  const rig = await startRig(t, createContainer({ result: { reward: 1 } }), { timeLimitMs: 900 })
  t.match(await rig.runner.run(createAgentTask(), NEVER), { status: 'completed', rewards: { reward: 1 } })
})

t.test('a cancelled run throws the reason, and its session is stopped', async (t) => {
  const rig = await startRig(t, (id) => getState(id, { status: 'in_progress' }))
  const controller = new AbortController()
  const running = rig.runner.run(createAgentTask(), controller.signal)
  await until(() => rig.front.started.length === 1)
  controller.abort(new Error('cancelled'))
  await t.rejects(running, { message: 'cancelled' })
  await rig.runner.close()
  t.strictSame(rig.front.stopped, rig.front.started)
})

t.test('a session that is created after its start was cancelled is stopped nevertheless', async (t) => {
  const started = Promise.withResolvers<void>()
  const rig = await startRig(t, createContainer({ result: {} }), {}, { start: () => started.promise })
  const controller = new AbortController()
  const running = rig.runner.run(createAgentTask(), controller.signal)
  await until(() => rig.front.started.length === 1)
  controller.abort(new Error('cancelled'))
  await t.rejects(running, { message: 'cancelled' })
  await until(() => rig.front.stopped.length === 1)
  t.equal(
    listLedger(rig).length,
    1,
    'the stop found no session, which proves nothing while its start is in flight',
  )
  started.resolve()
  await rig.runner.close()
  t.strictSame([[...rig.front.running], listLedger(rig)], [[], []])
})

t.test('a stop is repeated until it is confirmed', async (t) => {
  const rig = await startRig(t, createContainer({ result: {} }))
  rig.front.stopFaults.push('cut', THROTTLED, { name: 'InternalServerException', status: 500 }, CONFLICT)
  await rig.runner.run(createAgentTask(), NEVER)
  await rig.runner.close()
  t.strictSame([rig.front.stopped, listLedger(rig)], [rig.front.started, []])
})

t.test('a rejected stop is reported once, and stays in the ledger for a run that may', async (t) => {
  const rig = await startRig(t, createContainer({ result: {} }), { maxSessions: 1 })
  const denied = { name: 'AccessDeniedException', status: 403 }
  rig.front.stopFaults.push(denied, denied)
  await rig.runner.run(createAgentTask(), NEVER)
  await rig.runner.run(createAgentTask(), NEVER)
  await rig.runner.close()
  t.match(rig.messages.filter((text) => /could not be stopped/.test(text)).length, 1)
  t.equal(listLedger(rig).length, 1)
})

t.test('sessions of a crashed run are stopped by the next one', async (t) => {
  const arn = createArn()
  const ledger = join(t.testdir({}), 'ledger')
  const head = { version: 1, arn, qualifier: 'DEFAULT', host: hostname(), pid: 2 ** 30 }
  const left = `llm-proxy-left-${'0'.repeat(36)}`
  mkdirSync(ledger)
  const lines = [head, { opened: left }].map((line) => `${JSON.stringify(line)}\n`).join('')
  writeFileSync(join(ledger, 'old.sessions.jsonl'), lines)
  const rig = await startRig(t, createContainer({ result: {} }), { arn, ledger })
  rig.front.running.add(left)
  await rig.runner.prepare(NEVER)
  await rig.runner.close()
  t.strictSame([rig.front.stopped, listLedger(rig)], [[left], []])
})

t.test('sessions that another run leaves meanwhile are stopped by a running one', async (t) => {
  const arn = createArn()
  const rig = await startRig(t, createContainer({ result: {} }), { arn, lookAgainMs: 10 })
  await rig.runner.prepare(NEVER)
  const left = `llm-proxy-left-${'0'.repeat(36)}`
  rig.front.running.add(left)
  const head = { version: 1, arn, qualifier: 'DEFAULT', host: hostname(), pid: 2 ** 30 }
  const lines = [head, { opened: left }].map((line) => `${JSON.stringify(line)}\n`).join('')
  writeFileSync(join(rig.ledger, 'old.sessions.jsonl'), lines)
  await until(() => rig.front.stopped.includes(left))
  await rig.runner.close()
  t.strictSame(listLedger(rig), [])
})

t.test(
  'no more sessions than the limit run at a time, and no more requests than the rate are sent',
  async (t) => {
    const limits = { tps: 200, sessions: 8 }
    const rig = await startRig(
      t,
      createContainer({ result: { reward: 1 } }),
      { tps: 150, maxSessions: 8 },
      limits,
    )
    const runs = Array.from({ length: 24 }, () => rig.runner.run(createAgentTask(), NEVER))
    const results = await Promise.all(runs)
    await rig.runner.close()
    t.ok(results.every(({ status }) => status === 'completed'))
    t.ok(rig.front.maxRunning <= 8, `${rig.front.maxRunning} at a time`)
    t.equal(rig.front.throttled, 0)
    t.strictSame(rig.front.stopped.toSorted(), rig.front.started.toSorted())
  },
)

t.test('a missing setting is reported before anything is started', async (t) => {
  const arn = createArn()
  for (const [options, message] of [
    [{ arn: 'agent-1' }, /"agent-1" is not the ARN of an AgentCore runtime/],
    [{ arn, results: 's3' }, /results by s3 need --agentcore-bucket/],
    [{ arn, results: 'sqs', bucket: 'b' }, /results by sqs need --agentcore-queue/],
    [{ arn, queueUrl: 'http://127.0.0.1:1/q' }, /results by sqs need --agentcore-bucket/],
  ] as const) {
    t.throws(() => new AgentCoreRunner(options), { code: 'config_invalid', message })
  }
})
