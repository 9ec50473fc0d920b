/** Rollouts on AgentCore with the toolkit's own apps and client, S3 and SQS. */
import { execFile } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { PutObjectCommand, S3Client } from '@aws-sdk/client-s3'
import { GetQueueAttributesCommand, SendMessageCommand, SQSClient } from '@aws-sdk/client-sqs'
import t, { type Test } from 'tap'
import type { AgentLoopOutput } from '../../src/protocol/schema/agent-loop-output.ts'
import { RemoteAgentLoop } from '../../src/rollout/remote-agent-loop.ts'
import {
  AgentCoreRunner,
  type AgentCoreRunnerOptions,
} from '../../src/rollout/runners/agentcore/agentcore-runner.ts'
import { hasPython } from '../agents/parts/install.ts'
import { agentTask } from '../helpers/agent-task.ts'
import { type ContainerResponse, newArn, startFront } from '../helpers/agentcore-front.ts'
import { ended } from '../helpers/children.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'
import { type Machine, startMachine } from './parts/machine.ts'

const NEVER = new AbortController().signal

type Way = 's3' | 'sqs' | 'envelope'

function createWays({ storage }: Machine): Record<Way, Partial<AgentCoreRunnerOptions>> {
  return {
    s3: { results: 's3', bucket: storage.bucket },
    sqs: { results: 'sqs', bucket: storage.notifyingBucket, queueUrl: storage.queueUrl },
    envelope: { results: 'envelope' },
  }
}

function runnerFor(t: Test, options: Partial<AgentCoreRunnerOptions>): AgentCoreRunner {
  // Each further testdir() empties the folder.
  const folder = existsSync(t.testdirName) ? t.testdirName : t.testdir({})
  const ledger = join(folder, 'ledger')
  const runner = new AgentCoreRunner({ arn: newArn(), tps: 100, ledger, retryBaseMs: 10, ...options })
  t.teardown(() => runner.close())
  return runner
}

interface Expected {
  reward: number
  turns: number
}

/** Checks that a rollout's only row equals the proxy's row for its session, and trains each sampled token once. */
async function checkRow(
  t: Test,
  proxy: TestProxy,
  rows: readonly AgentLoopOutput[],
  { reward, turns }: Expected,
): Promise<void> {
  const [row] = rows
  t.equal(rows.length, 1)
  const id = row!.extra_fields.session_id
  const { trajectories } = await proxy.get(`/sessions/${id}/trajectories`)
  const { prompt_ids, response_ids, response_mask, response_logprobs } = trajectories[0]
  t.match(trajectories, [{ exact: true }])
  t.match(row, { prompt_ids, response_ids, response_mask, response_logprobs })
  t.match(row, { num_turns: turns, reward_score: reward, extra_fields: { agent_status: 'completed' } })
  const session = await proxy.get(`/sessions/${id}`)
  const sampled = session.turns.flatMap(
    (turn: { completion_token_ids: number[] }) => turn.completion_token_ids,
  )
  t.strictSame(
    response_ids.filter((_: number, index: number) => response_mask[index] === 1),
    sampled,
  )
}

