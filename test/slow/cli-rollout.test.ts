import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { waitForExit, waitForOutput } from '../helpers/children.ts'
import { type LaunchOptions, runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { until } from '../helpers/until.ts'

/** A JavaScript agent that sends one request and prints the number of its task. */
const AGENT = `
  const { OPENAI_BASE_URL: base, OPENAI_API_KEY: key, TASK_FILE } = process.env
  const { number } = JSON.parse(require('node:fs').readFileSync(TASK_FILE, 'utf8'))
  const body = { model: 'm', messages: [{ role: 'user', content: 'What is ' + number + ' plus 1?' }], max_tokens: 9 }
  const headers = { authorization: 'Bearer ' + key }
  fetch(base + '/chat/completions', { method: 'POST', headers, body: JSON.stringify(body) })
    .then((response) => response.json()).then(() => console.log(number))
`

interface Rig {
  proxy: TestProxy
  folder: string
  output: string
  /** The command line without the agent. */
  args: string[]
  /** The command line of a rollout server, without the agent. */
  listenArgs: string[]
}

async function startRig(t: Test, tasks: number, more: string[] = []): Promise<Rig> {
  const folder = t.testdir({})
  const proxy = await startProxy(t, { db: join(folder, 'proxy.db') })
  const lines = Array.from({ length: tasks }, (_, number) =>
    JSON.stringify({ instance_id: `task-${number}`, number }),
  )
  writeFileSync(join(folder, 'tasks.jsonl'), lines.join('\n'))
  writeFileSync(join(folder, 'agent.cjs'), AGENT)
  const output = join(folder, 'rows.jsonl')
  const files = ['--tasks', join(folder, 'tasks.jsonl'), '--output', output]
  const options = [
    // Its agents write files for the test outside of their directories.
    ...['--sandbox', 'none', '--verifier-env', 'FOLDER', '--verifier-env', 'NODE'],
    ...['--environment-overrides', JSON.stringify({ FOLDER: folder, NODE: process.execPath })],
  ]
  const command = ['rollout', '--proxy-url', proxy.url]
  const args = [...command, ...files, ...options, '--retry-base-delay', '0', ...more]
  const listenArgs = [...command, ...options, '--listen', '127.0.0.1:0']
  return { proxy, folder, output, args, listenArgs }
}

const getLaunch = ({ folder }: Rig): LaunchOptions => ({
  cwd: folder,
  // The test removes the remains of a killed run.
  env: { FOLDER: folder, NODE: process.execPath, TMPDIR: folder },
})

const readRows = (path: string) =>
  readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line))

const readKeys = (path: string) =>
  readRows(path).map(({ task_index, sample_index }) => `${task_index}.${sample_index}`)

t.test('tasks become rows with rewards, and a summary is printed at the end', async (t) => {
  const rig = await startRig(t, 3, [
    '--n',
    '2',
    '--concurrency',
    '2',
    '--sampling-params',
    '{"max_tokens": 4}',
  ])
  const command = '"$NODE" "$FOLDER/agent.cjs"'
  const verifier = 'grep -q 1 "$AGENT_OUTPUT_FILE"'
  const result = await runLlmProxy(
    [...rig.args, '--command', command, '--verifier', verifier],
    getLaunch(rig),
  )
  t.match(result, { code: 0, stderr: '' })
  t.match(
    result.stdout,
    /^trusted agents only: there is no sandbox around them/,
    'the first line is the warning',
  )
  t.match(result.stdout, /^6\/6 0 failed, [\d,]+ tokens\/s, mean reward 0\.33$/m)
  t.match(result.stdout, /^samples +6 of 6$/m)
  t.strictSame(readKeys(rig.output).sort(), ['0.0', '0.1', '1.0', '1.1', '2.0', '2.1'])
  for (const row of readRows(rig.output)) {
    t.match(row, {
      instance_id: `task-${row.task_index}`,
      reward_score: row.task_index === 1 ? 1 : 0,
      num_turns: 1,
    })
    // Fewer tokens where the model ended its turn.
    t.match(row.response_mask.join(''), /^1{1,4}$/)
    t.match(await rig.proxy.get(`/sessions/${row.extra_fields.session_id}`), {
      status: 'completed',
      reward: row.reward_score,
    })
  }
  const second = await runLlmProxy([...rig.args, '--command', 'false'], getLaunch(rig))
  t.match(second, { code: 0, stderr: '' })
  t.strictSame(second.stdout.split('\n').slice(1), [`${rig.output} has 6 of 6 samples already`, ''])
})

