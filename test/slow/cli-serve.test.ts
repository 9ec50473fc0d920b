import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { killChild, type PipedProcess, startChild, waitForExit, waitForOutput } from '../helpers/children.ts'
import { startEngine } from '../helpers/engine.ts'
import { LAUNCHER, type LaunchOptions, OLD_NODE, runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

interface ServeProcess {
  child: PipedProcess
  url: string
  readyLine: string
}

/** Starts a server command on a free port and waits for its first line. */
async function serve(t: Test, args: string[], launch: LaunchOptions = {}): Promise<ServeProcess> {
  const env = { LOG_LEVEL: 'error', ...launch.env }
  const child = startLlmProxy([...args, '--port', '0'], { ...launch, cwd: launch.cwd ?? t.testdir(), env })
  t.teardown(() => killChild(child))
  const [, readyLine] = await waitForOutput(child.stdout, /^(.*)\n/)
  return { child, readyLine: readyLine!, url: /http:\/\/\S+/.exec(readyLine!)![0] }
}

async function waitForExitResult(
  child: ChildProcess,
): Promise<{ code: number | null; signal: string | null }> {
  const [code, signal] = await waitForExit(child)
  return { code, signal }
}

function sendRequest(
  url: string,
  sessionId: string,
  body: object = {},
  headers: object = {},
): Promise<Response> {
  const messages = [{ role: 'user', content: 'Hello' }]
  return fetch(`${url}/${sessionId}/v1/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'embedded', messages, max_tokens: 8, ...body }),
  })
}

t.test(
  'serve prints its address and settings on its first line, and responds there, also without a reader',
  async (t) => {
    const { child, url, readyLine } = await serve(t, [])
    t.match(
      readyLine,
      /^llm-proxy listening on http:\/\/127\.0\.0\.1:\d+ \(local, embedded engine, db \.\/llm-proxy\.db\)$/,
    )
    t.equal((await sendRequest(url, 'first')).status, 200)
    t.match(await runLlmProxy(['health', '--url', url]), { code: 0 })
    child.stdout.destroy()
    t.equal((await sendRequest(url, 'unwatched')).status, 200)
    t.equal((await fetch(`${url}/health`)).status, 200)
  },
)

t.test(
  'serve whose log cannot be written responds, and ends at a signal',
  { skip: !existsSync('/dev/full') },
  async (t) => {
    // `sh` redirects stderr and becomes the launcher.
    const command = 'exec "$0" "$@" 2>/dev/full'
    const args = ['-c', command, process.execPath, LAUNCHER, 'serve', '--port', '0', '--db', 'memory']
    const child = startChild('sh', args, { env: process.env })
    t.teardown(() => killChild(child))
    const [url] = await waitForOutput(child.stdout, /http:\/\/\S+/)
    const getHealth = () => fetch(`${url}/health`)
    for (const send of [getHealth, () => sendRequest(url!, 'unlogged'), getHealth]) {
      const response = await send()
      await response.text()
      t.equal(response.status, 200)
    }
    child.kill()
    t.match(await waitForExitResult(child), { code: 0 })
  },
)

/** Returns the agent role of each exported row. */
async function exportRoles(cwd: string, options: string[]): Promise<string[]> {
  const { stdout } = await runLlmProxy(['sessions', 'export', ...options], { cwd })
  return stdout.split('\n').flatMap((row) => (row === '' ? [] : [JSON.parse(row).line]))
}

t.test('sessions are exported by agent role, from a running proxy and from its database', async (t) => {
  const cwd = t.testdir()
  const { url } = await serve(t, [], { cwd })
  for (const role of ['main', 'subagent:a', 'side']) {
    await (await sendRequest(url, 'lines', {}, { 'x-llm-proxy-line': role })).text()
  }
  for (const source of [['--url', url], []]) {
    const getRoles = (...options: string[]) => exportRoles(cwd, [...source, ...options])
    t.same(await getRoles(), ['main', 'subagent:a'])
    // Options that the source does not determine are tested with one source.
    if (source.length > 0) {
      t.same(await getRoles('--select', 'main'), ['main'])
      t.same(await getRoles('--format', 'sft', '--side-calls'), ['main', 'subagent:a', 'side'])
    } else {
      t.same(await getRoles('--format', 'turns'), ['main', 'subagent:a', 'side'])
      t.same(await getRoles('--side-calls', '--format', 'trajectories'), ['main', 'subagent:a', 'side'])
    }
    for (const format of source.length > 0 ? ['atif'] : ['training_trace']) {
      const { code, stdout } = await runLlmProxy(['sessions', 'export', '--format', format, ...source], {
        cwd,
      })
      t.equal(code, 0)
      const [{ steps, turns }, ...others] = stdout
        .trimEnd()
        .split('\n')
        .map((line) => JSON.parse(line))
      t.ok(steps?.length > 1 || turns?.length === 2, format)
      t.same(others, [], 'one session, one line')
    }
  }
})

t.test('a compaction that the agent rejected is exported on request', async (t) => {
  const cwd = t.testdir()
  const taken = 'Ships sail to the north, and one of them has come back.'
  const rules = [
    { name: 'taken', when: { user: 'again' }, answer: { content: taken } },
    {
      name: 'other',
      when: { role: 'user' },
      answer: { content: 'A cat sat on a mat, and slept there all day.' },
    },
  ]
  const playbook = join(cwd, 'playbook.json')
  writeFileSync(playbook, JSON.stringify({ rules }))
  const { url } = await serve(t, ['--playbook', playbook], { cwd })
  for (const [role, content] of [
    ['compaction', 'Sum it up.'],
    ['compaction', 'Sum it up again.'],
    ['main', `Go on from here: ${taken}`],
  ]) {
    const body = { messages: [{ role: 'user', content }], max_tokens: 64 }
    await (await sendRequest(url, 'compacted', body, { 'x-llm-proxy-line': role })).text()
  }
  for (const source of [['--url', url], []]) {
    const getRoles = (...options: string[]) => exportRoles(cwd, [...source, ...options])
    if (IS_FULL || source.length > 0) t.same(await getRoles(), ['compaction', 'main'])
    if (IS_FULL || source.length === 0)
      t.same(await getRoles('--rejected'), ['compaction', 'compaction', 'main'])
  }
})

/** Lists the databases of servers with `--db memory`; the executable keeps its compiled code there too. */
function listDatabases(folder: string): string[] {
  return readdirSync(folder).filter((name) => name.startsWith('llm-proxy.'))
}

t.test(
  'a signal ends an idle server cleanly, and the log has its life cycle in the requested format',
  async (t) => {
    const logs: string[] = []
    for (const [signal, format] of [
      ['SIGTERM', []],
      ['SIGINT', ['--log-format', 'text']],
    ] as const) {
      const TMPDIR = t.testdir()
      const env = { TMPDIR, LOG_LEVEL: 'info' }
      const { child, readyLine } = await serve(t, ['--db', 'memory', ...format], { cwd: TMPDIR, env })
      t.match(listDatabases(TMPDIR), [`llm-proxy.${child.pid}.`])
      const log = text(child.stderr)
      child.kill(signal)
      t.strictSame(await waitForExitResult(child), { code: 0, signal: null }, signal)
      t.strictSame(listDatabases(TMPDIR), [], 'its sessions end with it')
      logs.push(await log)
      t.equal((readyLine + logs.at(-1)).match(/listening/gi)?.length, 1, 'listening is announced once')
    }
    const events = logs[0]!.match(/.+/g)!.map((line) => JSON.parse(line).event)
    t.strictSame(events, ['configuration_note', 'server_started', 'drain_started', 'server_stopped'])
    const lines = logs[1]!.match(/.+/g)!.map((line) => /^\d\d:\d\d:\d\d (\w+ +\w+)/.exec(line)?.[1])
    t.strictSame(lines, ['WARN  Note', 'INFO  Server', 'INFO  Draining', 'INFO  Server'])
  },
)

t.test('the database of a killed server with --db memory is removed when the next one starts', async (t) => {
  const TMPDIR = t.testdir()
  const launch = { cwd: TMPDIR, env: { TMPDIR } }
  const { child: killed } = await serve(t, ['--db', 'memory'], launch)
  killed.kill('SIGKILL')
  await waitForExitResult(killed)
  t.equal(listDatabases(TMPDIR).length, 1)
  const { child } = await serve(t, ['--db', 'memory'], launch)
  t.match(listDatabases(TMPDIR), [`llm-proxy.${child.pid}.`])
})

t.test('a request that runs when the signal arrives is completed and recorded', async (t) => {
  const cwd = t.testdir()
  const engine = await startEngine(t, { latencyMs: 300 })
  const proxy = await serve(t, ['--engine-url', engine.url], { cwd })
  const response = await sendRequest(proxy.url, 'drained', { stream: true })
  proxy.child.kill('SIGTERM')
  const exit = waitForExitResult(proxy.child)
  t.match(await response.text(), /data: \[DONE\]\s*$/)
  t.strictSame(await exit, { code: 0, signal: null })
  const { stdout } = await runLlmProxy(['sessions', 'show', 'drained'], { cwd })
  t.match(stdout, /0 +main +completed/)
})

t.test('a second signal does not wait for running requests', async (t) => {
  const engine = await startEngine(t, { latencyMs: 60_000 })
  const proxy = await serve(t, ['--engine-url', engine.url, '--db', 'memory'], { env: { LOG_LEVEL: 'info' } })
  const cutOff = t.rejects(sendRequest(proxy.url, 'slow'), 'the request is cut off')
  await waitForRequestInFlight(proxy.url)
  const draining = waitForOutput(proxy.child.stderr, /drain_started/)
  proxy.child.kill('SIGTERM')
  await draining
  proxy.child.kill('SIGINT')
  t.strictSame(await waitForExitResult(proxy.child), { code: 130, signal: null })
  await cutOff
})

t.test('pending work of a library does not keep a stopped proxy alive', async (t) => {
  const { promise: arrived, resolve: notifyArrived } = Promise.withResolvers<void>()
  // Each export is rejected for now, and may be retried for ten minutes.
  const receiver = createServer((request, response) => {
    request.resume()
    response.writeHead(503, { 'retry-after': '500' }).end()
    notifyArrived()
  }).listen(0, '127.0.0.1')
  await once(receiver, 'listening')
  t.teardown(() => receiver.close())
  const endpoint = `http://127.0.0.1:${(receiver.address() as AddressInfo).port}`
  const env = { OTEL_EXPORTER_OTLP_ENDPOINT: endpoint, OTEL_EXPORTER_OTLP_TIMEOUT: '600000' }
  const { child, url } = await serve(t, ['--db', 'memory'], { env: { ...env, OTEL_BSP_SCHEDULE_DELAY: '1' } })
  t.equal((await sendRequest(url, 'traced')).status, 200)
  await arrived
  child.kill('SIGTERM')
  t.strictSame(await waitForExitResult(child), { code: 0, signal: null })
})

/** Resolves when the engine has received a request. */
async function waitForRequestInFlight(url: string): Promise<void> {
  await until(async () => /"in_flight":[1-9]/.test(await (await fetch(`${url}/health`)).text()))
}

t.test('a port in use is one line and exit code 1, with no other output before it', async (t) => {
  const server = createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  const port = String((server.address() as AddressInfo).port)
  for (const command of [['serve', '--db', 'memory'], ['engine']]) {
    const { code, stdout, stderr } = await runLlmProxy([...command, '--port', port])
    t.match({ code, stdout }, { code: 1, stdout: '' })
    t.equal(
      stderr,
      `llm-proxy: port ${port} on 127.0.0.1 is in use: stop the program that listens there, or choose another port with --port\n`,
    )
  }
})

t.test('an unusable database and an unreachable engine are one line and exit code 1', async (t) => {
  const notADatabase = join(
    t.testdir({ file: 'this is not a database, but long enough to be one'.repeat(20) }),
    'file',
  )
  for (const args of [
    ['--db', notADatabase],
    ['--db', join(notADatabase, 'inside-of-a-file.db')],
    ['--db', 'memory', '--engine-url', 'http://127.0.0.1:1'],
  ]) {
    const { code, stdout, stderr } = await runLlmProxy([...args, '--port', '0', '--log-level', 'silent'])
    t.match({ code, stdout }, { code: 1, stdout: '' }, args.join(' '))
    t.match(stderr, /^llm-proxy: .+\n$/, 'one line')
  }
})

t.test(
  'under an older Node signals and the exit code pass through the launcher',
  { skip: !OLD_NODE },
  async (t) => {
    const { child } = await serve(t, ['--db', 'memory'], { node: OLD_NODE! })
    child.kill('SIGINT')
    t.strictSame(await waitForExitResult(child), { code: 0, signal: null })
  },
)

t.test('a killed launcher takes its server along', { skip: !OLD_NODE }, async (t) => {
  const { child, url } = await serve(t, ['--db', 'memory'], { node: OLD_NODE! })
  child.kill('SIGKILL')
  await text(child.stdout)
  await t.rejects(fetch(`${url}/health`), 'stdout is closed only when the server itself has ended')
})

t.test(
  'Ctrl-C, which a terminal sends to the whole process group, drains a server under an older Node',
  { skip: !OLD_NODE },
  async (t) => {
    const { child } = await serve(t, ['--db', 'memory'], { node: OLD_NODE!, detached: true })
    process.kill(-child.pid!, 'SIGINT')
    t.strictSame(await waitForExitResult(child), { code: 0, signal: null })
  },
)
