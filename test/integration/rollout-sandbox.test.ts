/** An agent in the sandbox cannot give itself a reward, see its verifier, or reach another attempt. */
import { existsSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs'
import { delimiter, join } from 'node:path'
import t, { type Test } from 'tap'
import { loadConfig } from '../../src/proxy/config/load.ts'
import { createRunner } from '../../src/rollout/create-runner.ts'
import { ROLLOUT } from '../../src/rollout/options.ts'
import { CommandRunner, type CommandRunnerOptions } from '../../src/rollout/runners/command-runner.ts'
import type { AgentTask } from '../../src/rollout/runners/runner.ts'
import { openSandbox } from '../../src/rollout/runners/sandbox.ts'
import { createAgentTask } from '../helpers/agent-task.ts'
import { until } from '../helpers/until.ts'

const NEVER = new AbortController().signal
const { missing } = openSandbox({ mode: 'auto' })
/** Machines may forbid the namespaces that the sandbox needs; the resulting message is tested everywhere. */
const needsSandbox = missing === undefined ? {} : { skip: `no sandbox here: ${missing}` }

function run(options: CommandRunnerOptions, task: Partial<AgentTask> = {}) {
  const runner = new CommandRunner({ sandbox: { mode: 'bwrap' }, ...options })
  return runner.run(createAgentTask(task), NEVER)
}

function createTaskDirectory(t: Test): string {
  const root = t.testdir({
    task: { 'instruction.md': 'Count.', tests: { expected: '42' }, solution: { 'solve.sh': 'echo 42' } },
  })
  return join(root, 'task')
}

t.test('an agent reads its task without the ground truth, and cannot change it', needsSandbox, async (t) => {
  const taskPath = createTaskDirectory(t)
  const command =
    'cat "$TASK_DIR/instruction.md"; cat "$TASK_DIR/tests/expected" "$TASK_DIR/solution/solve.sh" 2>/dev/null; ' +
    '(echo 1 > "$TASK_DIR/tests/expected"; echo 1 > "$TASK_DIR/new"; rm -rf "$TASK_DIR") 2>/dev/null; exit 0'
  const verifier = 'grep -qx 42 "$TASK_DIR/tests/expected"'
  const result = await run({ command, verifier }, { taskPath })
  t.match(result, { status: 'completed', output: 'Count.', rewards: { reward: 1 } })
  t.equal(readFileSync(join(taskPath, 'tests', 'expected'), 'utf8'), '42')
  t.notOk(existsSync(join(taskPath, 'new')))
})

t.test("an agent's remaining processes end before the verifier begins", needsSandbox, async (t) => {
  const workDir = t.testdir()
  const command =
    'setsid sh -c "while :; do date +%N > beat; sleep 0.02; done" & while [ ! -s beat ]; do sleep 0.02; done'
  const verifier = 'rm -f beat; sleep 0.2; test ! -e beat'
  t.strictSame((await run({ command, verifier, workDir })).rewards, { reward: 1 })
})

t.test(
  "an agent sees only its own processes, and none of the trainer's variables",
  needsSandbox,
  async (t) => {
    const secrets = {
      HF_TOKEN: 'secret',
      AWS_SECRET_ACCESS_KEY: 'secret',
      LLM_PROXY_ADMIN_KEY: 'secret',
      JUDGE: 'secret',
    }
    Object.assign(process.env, secrets)
    t.teardown(() => Object.keys(secrets).forEach((name) => void delete process.env[name]))
    const command = 'env; cat /proc/*/environ | tr "\\0" "\\n"; ls -d /proc/[0-9]* | wc -l'
    const { output = '' } = await run({ command })
    t.notMatch(output, 'secret')
    t.ok(Number(output.trim().split('\n').at(-1)) < 10)
    const verifier = '[ "$JUDGE" = secret ] && [ -z "$HF_TOKEN" ]'
    t.strictSame((await run({ command: 'true', verifier, verifierEnvironment: ['JUDGE'] })).rewards, {
      reward: 1,
    })
  },
)

t.test(
  'an agent sees neither other attempts, nor tasks with their ground truth, nor the home',
  needsSandbox,
  async (t) => {
    const root = t.testdir({
      runs: { other: { note: 'of another try' } },
      'tasks.jsonl': 'ground truth',
      data: { a: 'set' },
    })
    const workDir = join(root, 'runs')
    const hidden = [join(root, 'tasks.jsonl'), join(root, 'data'), join(root, 'not-there')]
    const command = `cat ${root}/tasks.jsonl ${root}/data/a ${workDir}/other/note 2>/dev/null; ls -A ${root}/data ~ /tmp; true`
    const { output = '' } = await run({ command, workDir, sandbox: { mode: 'bwrap', hidden } })
    t.notMatch(output, /ground truth|set|of another try/)
    t.notMatch(output, /\.ssh|llm-proxy-verifier/)
  },
)

t.test('an agent sees no key of its trainer, wherever that is, and no database', needsSandbox, async (t) => {
  const key = `the-key-${'x'.repeat(16)}`
  const secrets = { 'admin.key': key, 'worker.key': key, '.env': key, 'llm-proxy.db': key }
  const cwd = t.testdir({ ...secrets, 'llm-proxy.db-wal': key, code: 'mine' })
  const before = process.cwd()
  process.chdir(cwd)
  t.teardown(() => process.chdir(before))
  const command = `cd ${cwd}; cat *.key .env llm-proxy.db* code; ls -A /opt /var /srv; true`
  const flags = { command, tasks: 'none', sandbox: 'bwrap', adminKeys: '@admin.key' }
  const config = loadConfig(ROLLOUT, flags, { LLM_PROXY_WORKER_KEY: '@worker.key' })
  const runner = createRunner(config, () => {})
  const { output = '' } = await runner.run(createAgentTask(), NEVER)
  t.notMatch(output, 'the-key')
  t.match(output, 'mine', 'it reads other files in their directory')
  t.notMatch(output, /^(lib|cache|log)$/m, 'directories outside of the system are visible only if named')
})

t.test('an agent writes only in its own directory', needsSandbox, async (t) => {
  const root = t.testdir({ mine: 'as it was' })
  const command = `echo x > here; echo x > ${root}/mine; echo x > ${root}/new; echo x > "$TASK_FILE"; cat here; true`
  // The errors arrive over another pipe, before or after it.
  t.match(await run({ command }), { status: 'completed', output: /^x$/m })
  t.equal(readFileSync(join(root, 'mine'), 'utf8'), 'as it was')
  t.notOk(existsSync(join(root, 'new')))
})

t.test('a verifier that was killed in the sandbox gave no verdict', needsSandbox, async (t) => {
  const killed = { message: /^the verifier was killed: SIGKILL/ }
  await t.rejects(run({ command: 'true', verifier: ['/bin/sh', '-c', 'kill -9 $$'] }), killed)
  await t.rejects(run({ command: 'true', verifier: 'sh -c "kill -9 \\$\\$" && true' }), killed)
  t.strictSame((await run({ command: 'true', verifier: 'exit 3' })).rewards, { reward: 0 })
})

t.test('a verifier that bubblewrap could not start gave no verdict', needsSandbox, async (t) => {
  const directory = t.testdir()
  const bwrap = (process.env.PATH ?? '').split(delimiter).find((path) => existsSync(join(path, 'bwrap')))
  const failure = 'echo "bwrap: Creating new namespace failed" >&2; exit 1'
  // The machine runs out of namespaces when the verifier starts.
  const script = `#!/bin/sh\n[ -z "$AGENT_OUTPUT_FILE" ] || { ${failure}; }\nexec ${bwrap}/bwrap "$@"\n`
  writeFileSync(join(directory, 'bwrap'), script, { mode: 0o755 })
  const path = process.env.PATH
  process.env.PATH = `${directory}${delimiter}${path}`
  t.teardown(() => {
    process.env.PATH = path
  })
  await t.rejects(run({ command: 'true', verifier: 'true' }), {
    message: 'the verifier could not be run: bwrap: Creating new namespace failed',
  })
})

t.test('an agent may finish its work after SIGTERM', needsSandbox, async (t) => {
  const workDir = t.testdir()
  const work = join(workDir, 'trial-1', 'work')
  const command = 'trap "echo saved > saved; exit 0" TERM; echo > begun; while :; do sleep 0.05; done'
  const runner = new CommandRunner({ sandbox: { mode: 'bwrap' }, command, workDir, graceMs: 60_000 })
  const stop = new AbortController()
  const ended = runner.run(createAgentTask({}), stop.signal)
  await until(() => existsSync(join(work, 'begun')))
  stop.abort(new Error('stopped'))
  await t.rejects(ended, { message: 'stopped' })
  t.equal(readFileSync(join(work, 'saved'), 'utf8'), 'saved\n')
})

t.test(
  'an agent that ignores SIGTERM is killed with all processes that it started',
  needsSandbox,
  async (t) => {
    const workDir = t.testdir()
    const command =
      'trap "" TERM; setsid sh -c "trap \\"\\" TERM; while :; do date +%N > beat; sleep 0.02; done" & wait; wait'
    const result = await run({ command, workDir, timeLimitMs: 300, graceMs: 100 })
    t.match(result, { status: 'timeout' })
    const beat = join(workDir, 'trial-1', 'work', 'beat')
    writeFileSync(beat, '')
    await new Promise((resolve) => setTimeout(resolve, 200))
    t.equal(readFileSync(beat, 'utf8'), '')
  },
)

t.test('private directories of programs can be made visible', needsSandbox, async (t) => {
  const tools = `/tmp/llm-proxy-test-tools-${process.pid}`
  mkdirSync(tools)
  t.teardown(() => import('node:fs').then(({ rmSync }) => rmSync(tools, { recursive: true })))
  writeFileSync(join(tools, 'agent.sh'), 'echo at work')
  const command = `sh ${tools}/agent.sh`
  t.match(await run({ command }), { status: 'failed' })
  const visible = [tools]
  t.match(await run({ command, sandbox: { mode: 'bwrap', visible } }), { output: 'at work\n' })
})

t.test('without a sandbox a warning states that agents must be trusted', async (t) => {
  const output: string[] = []
  const warn = (text: string) => void output.push(text)
  const runner = new CommandRunner({ command: 'true', sandbox: { mode: 'none' }, warn })
  t.match(output, [/^trusted agents only: .*switched off/])
  t.match(await runner.run(createAgentTask({}), NEVER), { status: 'completed' })
  const { PATH } = process.env
  t.teardown(() => {
    process.env.PATH = PATH
  })
  process.env.PATH = t.testdir({ env: t.fixture('symlink', '/usr/bin/env') })
  new CommandRunner({ command: 'true', warn })
  t.match(output, [/./, /^trusted agents only: .*bwrap is not installed/])
  t.throws(() => new CommandRunner({ command: 'true', sandbox: { mode: 'bwrap' } }), { code: 'start_failed' })
})

t.test('a reward is read only from a regular file', async (t) => {
  const root = t.testdir({ score: '1' })
  symlinkSync(join(root, 'score'), join(root, 'link'))
  const verify = (verifier: string) =>
    run({ command: 'true', verifier, sandbox: { mode: 'none' }, warn() {} })
  await t.rejects(verify(`ln -s ${root}/score "$REWARD_FILE"`), { message: /cannot be read: ELOOP/ })
  await t.rejects(verify('mkfifo "$REWARD_FILE"'), { message: /is not a regular file/ })
  await t.rejects(verify('mkdir "$REWARD_FILE"'), { message: /is not a regular file/ })
  await t.rejects(verify('head -c 100000 /dev/zero > "$REWARD_FILE"'), { message: /has 100000 bytes/ })
})

t.test('a link that an agent put in place of a file is not followed', async (t) => {
  const workDir = t.testdir()
  const victim = join(t.testdirName, 'victim')
  writeFileSync(victim, 'as it was')
  const command = `rm -f "$TASK_FILE"; ln -s ${victim} "$TASK_FILE"; ln -s ${victim} ../output.txt; echo said`
  const { rewards } = await run({
    command,
    verifier: 'grep -q said "$AGENT_OUTPUT_FILE"',
    workDir,
    sandbox: { mode: 'none' },
    warn() {},
  })
  t.strictSame(rewards, { reward: 1 })
  t.equal(readFileSync(victim, 'utf8'), 'as it was')
})
