/** The released Harbor runs trials through the proxy: with its own agents, and with a user's agent. */
import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { RemoteAgentLoop } from '../../src/rollout/remote-agent-loop.ts'
import {
  HarborTrialRunner,
  type HarborTrialRunnerOptions,
} from '../../src/rollout/runners/harbor-trial-runner.ts'
import { createAgentTask } from '../helpers/agent-task.ts'
import { ONLY_FULL } from '../helpers/tier.ts'
import { findPython312, installFromNpm, installFromPyPI } from './parts/install.ts'
import { type Rig, startRig } from './parts/rig.ts'

const NEVER = new AbortController().signal
const python = await findPython312()

const hasSandbox = spawnSync('bwrap', ['--ro-bind', '/', '/', 'true']).status === 0

if (python === undefined) {
  t.pass('left out: there is no Python 3.12, which Harbor needs')
} else if (!hasSandbox) {
  t.pass('left out: there is no bubblewrap, in which the trials run')
} else {
  const { folder } = await installFromPyPI('harbor', [], { python })
  process.env.PYTHONPATH = join(import.meta.dirname, 'harbor')
  // The scripts of an installation contain the path of the folder in which it was created.
  const harborCommand = `"${join(folder, 'bin/python')}" -c "from harbor.cli.main import app; app()"`

  const createRunner = (options: Partial<HarborTrialRunnerOptions> = {}) =>
    new HarborTrialRunner({
      harborCommand,
      harborEnvironment: 'bwrap_environment:BwrapEnvironment',
      harborTimeoutMs: 180_000,
      ...options,
    })

  t.test(
    "a rollout with a user's agent: its session is one row, with the reward of the verifier",
    async (t) => {
      const rig = await startRigWith(t, { content: 'I say 42' })
      const { workDir } = rig
      const runner = createRunner({ agentImportPath: 'sdk_agent:SdkAgent', workDir })
      await runner.prepare(NEVER)
      const loop = new RemoteAgentLoop({ proxyUrl: rig.url, runner })
      t.teardown(() => loop.close())
      const task = createTaskFolder(workDir, 'What is six times seven?')
      const [row] = await loop.run({}, { instance_id: 'six', local_task_path: task })
      t.match(row, { reward_score: 0.75, extra_fields: { agent_status: 'completed' } })
      t.equal(row?.num_turns, 1)
      t.ok(row!.response_mask.includes(1))
      const [session] = (await rig.get('/sessions')).sessions
      const trialFolder = join(workDir, session.session_id, 'trial')
      t.ok(existsSync(join(trialFolder, 'result.json')), 'logs and artefacts remain in the work directory')
      t.notOk(existsSync(getEnvironmentFolder()), 'the environment is removed')
    },
  )

  t.test(
    "Harbor's own Terminus 2 works on a task, and each request is recorded",
    { skip: ONLY_FULL },
    async (t) => {
      const commands = [{ keystrokes: 'printf 42 > /app/answer.txt\n', duration: 1 }]
      // Terminus asks the model whether the task is done, and receives the same response again.
      const content = JSON.stringify({ analysis: 'a', plan: 'p', commands, task_complete: true })
      const rig = await startRigWith(t, { content })
      const { workDir } = rig
      const task = createAgentTask({
        ...getSession(rig, 'terminus'),
        taskPath: createTaskFolder(workDir, 'Write 42 into /app/answer.txt.'),
        modelName: 'openai/embedded',
      })
      const result = await createRunner({ agentName: 'terminus-2', workDir }).run(task, NEVER)
      t.match(result, { status: 'completed', rewards: { reward: 0.75 } })
      const { turns } = await rig.get('/sessions/terminus')
      t.equal(turns.length, 2)
      t.ok(turns.every((turn: { exact: boolean }) => turn.exact))
    },
  )

  t.test(
    "Claude Code in Harbor's sandbox uses its session, and its task is one row",
    { skip: ONLY_FULL },
    async (t) => {
      const claude = await installFromNpm('@anthropic-ai/claude-code', 'install.cjs')
      const write = { name: 'Write', arguments: { file_path: '/app/answer.txt', content: '42' } }
      const rules = [
        { name: 'write', when: { role: 'user', tool: 'Write' }, answer: { tool_calls: [write] } },
        { name: 'done', when: { role: 'tool' }, answer: { content: 'Done.' } },
      ]
      const rig = await startRigWith(t, rules)
      const { workDir } = rig
      // Harbor installs an agent in its sandbox unless the agent is installed there.
      process.env.ENVIRONMENT_TOOLS = claude.folder
      t.teardown(() => {
        delete process.env.ENVIRONMENT_TOOLS
      })
      const task = createAgentTask({
        ...getSession(rig, 'claude'),
        taskPath: createTaskFolder(workDir, 'Write 42 into /app/answer.txt.'),
        modelName: 'embedded',
      })
      const result = await createRunner({ agentName: 'claude-code', workDir }).run(task, NEVER)
      t.match(result, { status: 'completed', rewards: { reward: 0.75 } })
      const { trajectories } = await rig.get('/sessions/claude/trajectories')
      t.match(trajectories, [{ exact: true, finish_reason: 'stop' }])
    },
  )

  t.test('a cancelled rollout removes its environment', async (t) => {
    const rig = await startRigWith(t, { content: 'sleep 42' })
    const { workDir } = rig
    const cancel = new AbortController()
    const task = createAgentTask({
      ...getSession(rig, 'sleeper'),
      taskPath: createTaskFolder(workDir, 'Sleep.'),
    })
    const run = createRunner({ agentImportPath: 'sdk_agent:SdkAgent', workDir }).run(task, cancel.signal)
    const waitForTurn = async () => {
      while (((await rig.get('/sessions/sleeper')).turns?.length ?? 0) === 0) await delay(50)
    }
    t.equal(await Promise.race([run, waitForTurn()]), undefined, 'the agent has sent a request')
    t.ok(existsSync(getEnvironmentFolder()))
    cancel.abort(new Error('enough'))
    await t.rejects(run, { message: 'enough' })
    t.notOk(existsSync(getEnvironmentFolder()), 'the environment is removed')
  })

  t.test('failures are reported: agent timeout, unknown agent, missing Harbor', async (t) => {
    const rig = await startRigWith(t, { content: 'sleep 42' })
    const { workDir } = rig
    const slow = createAgentTask({
      ...getSession(rig, 'slow'),
      taskPath: createTaskFolder(workDir, 'Sleep.', 2),
    })
    const late = await createRunner({ agentImportPath: 'sdk_agent:SdkAgent' }).run(slow, NEVER)
    t.match(late, { status: 'timeout', error: /^AgentTimeoutError: / })
    const unknown = await createRunner({ agentImportPath: 'nowhere:Nobody' }).run(slow, NEVER)
    t.match(unknown, { status: 'error', error: /nowhere/ })
    t.strictSame(unknown.rewards, {})
    await t.rejects(createRunner({ harborCommand: 'no-such-harbor' }).prepare(NEVER), {
      code: 'config_invalid',
      message: /Harbor cannot be run .*not found.*pip install harbor/,
    })
    await t.rejects(createRunner().run(createAgentTask(), NEVER), { message: /names no task/ })
  })
}