t.test('failed agents are reported with the reason, and have masked rows', async (t) => {
  const rig = await startRig(t, 2, ['--max-retries', '1'])
  const command = 'echo "no model" >&2; exit 3'
  const result = await runLlmProxy([...rig.args, '--command', command], getLaunch(rig))
  t.match(result, { code: 1, stderr: '' })
  t.match(result.stdout, /^task-0-\S+: agent failed \(failed\): exit code 3: no model$/m)
  const second = await runLlmProxy([...rig.args, '--command', 'true'], getLaunch(rig))
  t.match(second, { code: 1, stderr: '' }, 'running it again does not make it a success')
  t.match(
    second.stdout,
    '2 of them failed and are not run again without --retry-failed: task-0 #0, task-1 #0',
  )
  t.match(result.stdout, /^failed +2$/m)
  t.match(readRows(rig.output), [
    { reward_score: null, metrics: { failed: 1, inert: 1, tries: 2 } },
    { metrics: { failed: 1 } },
  ])
})

t.test('only failed samples are run again on demand', async (t) => {
  const rig = await startRig(t, 3, ['--max-retries', '0'])
  const onlyFirst =
    'case "$(cat "$TASK_FILE")" in *\'"number":0}\') exec "$NODE" "$FOLDER/agent.cjs";; *) exit 3;; esac'
  t.match(await runLlmProxy([...rig.args, '--command', onlyFirst], getLaunch(rig)), { code: 0 })
  const [completed] = readRows(rig.output).filter(({ metrics }) => metrics.failed === 0)
  const second = [...rig.args, '--retry-failed', '--command']
  const retried = await runLlmProxy([...second, '"$NODE" "$FOLDER/agent.cjs"'], getLaunch(rig))
  t.match(retried, { code: 0, stderr: '' })
  t.match(retried.stdout, '2 of them failed and are run again: task-1 #0, task-2 #0')
  t.match(retried.stdout, /^samples +2 of 2$/m)
  const rows = readRows(rig.output)
  t.strictSame(
    rows.map(({ task_index, metrics }) => [task_index, metrics.failed]).sort(),
    [0, 1, 2].map((task) => [task, 0]),
  )
  t.strictSame(rows[0], completed, 'completed samples are unchanged')
  t.match(await runLlmProxy([...second, 'false'], getLaunch(rig)), { code: 0 }, 'nothing is left to run')
  t.same(readRows(rig.output), rows)
})

/** The agents of tasks 0 and 1 end at once; each of the others reports its start, and stays. */
const STAYING =
  'case "$TASK_PROMPT$(cat "$TASK_FILE")" in *\'"number":\'[01]}) ;; *) echo $$ > "$FOLDER/$TRIAL_ID.pid"; sleep 100;; esac'

function pids({ folder }: Rig): number[] {
  const files = readdirSync(folder).filter((name) => name.endsWith('.pid'))
  return files.map((name) => Number(readFileSync(join(folder, name), 'utf8')))
}

function isAlive(pid: number): boolean {
  return existsSync(`/proc/${pid}`) && !/^State:\s+[ZX]/m.test(readFileSync(`/proc/${pid}/status`, 'utf8'))
}

