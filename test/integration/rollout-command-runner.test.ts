import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { CommandRunner, type CommandRunnerOptions } from '../../src/rollout/runners/command-runner.ts'
import type { AgentTask } from '../../src/rollout/runners/runner.ts'
import { createAgentTask } from '../helpers/agent-task.ts'
import { until } from '../helpers/until.ts'

const NEVER = new AbortController().signal

function run(options: CommandRunnerOptions, task: Partial<AgentTask> = {}, signal = NEVER) {
  return new CommandRunner({ sandbox: { mode: 'none' }, warn() {}, ...options }).run(
    createAgentTask(task),
    signal,
  )
}

/** Returns whether a process exists and is not a zombie. */
function isAlive(pid: number): boolean {
  try {
    return !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
  } catch {
    return false
  }
}

function waitUntilDead(pid: number): Promise<unknown> {
  return until(() => !isAlive(pid))
}

function readPid(path: string): number {
  return Number(readFileSync(path, 'utf8'))
}

t.test('an agent finds its session, its task and its model in its environment', async (t) => {
  const names =
    'OPENAI_BASE_URL OPENAI_API_BASE OPENAI_API_KEY OPENAI_MODEL ANTHROPIC_BASE_URL ANTHROPIC_AUTH_TOKEN'
  const more = 'ANTHROPIC_MODEL TRIAL_ID TASK_DIR TASK_PROMPT EXTRA'
  const command = `for name in ${names} ${more}; do eval "echo $name=\\$$name"; done; cat "$TASK_FILE"`
  const sample = { instance_id: 'trial', prompt: [{ role: 'user', content: 'What is the sea?' }] }
  const environment = { EXTRA: 3, OPENAI_BASE_URL: 'http://elsewhere' }
  const { status, output = '' } = await run(
    { command, environment },
    { sample, apiKey: 'key-1', modelName: 'm-1', taskPath: '/tasks/trial' },
  )
  t.equal(status, 'completed')
  t.strictSame(output.trim().split('\n'), [
    'OPENAI_BASE_URL=http://127.0.0.1:1/trial-1/v1',
    'OPENAI_API_BASE=http://127.0.0.1:1/trial-1/v1',
    'OPENAI_API_KEY=key-1',
    'OPENAI_MODEL=m-1',
    'ANTHROPIC_BASE_URL=http://127.0.0.1:1/trial-1',
    'ANTHROPIC_AUTH_TOKEN=key-1',
    'ANTHROPIC_MODEL=m-1',
    'TRIAL_ID=trial-1',
    'TASK_DIR=/tasks/trial',
    'TASK_PROMPT=What is the sea?',
    'EXTRA=3',
    JSON.stringify(sample),
  ])
})

t.test("the agent cannot see the trainer's own keys", async (t) => {
  process.env.LLM_PROXY_ADMIN_KEY = 'admin-secret'
  process.env.ANTHROPIC_API_KEY = 'anthropic-secret'
  t.teardown(() => {
    delete process.env.LLM_PROXY_ADMIN_KEY
    delete process.env.ANTHROPIC_API_KEY
  })
  const { output } = await run({ command: 'env' })
  t.notMatch(output, 'secret')
})

t.test('each agent works in an empty directory, which is removed afterwards', async (t) => {
  const { output: first = '' } = await run({ command: 'pwd; ls -A; touch here' })
  const { output: second = '' } = await run({ command: 'pwd; ls -A' })
  t.match(first.trim().split('\n'), [/\/work$/])
  t.not(first, second)
  t.notOk(existsSync(first.trim()))
})

t.test('with a working directory given, the files of each attempt stay there', async (t) => {
  const workDir = t.testdir()
  await run({ command: 'echo said; echo made > file', workDir }, { sessionId: 'trial-1~2' })
  const files = join(workDir, 'trial-1~2')
  t.strictSame(readdirSync(files).sort(), ['output.txt', 'task.json', 'work'])
  t.equal(readFileSync(join(files, 'work', 'file'), 'utf8'), 'made\n')
  t.equal(readFileSync(join(files, 'output.txt'), 'utf8'), 'said\n')
})