/** Starts a rig. @param playbook the model's completion for every user message, or rules */
async function startRigWith(
  t: Test,
  playbook: object | readonly object[],
): Promise<Rig & { workDir: string }> {
  const rules = Array.isArray(playbook)
    ? playbook
    : [{ name: 'answer', when: { role: 'user' }, answer: playbook }]
  const folder = t.testdir({ rig: {}, work: {} })
  process.env.ENVIRONMENT_LOG = join(folder, 'environment')
  const options = {
    mode: 'local',
    prompts: 'token',
    playbook: { rules },
    folder: join(folder, 'rig'),
  } as const
  return { ...(await startRig(t, options)), workDir: join(folder, 'work') }
}

function getSession({ url }: Rig, sessionId: string) {
  const anthropicBaseUrl = `${url}/${sessionId}`
  return { sessionId, anthropicBaseUrl, openaiBaseUrl: `${anthropicBaseUrl}/v1`, apiKey: 'none' }
}

/** Returns the directory of the last trial's environment. */
function getEnvironmentFolder(): string {
  return readFileSync(process.env.ENVIRONMENT_LOG!, 'utf8')
}

/** Creates a task in Harbor's format: 42 in `/app/answer.txt` earns the reward 0.75. */
function createTaskFolder(parent: string, instruction: string, agentSeconds = 120): string {
  const folder = join(parent, 'task')
  for (const each of ['tests', 'environment']) mkdirSync(join(folder, each), { recursive: true })
  writeFileSync(join(folder, 'instruction.md'), instruction)
  writeFileSync(
    join(folder, 'task.toml'),
    `version = "1.0"\n[agent]\ntimeout_sec = ${agentSeconds}.0\n[verifier]\ntimeout_sec = 60.0\n`,
  )
  writeFileSync(
    join(folder, 'tests/test.sh'),
    '#!/bin/bash\n[ "$(cat /app/answer.txt)" = 42 ] && r=0.75 || r=0\necho $r > /logs/verifier/reward.txt\n',
  )
  return folder
}
