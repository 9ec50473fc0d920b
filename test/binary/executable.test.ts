/** Guarantees of the standalone executable beyond those of a checkout; `run` describes the environment of the tests. */
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { killChild, type PipedProcess, waitForExit, waitForOutput } from '../helpers/children.ts'
import { runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'
import { startOtlpReceiver } from '../helpers/otlp-receiver.ts'

async function serve(
  t: Test,
  cwd: string,
  env: Record<string, string>,
): Promise<{ child: PipedProcess; url: string }> {
  const child = startLlmProxy(['--port', '0', '--log-level', 'error'], { cwd, env })
  t.teardown(() => killChild(child))
  const [url] = await waitForOutput(child.stdout, /http:\/\/\S+/)
  return { child, url }
}

async function sendRequest(
  url: string,
  sessionId: string,
  headers: Record<string, string> = {},
): Promise<number> {
  const response = await fetch(`${url}/${sessionId}/v1/chat/completions`, {
    method: 'POST',
    headers,
    body: JSON.stringify({ messages: [{ role: 'user', content: 'What is the sea?' }], max_tokens: 8 }),
  })
  await response.text()
  return response.status
}

t.test('it writes only its database in its folder, and one folder among the temporary files', async (t) => {
  const root = t.testdir({ data: {}, temporary: {} })
  const env = { TMPDIR: join(root, 'temporary') }
  const { child, url } = await serve(t, join(root, 'data'), env)
  t.equal(await sendRequest(url, 'first'), 200)
  child.kill('SIGTERM')
  t.strictSame(await waitForExit(child), [0, null])
  const files = ['llm-proxy.db', 'llm-proxy.db.lock']
  t.strictSame(readdirSync(join(root, 'data')), files)
  t.strictSame(readdirSync(join(root, 'temporary')), ['llm-proxy-65532'])
})

t.test('it reads recorded data: sessions list, show and export', async (t) => {
  const cwd = t.testdir()
  const { url } = await serve(t, cwd, {})
  t.equal(await sendRequest(url, 'first'), 200)
  t.match(await runLlmProxy(['sessions', 'list'], { cwd }), { code: 0, stdout: /^first +active/m })
  t.match(await runLlmProxy(['sessions', 'show', 'first'], { cwd }), {
    code: 0,
    stdout: / completed +- +(length|stop)/,
  })
  const { stdout } = await runLlmProxy(['sessions', 'export'], { cwd })
  t.match(JSON.parse(stdout), { session_id: 'first', num_turns: 1 })
})

t.test('several that start at once on a new machine all start', async (t) => {
  const root = t.testdir({ a: {}, b: {}, c: {}, d: {}, temporary: {} })
  const env = { TMPDIR: join(root, 'temporary') }
  const servers = ['a', 'b', 'c', 'd'].map((name) => serve(t, join(root, name), env))
  for (const { url } of await Promise.all(servers)) t.equal(await sendRequest(url, 'first'), 200)
})

t.test(
  'a temporary folder that is missing or mounted noexec is reported in one line with a remedy',
  async (t) => {
    for (const TMPDIR of ['/noexec', '/nowhere']) {
      const { code, stdout, stderr } = await runLlmProxy(['--port', '0', '--log-level', 'silent'], {
        cwd: t.testdir(),
        env: { TMPDIR },
      })
      t.match({ code, stdout }, { code: 1, stdout: '' })
      t.match(stderr, /^llm-proxy: .+, set TMPDIR to .+\n$/)
    }
  },
)

t.test('commands that record nothing need no temporary files', async (t) => {
  const env = { TMPDIR: '/nowhere' }
  const { url } = await serve(t, t.testdir(), {})
  t.match(await runLlmProxy(['--version'], { env }), { code: 0 })
  t.match(await runLlmProxy(['health', '--url', url], { env }), { code: 0 })
  const args = ['worker', '--proxy-url', 'http://127.0.0.1:1', '--engine-url', 'http://127.0.0.1:1']
  const worker = startLlmProxy(args, { env })
  t.teardown(() => killChild(worker))
  await waitForOutput(worker.stdout, / serves /)
})

t.test('it needs no newer libraries than those of Debian 12', async (t) => {
  const executable = readFileSync('dist/llm-proxy', 'latin1')
  const newest = (library: string) =>
    Math.max(
      ...[...executable.matchAll(new RegExp(`\\b${library}(\\d+)`, 'g'))].map(([, minor]) => Number(minor)),
    )
  t.ok(newest('GLIBC_2\\.') <= 36)
  t.ok(newest('GLIBCXX_3\\.4\\.') <= 30)
})

t.test('below a base path and with keys, every viewer works on one database', async (t) => {
  const [admin, view] = ['an-admin-key-for-tests', 'a-view-key-for-tests']
  const cwd = t.testdir()
  const env = { LLM_PROXY_ADMIN_KEY: admin, LLM_PROXY_VIEW_KEY: view, LLM_PROXY_BASE_PATH: '/llm' }
  const { url } = await serve(t, cwd, env)
  t.match(url, /\/llm$/)
  t.equal(await sendRequest(url, 'first', { authorization: `Bearer ${admin}` }), 200)
  await checkViewer(t, url, view)

  const flags = ['--url', url, '--admin-key', view]
  t.match(await runLlmProxy(['workers', 'list', ...flags]), { code: 0, stdout: /embedded/ })
  t.match(await runLlmProxy(['sessions', 'list', ...flags]), { code: 0, stdout: /^first +active/m })
  const exported = ['sessions', 'export', '--format', 'html', 'first']
  for (const source of [flags, ['--db', 'llm-proxy.db']])
    t.match(await runLlmProxy([...exported, ...source], { cwd }), { code: 0, stdout: /"session_id":"first"/ })
  const { code, stdout } = await runLlmProxy(['doctor', '--json', '--port', '0'], { cwd, env })
  t.equal(code, 0, stdout)

  const viewer = startLlmProxy(['view', '--port', '0', '--base-path', '/llm', '--view-key', view], { cwd })
  t.teardown(() => killChild(viewer))
  const [viewerUrl] = await waitForOutput(viewer.stdout, /http:\/\/\S+(?=\/ui)/)
  await checkViewer(t, viewerUrl, view)
})

/** Checks that the inspector's page is public and that its data requires the key. */
async function checkViewer(t: Test, url: string, key: string): Promise<void> {
  const page = await fetch(`${url}/ui`)
  t.match(await page.text(), /<script [^>]*src="[^"]*app\.js"/)
  t.equal((await fetch(`${url}/ui/app.js`)).status, 200)
  const headers = { authorization: `Bearer ${key}` }
  for (const path of ['/sessions', '/sessions/first/tree', '/sessions/first/rows/0/tokens']) {
    t.equal((await fetch(url + path)).status, 401, path)
    t.equal((await fetch(url + path, { headers })).status, 200, path)
  }
}

t.test('it exports spans where the environment names a receiver', async (t) => {
  const receiver = await startOtlpReceiver(t)
  const { child, url } = await serve(t, t.testdir(), { OTEL_EXPORTER_OTLP_ENDPOINT: receiver.url })
  t.equal(await sendRequest(url, 'first'), 200)
  child.kill('SIGTERM')
  t.strictSame(await waitForExit(child), [0, null])
  t.strictSame(receiver.spans.map(({ name }) => name).sort(), [
    'POST /:sessionId/v1/chat/completions',
    'chat',
    'commit',
    'queue',
  ])
})