t.test('a program and its arguments may be given as a list, which no shell reads', async (t) => {
  t.match(await run({ command: ['echo', '$HOME', 'a  b'] }), { status: 'completed', output: '$HOME a  b\n' })
})

t.test('an agent with a non-zero exit code has failed; one that cannot be started is an error', async (t) => {
  t.strictSame(await run({ command: 'echo first; echo "no model" >&2; exit 3' }), {
    status: 'failed',
    rewards: {},
    error: 'exit code 3: no model',
    output: 'first\nno model\n',
  })
  t.match(await run({ command: 'kill -9 $$' }), { status: 'failed', error: 'ended by SIGKILL' })
  await t.rejects(run({ command: ['./no-such-agent'] }), { code: 'ENOENT' })
})

t.test("a verifier's exit code is the reward", async (t) => {
  const command = 'echo 42 > answer'
  t.match((await run({ command, verifier: 'grep -q 42 answer' })).rewards, { reward: 1 })
  t.match((await run({ command, verifier: 'grep -q 43 answer' })).rewards, { reward: 0 })
  await t.rejects(run({ command, verifier: 'no-such-verifier' }), {
    message: /could not be run: exit code 127/,
  })
  t.match((await run({ command, verifier: 'exit 255' })).rewards, { reward: 0 }, 'exit(-1) is a verdict')
})

t.test('a reward file overrides the exit code', async (t) => {
  const verifier = (content: string) => `echo '${content}' > "$REWARD_FILE"; exit 1`
  t.strictSame((await run({ command: 'true', verifier: verifier('0.5') })).rewards, { reward: 0.5 })
  t.strictSame((await run({ command: 'true', verifier: verifier('{"tests": 1, "style": 0.25}') })).rewards, {
    tests: 1,
    style: 0.25,
  })
  for (const content of ['', 'good', '{"tests": "1"}', '[1]']) {
    await t.rejects(run({ command: 'true', verifier: verifier(content) }), {
      message: /^the reward file contains/,
    })
  }
})

t.test('a killed verifier gave no verdict, whatever it had written', async (t) => {
  const killed = { message: /^the verifier was killed: SIG(KILL|SEGV)/ }
  await t.rejects(run({ command: 'true', verifier: 'kill -9 $$' }), killed)
  await t.rejects(run({ command: 'true', verifier: ['/bin/sh', '-c', 'kill -SEGV $$'] }), killed)
  await t.rejects(
    run({ command: 'true', verifier: 'sh -c "kill -9 \\$\\$" && true' }),
    killed,
    'under a shell',
  )
  await t.rejects(run({ command: 'true', verifier: 'echo 0 > "$REWARD_FILE"; kill -9 $$' }), killed)
})

t.test('the verifier sees the ground truth, the agent does not', async (t) => {
  // verl's own script creates such rows of GSM8K: the worked solution is beside the ground truth.
  const solution = 'It is 6 * 7. #### 42'
  const tools_kwargs = { calc_gsm8k_reward: { create_kwargs: { ground_truth: '42' } } }
  const sample = {
    instance_id: 'sea',
    reward_model: { style: 'rule', ground_truth: '42' },
    extra_info: { split: 'train', answer: solution, tools_kwargs },
  }
  const responses = { answer: solution, solution, ground_truth: '42', patch: '+42', test_patch: '+== 42' }
  const { output, rewards } = await run(
    { command: 'cat "$TASK_FILE"; echo "{}" > "$TASK_FILE"', verifier: 'grep -q ground_truth "$TASK_FILE"' },
    { sample: { ...sample, ...responses } },
  )
  t.strictSame({ output, rewards }, { output: '{"instance_id":"sea"}', rewards: { reward: 1 } })
  const shown = await run({ command: 'cat "$TASK_FILE"', hiddenColumns: ['reward_model'] }, { sample })
  t.strictSame(JSON.parse(shown.output!), { instance_id: 'sea', extra_info: sample.extra_info })
})

