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
import { createAgentTask } from '../helpers/agent-task.ts'
import { waitForExit } from '../helpers/children.ts'
import { type ContainerResponse, createArn, startFakeAgentCore } from '../helpers/fake-agentcore.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'
import { type Machine, startMachine } from './parts/machine.ts'

const NEVER = new AbortController().signal

type ResultTransport = 's3' | 'sqs' | 'envelope'

function createTransportOptions({
  storage,
}: Machine): Record<ResultTransport, Partial<AgentCoreRunnerOptions>> {
  return {
    s3: { results: 's3', bucket: storage.bucket },
    sqs: { results: 'sqs', bucket: storage.notifyingBucket, queueUrl: storage.queueUrl },
    envelope: { results: 'envelope' },
  }
}

function createRunner(t: Test, options: Partial<AgentCoreRunnerOptions>): AgentCoreRunner {
  // A second testdir() would empty the folder.
  const folder = existsSync(t.testdirName) ? t.testdirName : t.testdir({})
  const ledger = join(folder, 'ledger')
  const runner = new AgentCoreRunner({ arn: createArn(), tps: 100, ledger, retryBaseMs: 10, ...options })
  t.teardown(() => runner.close())
  return runner
}

interface Expected {
  reward: number
  turns: number
}

/** Checks that a rollout's only row equals the proxy's row of its session, and trains each sampled token once. */
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
  const transportOptions = createTransportOptions(machine)

  // This test is first: in moto a long poll that an earlier run abandoned hides messages until it ends; SQS itself
  // releases them at once.
  t.test(
    'duplicate, late and unclaimed messages are taken off the queue, and those of others are not',
    async (t) => {
      await machine.startAgentCore(t, 's3')
      const { queueUrl: QueueUrl, url } = machine.storage
      const sqs = new SQSClient({ region: 'us-west-2', endpoint: url })
      const createNotification = (key: string) => ({
        Records: [{ eventName: 'ObjectCreated:Put', s3: { bucket: { name: 'b' }, object: { key } } }],
      })
      const send = (message: unknown) =>
        sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: JSON.stringify(message) }))
      const runner = createRunner(t, { ...transportOptions.sqs, experiment: 'mine' })
      await send(createNotification('mine%2Fgone%2Fllm-proxy-gone.json'))
      await send(createNotification('mine%2Fgone%2Fllm-proxy-gone.json'))
      await send({ Service: 'Amazon S3', Event: 's3:TestEvent' })
      await send({ job: 'of somebody else' })
      await send(createNotification('yours%2Fx%2Fllm-proxy-yours.json'))
      const result = await runner.run(createAgentTask({ sample: { does: 'raise', prompt: 'x' } }), NEVER)
      t.match(result, { status: 'failed', error: 'boom' })
      const names = ['ApproximateNumberOfMessages', 'ApproximateNumberOfMessagesNotVisible'] as const
      await until(async () => {
        const command = new GetQueueAttributesCommand({ QueueUrl, AttributeNames: [...names] })
        const { Attributes = {} } = await sqs.send(command)
        return names.reduce((sum, name) => sum + Number(Attributes[name]), 0) === 2
      })
      t.pass("two remain: another experiment's, and another program's")
      sqs.destroy()
    },
  )

  for (const transport of ['s3', 'sqs', 'envelope'] as const) {
    t.test(`the toolkit's app runs, and its rows are exact: results by ${transport}`, async (t) => {
      const agentCore = await machine.startAgentCore(t, transport === 'envelope' ? 'envelope' : 's3')
      const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
      const runner = createRunner(t, transportOptions[transport])
      const loop = new RemoteAgentLoop({ proxyUrl: proxy.url, runner, maxRetries: 0 }, {})
      const samples = [1, 2, 3].map((number) => ({
        instance_id: `sum-${number}`,
        prompt: `What is ${number}?`,
      }))
      // With these seeds no completion begins with reasoning, which the agent would omit from its echo.
      const run = (sample: Record<string, unknown>, index: number) =>
        loop.run({ temperature: 1, seed: index + 1 }, sample)
      const rollouts = await Promise.all(samples.map(run))
      for (const rows of rollouts) await checkRow(t, proxy, rows, { reward: 0.5, turns: 2 })
      await loop.close()
      t.strictSame(agentCore.stopped.toSorted(), agentCore.started.toSorted())
      t.strictSame(readdirSync(`${t.testdirName}/ledger`), [])
    })
  }

  for (const transport of ['s3', 'envelope'] as const) {
    t.test(
      `a Strands agent that calculates step by step has exact rows: results by ${transport}`,
      async (t) => {
        await machine.startAgentCore(t, transport)
        const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
        const loop = new RemoteAgentLoop(
          { proxyUrl: proxy.url, runner: createRunner(t, transportOptions[transport]), maxRetries: 0 },
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
      },
    )
  }

  t.test('each failure in the container is one clear outcome', async (t) => {
    const agentCore = await machine.startAgentCore(t, 's3')
    const runner = createRunner(t, transportOptions.s3)
    const run = (does: string) => runner.run(createAgentTask({ sample: { does, prompt: 'x' } }), NEVER)
    const [raised, invalid] = [await run('raise'), await run('html')]
    t.match(raised, { status: 'failed', error: 'boom' })
    t.match(invalid, { status: 'error', error: 'its result is not JSON: <html>' })
    t.strictSame([raised.rewards, invalid.rewards], [{}, {}])
    t.match(
      await run('early'),
      { status: 'completed', rewards: { reward: 0.75 } },
      'the result counts while the agent is still running',
    )
    await runner.close()
    t.strictSame(agentCore.stopped, agentCore.started)
  })

  t.test('a result that arrives before the request that started its agent returns counts', async (t) => {
    const { url: endpoint, bucket } = machine.storage
    const s3 = new S3Client({ region: 'us-west-2', endpoint, forcePathStyle: true })
    const containerResponse = Promise.withResolvers<ContainerResponse>()
    const agentCore = await startFakeAgentCore(t, async (id, { _rollout: { exp_id, input_id } }) => {
      const Key = `${exp_id}/${input_id}/${id}.json`
      await s3.send(new PutObjectCommand({ Bucket: bucket, Key, Body: '{"reward": 0.75}' }))
      return containerResponse.promise
    })
    const runner = createRunner(t, transportOptions.s3)
    const result = await runner.run(createAgentTask({ sample: { prompt: 'x' } }), NEVER)
    t.match(result, { status: 'completed', rewards: { reward: 0.75 } })
    containerResponse.resolve({ body: '{"status": "processing"}' })
    await runner.close()
    t.strictSame(agentCore.stopped, agentCore.started)
    s3.destroy()
  })

  t.test('a missing result times out, and one without a message is found', async (t) => {
    await machine.startAgentCore(t, 's3')
    const withoutMessages = { ...transportOptions.sqs, bucket: machine.storage.bucket, timeLimitMs: 1_500 }
    const run = (does: string) =>
      createRunner(t, withoutMessages).run(createAgentTask({ sample: { does, prompt: 'x' } }), NEVER)
    t.match(await run('sleep'), { status: 'timeout', error: /no result within 1.5 s/ })
    t.match(await run('raise'), { status: 'failed', error: 'boom' })
  })

  t.test('a missing bucket or queue is reported before anything is started', async (t) => {
    const agentCore = await machine.startAgentCore(t, 's3')
    const noBucket = createRunner(t, { ...transportOptions.s3, bucket: 'nobody-made-this' })
    await t.rejects(noBucket.prepare(NEVER), {
      code: 'config_invalid',
      message: /nobody-made-this cannot be read/,
    })
    const queueUrl = `${machine.storage.url}/123456789012/none`
    const noQueue = createRunner(t, { ...transportOptions.sqs, queueUrl })
    await t.rejects(noQueue.prepare(NEVER), { code: 'config_invalid', message: /none cannot be read/ })
    t.strictSame(agentCore.started, [])
  })

  t.test("the toolkit's own client and app work through the proxy", async (t) => {
    const agentCore = await machine.startAgentCore(t, 's3')
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    // With this seed no completion has reasoning.
    await proxy.post('/sessions', { session_id: 'theirs-1', sampling_params: { seed: 1 } })
    const env = {
      ...process.env,
      ARN: createArn(),
      BUCKET: machine.storage.bucket,
      BASE_URL: proxy.baseUrl('theirs-1'),
      API_KEY: 'EMPTY',
      PROMPT: 'What is 1?',
    }
    const script = join(import.meta.dirname, 'parts/toolkit_client.py')
    const { stdout } = await promisify(execFile)(machine.python, [script], { env })
    t.match(JSON.parse(stdout.trim().split('\n').at(-1)!), { status_code: 200, reward: 0.5 })
    t.strictSame(agentCore.stopped, agentCore.started)
    const { trajectories } = await proxy.get('/sessions/theirs-1/trajectories')
    t.match(trajectories, [{ exact: true, num_turns: 2 }])
  })

  t.test("the proxy replaces the toolkit's own gateway, and creates the same records", async (t) => {
    const agentCore = await machine.startAgentCore(t, 'envelope')
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const page = readFileSync(join(import.meta.dirname, '../../docs/gateway.md'), 'utf8')
    const example = /```python\n(from agentcore_rl_toolkit\.rollout_gateway .*?)```/s.exec(page)?.[1]
    t.ok(example, 'the document has an example')
    const env = {
      ...process.env,
      ...awsEnv(agentCore.url),
      ARN: createArn(),
      PROXY_URL: proxy.url,
      EXAMPLE: example,
    }
    const script = join(import.meta.dirname, 'parts/rollout_gateway.py')
    const { stdout } = await promisify(execFile)(machine.python, [script], { env, timeout: 120_000 })
    t.match(stdout, /\ndone\n$/)
    t.strictSame(agentCore.stopped, agentCore.started)
  })

  t.test('200 rollouts keep to the rate and to the session limit, and each has its own result', async (t) => {
    const agentCore = await machine.startAgentCore(t, 'envelope', { tps: 120, sessions: 40 })
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const folder = t.testdirName
    const tasks = Array.from({ length: 200 }, (_, number) => ({
      instance_id: `t-${number}`,
      prompt: `${number}?`,
    }))
    writeFileSync(join(folder, 'tasks.jsonl'), tasks.map((task) => JSON.stringify(task)).join('\n'))
    const args = [
      'rollout',
      '--proxy-url',
      proxy.url,
      '--agentcore-arn',
      createArn(),
      '--tasks',
      'tasks.jsonl',
    ]
    // Half of what AgentCore accepts: a busy machine delays requests, which then arrive together.
    const limits = ['--agentcore-tps', '50', '--agentcore-sessions', '40', '--concurrency', '60']
    const result = await runLlmProxy([...args, ...limits], { cwd: folder, env: awsEnv(agentCore.url) })
    t.match(result, { code: 0, stderr: '' })
    t.match(
      result.stdout,
      /^200\/200 0 failed, .* AgentCore: 200 started, .* 200 done, 0 failed, 0 calls throttled/m,
    )
    const rows = readFileSync(join(folder, 'rollouts.jsonl'), 'utf8').trim().split('\n')
    t.equal(new Set(rows.map((row) => JSON.parse(row).instance_id)).size, 200)
    t.equal(agentCore.throttled, 0)
    t.ok(agentCore.maxRunning <= 40, `${agentCore.maxRunning} at a time`)
    t.strictSame(agentCore.stopped.toSorted(), agentCore.started.toSorted())
    t.notOk(
      existsSync(join(folder, 'agentcore-sessions')) &&
        readdirSync(join(folder, 'agentcore-sessions')).length,
    )
  })

  t.test('the agent and the command of the documentation run without changes', async (t) => {
    const agentCore = await machine.startAgentCore(t, 'documented')
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
      .map((arg) => (arg.startsWith('https:') ? proxy.url : arg.startsWith('arn:') ? createArn() : arg))
    t.match(await runLlmProxy(args, { cwd: folder, env: awsEnv(agentCore.url) }), { code: 0, stderr: '' })
    const lines = readFileSync(join(folder, 'rollouts.jsonl'), 'utf8').trim().split('\n')
    const rewards = lines.map((line) => JSON.parse(line)).map((row) => [row.num_turns, row.reward_score])
    t.strictSame(rewards.toSorted(), [
      [2, 0],
      [2, 1],
    ])
    t.strictSame(agentCore.stopped.toSorted(), agentCore.started.toSorted())
  })

  t.test('the same command stops sessions that a killed run left running', async (t) => {
    const agentCore = await machine.startAgentCore(t, 'envelope')
    const proxy = await startProxy(t, { db: `${t.testdir({})}/proxy.db` })
    const folder = t.testdirName
    writeFileSync(join(folder, 'tasks.jsonl'), '{"prompt": "x", "does": "sleep"}')
    const args = [
      'rollout',
      '--proxy-url',
      proxy.url,
      '--agentcore-arn',
      createArn(),
      '--tasks',
      'tasks.jsonl',
    ]
    const launch = { cwd: folder, env: awsEnv(agentCore.url) }
    const first = startLlmProxy(args, launch)
    await until(() => agentCore.started.length === 1)
    first.kill('SIGKILL')
    await waitForExit(first)
    t.strictSame(agentCore.stopped, [])
    t.match(await runLlmProxy(args, launch), { code: 0, stderr: '' })
    t.equal(agentCore.started.length, 2)
    t.strictSame(agentCore.stopped.toSorted(), agentCore.started.toSorted())
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