t.test('Ctrl-C ends the agents and their sessions; the same command resumes', async (t) => {
  const rig = await startRig(t, 6, ['--concurrency', '4'])
  const child = startLlmProxy([...rig.args, '--command', STAYING], getLaunch(rig))
  const summary = waitForOutput(child.stdout, /^interrupted; run the same command to resume$/m)
  await until(() => pids(rig).length === 4 && existsSync(rig.output) && readRows(rig.output).length === 2)
  const second = await runLlmProxy([...rig.args, '--command', 'true'], getLaunch(rig))
  t.match(second, { code: 1, stderr: `is in use by another llm-proxy (process ${child.pid})` })
  t.equal(readRows(rig.output).length, 2, 'a second run on the same output touches nothing')
  child.kill('SIGINT')
  t.strictSame(await waitForExit(child), [130, null])
  await summary
  t.strictSame(pids(rig).filter(isAlive), [], 'no agent remains')
  const { sessions } = await rig.proxy.get('/sessions')
  t.strictSame(sessions.map(({ status }: { status: string }) => status).sort(), [
    ...Array(4).fill('aborted'),
    ...Array(2).fill('completed'),
  ])
  const result = await runLlmProxy([...rig.args, '--command', 'true'], getLaunch(rig))
  t.match(result.stdout, 'has 2 of 6 samples already')
  t.strictSame(readKeys(rig.output).sort(), ['0.0', '1.0', '2.0', '3.0', '4.0', '5.0'])
})

t.test('a killed run resumes from its output', async (t) => {
  const rig = await startRig(t, 6, ['--concurrency', '4'])
  const child = startLlmProxy([...rig.args, '--command', STAYING], getLaunch(rig))
  await until(() => pids(rig).length === 4 && existsSync(rig.output) && readRows(rig.output).length === 2)
  child.kill('SIGKILL')
  await waitForExit(child)
  for (const pid of pids(rig)) process.kill(-pid, 'SIGKILL')
  t.match(await runLlmProxy([...rig.args, '--command', 'true'], getLaunch(rig)), { code: 0 })
  t.strictSame(readKeys(rig.output).sort(), ['0.0', '1.0', '2.0', '3.0', '4.0', '5.0'])
})

t.test('a run without a reader of its output ends with its agents', async (t) => {
  const rig = await startRig(t, 6, ['--concurrency', '4'])
  const child = startLlmProxy([...rig.args, '--command', STAYING], getLaunch(rig))
  child.stdout.destroy()
  await waitForExit(child)
  await until(() => pids(rig).every((pid) => !isAlive(pid)))
})

t.test("a rejection by the proxy ends the run with the proxy's message", async (t) => {
  const rig = await startRig(t, 3, ['--sampling-params', '{"n": 2}'])
  const result = await runLlmProxy([...rig.args, '--command', 'true'], getLaunch(rig))
  t.match(result, { code: 1, stderr: /^llm-proxy: 'sampling_params\.n' must be 1/ })
  t.match(result.stdout, /^samples +0 of 3$/m)
})

t.test('an unreachable proxy ends a run at once, with its URL in one line', async (t) => {
  const rig = await startRig(t, 3)
  await rig.proxy.server.stop(1_000)
  const command = 'touch "$FOLDER/agent-ran"'
  const result = await runLlmProxy([...rig.args, '--command', command], getLaunch(rig))
  const { host } = new URL(rig.proxy.url)
  t.same(result, {
    code: 1,
    stdout: 'trusted agents only: there is no sandbox around them (it is switched off)\n',
    stderr: `llm-proxy: no proxy answers at ${rig.proxy.url} (connect ECONNREFUSED ${host}): is llm-proxy serve running there?\n`,
  })
  t.notOk(existsSync(join(rig.folder, 'agent-ran')))
})

t.test('a rollout server runs the requested tasks, and ends with its agents', async (t) => {
  const rig = await startRig(t, 1)
  const command = '"$NODE" "$FOLDER/agent.cjs"; while [ -e "$FOLDER/hold" ]; do sleep 0.05; done'
  const verifier = 'grep -q 7 "$AGENT_OUTPUT_FILE"'
  const args = [...rig.listenArgs, '--command', command, '--verifier', verifier]
  const child = startLlmProxy(args, getLaunch(rig))
  const [, url] = await waitForOutput(child.stdout, /rollout listening on (\S+)/)
  const sendRequest = async (rollout_id: string) => {
    const body = JSON.stringify({ rollout_id, sample: { number: 7 }, sampling_params: { max_tokens: 4 } })
    const headers = { 'content-type': 'application/json' }
    return (await fetch(`${url}/rollouts`, { method: 'POST', headers, body })).json()
  }
  t.match(await sendRequest('a'), { status: 'done', rows: [{ reward_score: 1, num_turns: 1 }] })
  writeFileSync(join(rig.folder, 'hold'), '')
  const pending = sendRequest('b')
  await until(async () => (await rig.proxy.get('/sessions')).sessions.length === 2)
  child.kill('SIGTERM')
  t.match(await pending, { status: 'cancelled', error: { code: 'shutting_down' } })
  t.strictSame(await waitForExit(child), [1, null], 'an agent was aborted')
  const { sessions } = await rig.proxy.get('/sessions')
  t.match(sessions, [{ status: 'aborted' }, { status: 'completed' }])
})