t.test('an agent cannot leave a reward file for the verifier', async (t) => {
  const { rewards } = await run({
    command: 'echo 1 > ../reward; echo 1 > reward; test -z "$REWARD_FILE" && echo unset',
    verifier: 'grep -q unset "$AGENT_OUTPUT_FILE" && exit 1',
  })
  t.strictSame(rewards, { reward: 0 })
})

t.test('a verifier sees the work and the output, and nothing of the session', async (t) => {
  const { rewards } = await run({
    command: 'echo made > file; echo said',
    verifier:
      '[ "$(cat file)" = made ] && [ "$(cat "$AGENT_OUTPUT_FILE")" = said ] && [ -z "$OPENAI_BASE_URL" ]',
  })
  t.strictSame(rewards, { reward: 1 })
})

t.test('a verifier may be a function', async (t) => {
  const { rewards } = await run({
    command: 'echo made > file; echo said',
    verifier: async ({ task, workDir, output }) => ({
      said: Number(output === 'said\n'),
      made: Number(readFileSync(join(workDir, 'file'), 'utf8') === 'made\n'),
      task: Number(task.trialId === 'trial-1'),
    }),
  })
  t.strictSame(rewards, { said: 1, made: 1, task: 1 })
})

t.test('an agent without a verifier has no reward', async (t) => {
  t.strictSame((await run({ command: 'true' })).rewards, {})
})

/** Writes the process ids of a shell that ignores signals, and of its child, into the directory. */
const STUBBORN =
  'trap "" TERM; echo $$ > ../../shell; (trap "" TERM; while :; do sleep 1; done) & echo $! > ../../child; '

t.test('an agent that times out is stopped with all processes that it started', async (t) => {
  const workDir = t.testdir()
  const result = await run({
    command: `${STUBBORN} echo begun; wait`,
    workDir,
    timeLimitMs: 300,
    graceMs: 100,
  })
  t.match(result, { status: 'timeout', error: 'the agent ran out of time', output: 'begun\n' })
  t.strictSame(result.rewards, {})
  for (const name of ['shell', 'child']) await waitUntilDead(readPid(join(workDir, name)))
})

t.test('an agent that ends on SIGTERM is not waited for', async (t) => {
  const command = 'trap "echo saved; exit 0" TERM; echo begun; while :; do sleep 0.05; done'
  const result = await run({ command, timeLimitMs: 300, graceMs: 60_000 })
  t.match(result, { status: 'timeout', output: /saved\n$/ })
})

t.test("an agent's background processes end with it", async (t) => {
  const workDir = t.testdir()
  const result = await run({ command: `${STUBBORN} exit 0`, workDir })
  t.equal(result.status, 'completed')
  await waitUntilDead(readPid(join(workDir, 'child')))
})

t.test('a cancelled agent is stopped, and the reason is thrown', async (t: Test) => {
  const workDir = t.testdir()
  const controller = new AbortController()
  const running = run({ command: `${STUBBORN} wait`, workDir, graceMs: 50 }, {}, controller.signal)
  await until(() => existsSync(join(workDir, 'child')))
  controller.abort(new Error('cancelled'))
  await t.rejects(running, { message: 'cancelled' })
  for (const name of ['shell', 'child']) await waitUntilDead(readPid(join(workDir, name)))
  await t.rejects(run({ command: 'true' }, {}, controller.signal), { message: 'cancelled' })
})

t.test('the end of a long output is recorded', async (t) => {
  const { output = '' } = await run({ command: 'yes | head -c 1000000; echo last' })
  t.ok(output.length < 300_000)
  t.match(output, /^\[\d+ bytes before this are left out\]/)
  t.match(output, /last\n$/)
})
