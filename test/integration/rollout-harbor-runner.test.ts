import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import {
  chmodSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { HarborClient, type HarborMetadata } from '../../src/rollout/runners/harbor-client.ts'
import { HarborRunner, type HarborRunnerOptions } from '../../src/rollout/runners/harbor-runner.ts'
import type { AgentTask } from '../../src/rollout/runners/runner.ts'
import { packTask } from '../../src/rollout/runners/task-archive.ts'
import { createAgentTask } from '../helpers/agent-task.ts'
import { startHarborServer } from '../helpers/harbor-server.ts'

const NEVER = new AbortController().signal
const COMPLETED = {
  run_id: 'run-1',
  status: 'completed',
  rewards: { reward: 1 },
  rollout_details: null,
  error: null,
}

/** Creates a task directory with everything that an archive could damage. */
function createTaskDirectory(t: Test): string {
  const task = join(t.testdir(), '@fix the bug-ü')
  mkdirSync(join(task, 'tests', 'empty'), { recursive: true })
  mkdirSync(join(task, 'a'.repeat(90), 'b'.repeat(90)), { recursive: true })
  writeFileSync(join(task, 'task.toml'), 'version = "1.0"\n')
  writeFileSync(join(task, 'instruction.md'), 'Fix it. Ünïcode.\r\n')
  writeFileSync(join(task, 'a'.repeat(90), 'b'.repeat(90), 'deep'), 'deep')
  writeFileSync(join(task, '@odd'), '')
  writeFileSync(
    join(task, 'tests', 'bytes'),
    Buffer.from(Array.from({ length: 70_000 }, (_, i) => (i * 7919) % 256)),
  )
  writeFileSync(join(task, 'tests', 'test.sh'), '#!/bin/sh\nexit 0\n')
  chmodSync(join(task, 'tests', 'test.sh'), 0o755)
  symlinkSync('test.sh', join(task, 'tests', 'link'))
  symlinkSync('..', join(task, 'tests', 'up'))
  return task
}

/** Returns the content of a directory: bytes, links, and executable flags. */
function getContent(root: string): Record<string, string> {
  const inside = readdirSync(root).sort()
  return Object.fromEntries(inside.flatMap((name) => describe(join(root, name), name)))
}

function describe(path: string, name: string): [string, string][] {
  const stat = lstatSync(path)
  if (stat.isSymbolicLink()) return [[name, `link to ${readlinkSync(path)}`]]
  if (stat.isDirectory()) {
    const inside = Object.entries(getContent(path)).map(
      ([below, what]) => [`${name}/${below}`, what] as [string, string],
    )
    return [[name, 'directory'], ...inside]
  }
  return [[name, `${stat.mode & 0o111 ? 'executable' : 'file'} ${readFileSync(path, 'base64')}`]]
}

/** Unpacks an archive with an external program. */
function unpack(t: Test, archive: Buffer, into: string): string {
  mkdirSync(into)
  execFileSync('tar', ['-xzf', '-', '-C', into], { input: archive })
  t.equal(readdirSync(into).length, 1, 'the archive contains one directory')
  return join(into, readdirSync(into)[0]!)
}

t.test('an archive contains the task directory under its own name, byte for byte', async (t) => {
  const task = createTaskDirectory(t)
  const unpacked = unpack(t, await packTask(`${task}/`), `${task}-unpacked`)
  t.match(unpacked, /\/@fix the bug-ü$/)
  t.strictSame(getContent(unpacked), getContent(task))
  t.match(Object.keys(getContent(task)), { length: 12 })
})

t.test('equal directories give equal archives, independent of time and user', async (t) => {
  const task = createTaskDirectory(t)
  const first = await packTask(task)
  utimesSync(join(task, 'task.toml'), 1, 1)
  t.ok(first.equals(await packTask(task)))
  writeFileSync(join(task, 'task.toml'), 'version = "1.1"\n')
  t.notOk(first.equals(await packTask(task)))
})

function createRunner(harborUrl: string, more: Partial<HarborRunnerOptions> = {}): HarborRunner {
  return new HarborRunner({ harborUrl, harborTimeoutMs: 10_000, ...more })
}

async function runOnce(t: Test, harborRunner: HarborRunner, task: Partial<AgentTask> = {}, signal = NEVER) {
  t.teardown(() => harborRunner.close())
  return harborRunner.run(createAgentTask(task), signal)
}

t.test('a run is a form of metadata and archive', async (t) => {
  const taskPath = createTaskDirectory(t)
  const harbor = await startHarborServer(t, async () => ({ body: COMPLETED }))
  const options = {
    agentName: 'swe-agent',
    agentImportPath: 'my_agents.swe:SweAgent',
    agentKwargs: { max_turns: 30, nested: { a: [1] } },
    environmentOverrides: { HTTP_PROXY: 'http://p', OPENAI_BASE_URL: 'http://elsewhere' },
    environmentKwargs: { namespace: 'rl' },
    timeoutMultiplier: 2,
    harborVerifier: { disable: false },
  }
  const result = await runOnce(t, createRunner(`${harbor.url}/`, options), {
    taskPath,
    modelName: 'openai/m',
    apiKey: 'key-1',
  })
  t.strictSame(result, {
    status: 'completed',
    rewards: { reward: 1 },
    details: { run_id: 'run-1', rollout_details: null },
  })
  const [run] = harbor.runs
  t.equal(run!.path, 'POST /api/v1/runs')
  t.match(run!.headers['content-type'], /^multipart\/form-data; boundary=/)
  t.strictSame(run!.fields, ['metadata', 'task_archive'])
  t.strictSame(run!.metadata, {
    task_path: taskPath,
    agent: {
      name: 'swe-agent',
      import_path: 'my_agents.swe:SweAgent',
      model_name: 'openai/m',
      llm_proxy_url: 'http://127.0.0.1:1/trial-1/v1',
      kwargs: { max_turns: 30, nested: { a: [1] } },
    },
    timeout_multiplier: 2,
    verifier: { disable: false },
    environment_overrides: {
      HTTP_PROXY: 'http://p',
      OPENAI_BASE_URL: 'http://127.0.0.1:1/trial-1/v1',
      OPENAI_API_BASE: 'http://127.0.0.1:1/trial-1/v1',
      OPENAI_API_KEY: 'key-1',
      OPENAI_MODEL: 'openai/m',
      ANTHROPIC_BASE_URL: 'http://127.0.0.1:1/trial-1',
      ANTHROPIC_AUTH_TOKEN: 'key-1',
      ANTHROPIC_MODEL: 'openai/m',
    },
    environment_kwargs: { namespace: 'rl' },
  })
  t.ok(run!.archive.equals(await packTask(taskPath)), 'the archive arrives byte for byte')
  t.equal(run!.archiveType, 'task.tar.gz application/gzip')
})

t.test('settings that are not configured are null or empty', async (t) => {
  const taskPath = t.testdir({ 'task.toml': '' })
  const harbor = await startHarborServer(t, async () => ({ body: COMPLETED }))
  await runOnce(t, createRunner(harbor.url), { taskPath })
  const { metadata } = harbor.runs[0]!
  t.match(metadata, {
    agent: { name: null, import_path: null, model_name: null },
    timeout_multiplier: 1,
  })
  t.strictSame([metadata.agent.kwargs, metadata.verifier, metadata.environment_kwargs], [{}, {}, {}])
})

t.test('each status of a response is the status of the attempt, with rewards and error', async (t) => {
  const taskPath = t.testdir({})
  for (const status of ['failed', 'timeout', 'error']) {
    const body = { run_id: 'r', status, rewards: null, rollout_details: { steps: 3 }, error: 'why' }
    const harbor = await startHarborServer(t, async () => ({ body }))
    t.strictSame(await runOnce(t, createRunner(harbor.url), { taskPath }), {
      status,
      rewards: {},
      details: { run_id: 'r', rollout_details: { steps: 3 } },
      error: 'why',
    })
  }
})

t.test('an invalid response is an error that quotes it', async (t) => {
  const taskPath = t.testdir({})
  for (const [status, body] of [
    [500, { detail: 'no cluster' }],
    [200, { status: 'completed' }],
    [200, { ...COMPLETED, status: 'fine' }],
    [200, { ...COMPLETED, rewards: { reward: 'high' } }],
  ] as const) {
    const harbor = await startHarborServer(t, async () => ({ status, body }))
    const message = new RegExp(`^the Harbor server responded with ${status}: \\{"`)
    await t.rejects(runOnce(t, createRunner(harbor.url), { taskPath }), { message })
  }
  await t.rejects(runOnce(t, createRunner('http://127.0.0.1:1'), { taskPath }), { code: 'ECONNREFUSED' })
})

t.test('a run that takes too long has timed out, and its connection is closed', async (t) => {
  const harbor = await startHarborServer(t, () => new Promise(() => {}))
  const taskPath = t.testdir({})
  const result = await runOnce(t, createRunner(harbor.url, { harborTimeoutMs: 100 }), { taskPath })
  t.match(result, { status: 'timeout', error: 'no response within 100 ms' })
  t.strictSame(result.rewards, {})
  await harbor.clientDisconnected
})

t.test('a cancelled run throws the reason', async (t) => {
  const controller = new AbortController()
  const harbor = await startHarborServer(t, async () => {
    controller.abort(new Error('cancelled'))
    return new Promise(() => {})
  })
  await t.rejects(runOnce(t, createRunner(harbor.url), { taskPath: t.testdir({}) }, controller.signal), {
    message: 'cancelled',
  })
})

t.test('a row with a missing task directory is an error', async (t) => {
  const harbor = await startHarborServer(t, async () => ({ body: COMPLETED }))
  await t.rejects(runOnce(t, createRunner(harbor.url)), { message: /^the row names no task directory/ })
  const taskPath = join(t.testdir({}), 'gone')
  await t.rejects(runOnce(t, createRunner(harbor.url), { taskPath }), { code: 'ENOENT', path: taskPath })
  t.equal(harbor.runs.length, 0)
})

t.test('without a server the runner cannot be created', async (t) => {
  t.throws(() => new HarborRunner({ harborUrl: undefined, harborTimeoutMs: 1 }), { code: 'config_invalid' })
})

t.test('a batch is run with a limit; each run has its own result, in order', async (t) => {
  const root = t.testdir({ one: { 'task.toml': '1' }, two: { 'task.toml': '2' } })
  const harbor = await startHarborServer(t, async ({ metadata }) => {
    await once(AbortSignal.timeout(20), 'abort')
    const { number } = metadata.agent.kwargs
    return number === 3 ? { status: 503, body: 'full' } : { body: { ...COMPLETED, run_id: `run-${number}` } }
  })
  const client = new HarborClient({ serverUrl: harbor.url, timeoutMs: 10_000 })
  t.teardown(() => client.close())
  const metadata = (number: number): HarborMetadata => ({
    task_path: join(root, ['one', 'two', 'gone'][number % 3]!),
    agent: {
      name: null,
      import_path: null,
      model_name: null,
      llm_proxy_url: 'http://p/s/v1',
      kwargs: { number },
    },
    timeout_multiplier: 1,
    verifier: {},
    environment_overrides: {},
    environment_kwargs: {},
  })
  const runs = await client.submitBatch(
    Array.from({ length: 8 }, (_, i) => metadata(i)),
    { concurrency: 3 },
    NEVER,
  )
  t.match(runs, [
    { run_id: 'run-0' },
    { run_id: 'run-1' },
    { status: 'error', error: /ENOENT/ },
    { status: 'error', error: 'the Harbor server responded with 503: "full"' },
    { run_id: 'run-4' },
    { status: 'error', error: /ENOENT/ },
    { run_id: 'run-6' },
    { run_id: 'run-7' },
  ])
  t.equal(harbor.maxRunning, 3)
  const archives = new Set(harbor.runs.map(({ archive }) => archive.toString('base64')))
  t.equal(archives.size, 2)
})