async function main(): Promise<void> {
  const machine = await startMachine(t)
  const ways = createWays(machine)

  // This test is first: a long poll that an earlier run abandoned hides messages in this stand-in until it ends; SQS
  // itself releases them at once.
  t.test(
    'duplicate, late and unclaimed messages are taken off the queue, and those of others are not',
    async (t) => {
      await machine.front(t, 's3')
      const { queueUrl: QueueUrl, url } = machine.storage
      const sqs = new SQSClient({ region: 'us-west-2', endpoint: url })
      const reported = (key: string) => ({
        Records: [{ eventName: 'ObjectCreated:Put', s3: { bucket: { name: 'b' }, object: { key } } }],
      })
      const send = (message: unknown) =>
        sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: JSON.stringify(message) }))
      const runner = runnerFor(t, { ...ways.sqs, experiment: 'mine' })
      await send(reported('mine%2Fgone%2Fllm-proxy-gone.json'))
      await send(reported('mine%2Fgone%2Fllm-proxy-gone.json'))
      await send({ Service: 'Amazon S3', Event: 's3:TestEvent' })
      await send({ job: 'of somebody else' })
      await send(reported('yours%2Fx%2Fllm-proxy-yours.json'))
      const result = await runner.run(agentTask({ sample: { does: 'raise', prompt: 'x' } }), NEVER)
      t.match(result, { status: 'failed', error: 'boom' })
      const names = ['ApproximateNumberOfMessages', 'ApproximateNumberOfMessagesNotVisible'] as const
      await until(async () => {
        const command = new GetQueueAttributesCommand({ QueueUrl, AttributeNames: [...names] })
        const { Attributes = {} } = await sqs.send(command)
        return names.reduce((sum, name) => sum + Number(Attributes[name]), 0) === 2
      })
      t.pass("two are left: another experiment's, and another program's")
      sqs.destroy()
    },
  )

  for (const way of ['s3', 'sqs', 'envelope'] as const) {
    t.test(`the toolkit's app runs, and its rows are exact: results by ${way}`, async (t) => {
      const front = await machine.front(t, way === 'envelope' ? 'envelope' : 's3')
      const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
      const runner = runnerFor(t, ways[way])
      const loop = new RemoteAgentLoop({ proxyUrl: proxy.url, runner, maxRetries: 0 }, {})
      const samples = [1, 2, 3].map((number) => ({
        instance_id: `sum-${number}`,
        prompt: `What is ${number}?`,
      }))
      // With these seeds no completion begins with reasoning, which the agent would leave out of its echo.
      const run = (sample: Record<string, unknown>, index: number) =>
        loop.run({ temperature: 1, seed: index + 1 }, sample)
      const rollouts = await Promise.all(samples.map(run))
      for (const rows of rollouts) await checkRow(t, proxy, rows, { reward: 0.5, turns: 2 })
      await loop.close()
      t.strictSame(front.stopped.toSorted(), front.started.toSorted())
      t.strictSame(readdirSync(`${t.testdirName}/ledger`), [])
    })
  }

  for (const way of ['s3', 'envelope'] as const) {
    t.test(`a Strands agent that calculates step by step has exact rows: results by ${way}`, async (t) => {
      await machine.front(t, way)
      const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
      const loop = new RemoteAgentLoop(
        { proxyUrl: proxy.url, runner: runnerFor(t, ways[way]), maxRetries: 0 },
        {},
      )
      const tasks = [
        { prompt: 'What is 2 + 3 * 4?', answer: '14', reward: 1, turns: 3 },
        { prompt: 'What is 7 - 5?', answer: '2', reward: 1, turns: 2 },
        { prompt: 'What is 2 + 2?', answer: '5', reward: 0, turns: 2 },
      ]
      const run = (task: object) => loop.run({ temperature: 1 }, { does: 'calculate', ...task })
      const rollouts = await Promise.all(tasks.map(run))
      for (const [index, rows] of rollouts.entries()) await checkRow(t, proxy, rows, tasks[index]!)
      await loop.close()
    })
  }

  t.test('each failure in the container is one clear outcome', async (t) => {
    const front = await machine.front(t, 's3')
    const runner = runnerFor(t, ways.s3)
    const run = (does: string) => runner.run(agentTask({ sample: { does, prompt: 'x' } }), NEVER)
    t.match(await run('raise'), { status: 'failed', rewards: {}, error: 'boom' })
    t.match(await run('html'), { status: 'error', rewards: {}, error: 'its result is not JSON: <html>' })
    t.match(
      await run('early'),
      { status: 'completed', rewards: { reward: 0.75 } },
      'the agent is still working',
    )
    await runner.close()
    t.strictSame(front.stopped, front.started)
  })

  t.test('a result that arrives before the request that started its agent returns counts', async (t) => {
    const { url: endpoint, bucket } = machine.storage
    const s3 = new S3Client({ region: 'us-west-2', endpoint, forcePathStyle: true })
    const returns = Promise.withResolvers<ContainerResponse>()
    const front = await startFront(t, async (id, { _rollout: { exp_id, input_id } }) => {
      const Key = `${exp_id}/${input_id}/${id}.json`
      await s3.send(new PutObjectCommand({ Bucket: bucket, Key, Body: '{"reward": 0.75}' }))
      return returns.promise
    })
    const runner = runnerFor(t, ways.s3)
    const result = await runner.run(agentTask({ sample: { prompt: 'x' } }), NEVER)
    t.match(result, { status: 'completed', rewards: { reward: 0.75 } })
    returns.resolve({ body: '{"status": "processing"}' })
    await runner.close()
    t.strictSame(front.stopped, front.started)
    s3.destroy()
  })

  t.test('a missing result times out, and one without a message is found', async (t) => {
    await machine.front(t, 's3')
    const silent = { ...ways.sqs, bucket: machine.storage.bucket, timeLimitMs: 1_500 }
    const run = (does: string) =>
      runnerFor(t, silent).run(agentTask({ sample: { does, prompt: 'x' } }), NEVER)
    t.match(await run('sleep'), { status: 'timeout', error: /no result within 1.5 s/ })
    t.match(await run('raise'), { status: 'failed', error: 'boom' })
  })

  t.test('a missing bucket or queue is reported before anything is started', async (t) => {
    const front = await machine.front(t, 's3')
    const noBucket = runnerFor(t, { ...ways.s3, bucket: 'nobody-made-this' })
    await t.rejects(noBucket.prepare(NEVER), {
      code: 'config_invalid',
      message: /nobody-made-this cannot be read/,
    })
    const queueUrl = `${machine.storage.url}/123456789012/none`
    const noQueue = runnerFor(t, { ...ways.sqs, queueUrl })
    await t.rejects(noQueue.prepare(NEVER), { code: 'config_invalid', message: /none cannot be read/ })
    t.strictSame(front.started, [])
  })

  t.test("the toolkit's own client and app work through the proxy", async (t) => {
    const front = await machine.front(t, 's3')
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    // With this seed no completion has reasoning either.
    await proxy.post('/sessions', { session_id: 'theirs-1', sampling_params: { seed: 1 } })
    const env = {
      ...process.env,
      ARN: newArn(),
      BUCKET: machine.storage.bucket,
      BASE_URL: proxy.baseUrl('theirs-1'),
      API_KEY: 'EMPTY',
      PROMPT: 'What is 1?',
    }
    const script = join(import.meta.dirname, 'parts/toolkit_client.py')
    const { stdout } = await promisify(execFile)(machine.python, [script], { env })
    t.match(JSON.parse(stdout.trim().split('\n').at(-1)!), { status_code: 200, reward: 0.5 })
    t.strictSame(front.stopped, front.started)
    const { trajectories } = await proxy.get('/sessions/theirs-1/trajectories')
    t.match(trajectories, [{ exact: true, num_turns: 2 }])
  })

  t.test("the proxy replaces the toolkit's own gateway, and makes the same records", async (t) => {
    const front = await machine.front(t, 'envelope')
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const page = readFileSync(join(import.meta.dirname, '../../docs/gateway.md'), 'utf8')
    const example = /```python\n(from agentcore_rl_toolkit\.rollout_gateway .*?)```/s.exec(page)?.[1]
    t.ok(example, 'the document has an example')
    const env = {
      ...process.env,
      ...awsEnv(front.url),
      ARN: newArn(),
      PROXY_URL: proxy.url,
      EXAMPLE: example,
    }
    const script = join(import.meta.dirname, 'parts/rollout_gateway.py')
    const { stdout } = await promisify(execFile)(machine.python, [script], { env, timeout: 120_000 })
    t.match(stdout, /\ndone\n$/)
    t.strictSame(front.stopped, front.started)
  })

  t.test('200 rollouts keep to the rate and to the session limit, and each has its own result', async (t) => {
    const front = await machine.front(t, 'envelope', { tps: 120, sessions: 40 })
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const folder = t.testdirName
    const tasks = Array.from({ length: 200 }, (_, number) => ({
      instance_id: `t-${number}`,
      prompt: `${number}?`,
    }))
    writeFileSync(join(folder, 'tasks.jsonl'), tasks.map((task) => JSON.stringify(task)).join('\n'))
    const args = ['rollout', '--proxy-url', proxy.url, '--agentcore-arn', newArn(), '--tasks', 'tasks.jsonl']
    // Half of what the front accepts: a busy machine delays requests, which then arrive together.
    const limits = ['--agentcore-tps', '50', '--agentcore-sessions', '40', '--concurrency', '60']
    const result = await runLlmProxy([...args, ...limits], { cwd: folder, env: awsEnv(front.url) })
    t.match(result, { code: 0, stderr: '' })
    t.match(
      result.stdout,
      /^200\/200 0 failed, .* AgentCore: 200 started, .* 200 done, 0 failed, 0 calls throttled/m,
    )
    const rows = readFileSync(join(folder, 'rollouts.jsonl'), 'utf8').trim().split('\n')
    t.equal(new Set(rows.map((row) => JSON.parse(row).instance_id)).size, 200)
    t.equal(front.throttled, 0)
    t.ok(front.most <= 40, `${front.most} at a time`)
    t.strictSame(front.stopped.toSorted(), front.started.toSorted())
    t.notOk(
      existsSync(join(folder, 'agentcore-sessions')) &&
        readdirSync(join(folder, 'agentcore-sessions')).length,
    )
  })

  t.test('the agent and the command of the documentation suffice', async (t) => {
    const front = await machine.front(t, 'documented')
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const folder = t.testdirName
    const rows = [
      { prompt: 'What is 19 + 23?', answer: '42' },
      { prompt: 'What is 2 + 2?', answer: '5' },
    ]
    writeFileSync(join(folder, 'tasks.jsonl'), rows.map((row) => JSON.stringify(row)).join('\n'))
    const page = readFileSync(join(import.meta.dirname, '../../docs/agentcore.md'), 'utf8')
    const [, command] = /^ {4}llm-proxy (rollout(?:.*\\\n)*.*)$/m.exec(page)!
    const args = command!
      .split(/[\s\\]+/)
      .map((arg) => (arg.startsWith('https:') ? proxy.url : arg.startsWith('arn:') ? newArn() : arg))
    t.match(await runLlmProxy(args, { cwd: folder, env: awsEnv(front.url) }), { code: 0, stderr: '' })
    const lines = readFileSync(join(folder, 'rollouts.jsonl'), 'utf8').trim().split('\n')
    const rewards = lines.map((line) => JSON.parse(line)).map((row) => [row.num_turns, row.reward_score])
    t.strictSame(rewards.toSorted(), [
      [2, 0],
      [2, 1],
    ])
    t.strictSame(front.stopped.toSorted(), front.started.toSorted())
  })

  t.test('sessions that a killed run leaves are stopped by the same command', async (t) => {
    const front = await machine.front(t, 'envelope')
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const folder = t.testdirName
    writeFileSync(join(folder, 'tasks.jsonl'), '{"prompt": "x", "does": "sleep"}')
    const args = ['rollout', '--proxy-url', proxy.url, '--agentcore-arn', newArn(), '--tasks', 'tasks.jsonl']
    const launch = { cwd: folder, env: awsEnv(front.url) }
    const first = startLlmProxy(args, launch)
    await until(() => front.started.length === 1)
    first.kill('SIGKILL')
    await ended(first)
    t.strictSame(front.stopped, [])
    t.match(await runLlmProxy(args, launch), { code: 0, stderr: '' })
    t.equal(front.started.length, 2)
    t.strictSame(front.stopped.toSorted(), front.started.toSorted())
  })
}

function awsEnv(endpoint: string): Record<string, string> {
  return {
    AWS_ENDPOINT_URL_BEDROCK_AGENTCORE: endpoint,
    AWS_ACCESS_KEY_ID: 'test',
    AWS_SECRET_ACCESS_KEY: 'test',
  }
}

if (await hasPython()) await main()
else t.pass('AgentCore is used', { skip: 'there is no python3 with venv' })