/** Returns whether a process of the machine has this text in its command line. Linux only. */
function hasProcess(text: string): boolean {
  const ids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return ids.some((id) => {
    try {
      return readFileSync(`/proc/${id}/cmdline`, 'utf8').includes(text)
    } catch {
      return false
    }
  })
}

const hasSandbox = process.platform === 'linux' && spawnSync('bwrap', ['--version']).status === 0

t.test(
  'a killed rollout server takes its sandboxed agents with it, and runs requested tasks again',
  { skip: hasSandbox ? false : 'there is no bubblewrap' },
  async (t) => {
    const rig = await startRig(t, 1)
    const nap = `360${process.pid}.25`
    const command = `curl -s "$OPENAI_BASE_URL/models"; case $(cat "$TASK_FILE") in *7*) exec sleep ${nap};; esac`
    const args = [...rig.listenArgs, '--sandbox', 'bwrap', '--command', command]
    const start = async () => {
      const child = startLlmProxy(args, getLaunch(rig))
      const [, url] = await waitForOutput(child.stdout, /rollout listening on (\S+)/)
      const sendRequest = async (sample: object) => {
        const body = JSON.stringify({ rollout_id: 'a', sample })
        const headers = { 'content-type': 'application/json' }
        return (await fetch(`${url}/rollouts`, { method: 'POST', headers, body })).json()
      }
      return { child, sendRequest }
    }
    const first = await start()
    const pending = first.sendRequest({ number: 7 }).catch((error: Error) => error)
    await until(() => hasProcess(nap))
    first.child.kill('SIGKILL')
    await waitForExit(first.child)
    t.type(await pending, Error, 'the trainer learns that no result will come')
    await until(() => !hasProcess(nap))

    const second = await start()
    t.match(await second.sendRequest({ number: 1 }), { status: 'done' })
    second.child.kill('SIGTERM')
    t.strictSame(await waitForExit(second.child), [0, null])
  },
)

t.test('an incomplete command line is rejected before anything runs', async (t) => {
  const folder = t.testdir({ 'tasks.jsonl': '{}' })
  const tasks = ['--tasks', join(folder, 'tasks.jsonl')]
  const proxy = ['--proxy-url', 'http://127.0.0.1:1']
  for (const [args, line] of [
    [[], 'there is nothing to run: give --tasks, or --listen'],
    [tasks, 'the command runner needs --command, or choose another --runner'],
    [[...tasks, '--runner', 'http'], 'the http runner needs --webhook-url, or choose another --runner'],
    [
      [...tasks, '--runner', 'harbor-server', ...proxy],
      'the Harbor runner needs a server: give harborUrl or HARBOR_SERVER_URL',
    ],
    [
      [...tasks, '--command', 'true'],
      'a rollout needs a proxy: give --proxy-url, proxyUrl or PROXY_SERVER_URL',
    ],
    [
      ['--listen', '8090', '--command', 'true', ...proxy],
      '--listen: invalid value "8090": expected an address such as 127.0.0.1:8090',
    ],
    [
      ['--listen', '0.0.0.0:0', '--command', 'true', ...proxy],
      '--listen 0.0.0.0:0: any client that can connect can run agents on this machine; give --admin-key, or listen on 127.0.0.1',
    ],
    [['--tasks', join(folder, 'gone')], /^--tasks: cannot read \S+gone: ENOENT/],
  ] as const) {
    const { code, stdout, stderr } = await runLlmProxy(['rollout', ...args], { cwd: folder })
    t.match({ code, stdout }, { code: 2, stdout: '' }, stderr)
    t.match(stderr.trim().replace('llm-proxy: ', ''), line)
  }
  t.strictSame(readdirSync(folder), ['tasks.jsonl'], 'nothing was written')
})
