import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { freePort } from '../helpers/free-port.ts'
import { OLD_NODE, runLlmProxy, startLlmProxy } from '../helpers/llm-proxy.ts'

/** Checks that a wrong command line prints only this line, on stderr, and exits with code 2. */
async function checkRejected(
  t: Test,
  args: string[],
  line: string,
  env: Record<string, string> = {},
): Promise<void> {
  t.strictSame(
    await runLlmProxy(args, { env }),
    { code: 2, stdout: '', stderr: `llm-proxy: ${line}\n` },
    line,
  )
}

t.test('help and version are printed on stdout, with exit code 0', async (t) => {
  for (const args of [
    ['--help'],
    ['-h'],
    ['serve', '--help'],
    ['sessions', 'list', '--help'],
    ['help', 'health'],
  ]) {
    const { code, stdout, stderr } = await runLlmProxy(args)
    t.match({ code, stderr }, { code: 0, stderr: '' }, args.join(' '))
    t.match(stdout, /^Usage: llm-proxy/)
  }
  t.match(await runLlmProxy(['--version']), { code: 0, stdout: /^\d+\.\d+\.\d+\n$/, stderr: '' })
})

t.test('an unknown command or flag is rejected in one line with a suggestion', async (t) => {
  await checkRejected(t, ['sessons'], "unknown command 'sessons' (Did you mean sessions?)")
  await checkRejected(t, ['sesions', '--help'], "unknown command 'sesions' (Did you mean sessions?)")
  await checkRejected(t, ['sessions', 'front', '--help'], "unknown command 'front'")
  await checkRejected(t, ['help', 'front'], "unknown command 'front'")
  await checkRejected(t, ['sessions', 'lst'], "unknown command 'lst' (Did you mean list?)")
  await checkRejected(t, ['serve', '--prot', '1'], "unknown option '--prot' (Did you mean --port?)")
  await checkRejected(t, ['--prot', '1'], "unknown option '--prot' (Did you mean --port?)")
  await checkRejected(
    t,
    ['serve', '--search-index=false'],
    "unknown option '--search-index' with a value; if it is a switch, write --no-search-index",
  )
  await checkRejected(
    t,
    ['serve', '--open=true'],
    "unknown option '--open' with a value; if it is a switch, write --open",
  )
  await checkRejected(
    t,
    ['serve', '--search-index', 'false'],
    "too many arguments for 'serve'. Expected 0 arguments but got 1: false. A switch has no value: write --x or --no-x",
  )
  await checkRejected(
    t,
    ['serve', 'now'],
    "too many arguments for 'serve'. Expected 0 arguments but got 1: now.",
  )
  await checkRejected(t, ['sessions', 'show'], "missing required argument 'session-id'")
  await checkRejected(t, ['--port'], "option '--port <port>' argument missing")
})

t.test('a wrong value is rejected in one line that names its origin', async (t) => {
  const allowed = 'expected an integer from 0 to 65535'
  await checkRejected(t, ['--port', 'x'], `--port: invalid value "x": ${allowed}`)
  await checkRejected(t, [], `PROXY_PORT: invalid value "y": ${allowed}`, { PROXY_PORT: 'y' })
  await checkRejected(t, [], 'LLM_PROXY_PROT is not a setting of llm-proxy (did you mean LLM_PROXY_PORT?)', {
    LLM_PROXY_PROT: '1',
  })
  const path = join(t.testdir({ 'proxy.json': '{"prot": 1}' }), 'proxy.json')
  await checkRejected(t, ['--config', path], `${path}: there is no option "prot" (did you mean port?)`)
  await checkRejected(
    t,
    ['--mode', 'relay', '--engine-url', 'http://127.0.0.1:1'],
    'relay mode connects to no engine: give engine-url to the workers, or use --mode local',
  )
})

t.test('sessions without a subcommand lists the subcommands', async (t) => {
  const { code, stdout, stderr } = await runLlmProxy(['sessions'])
  t.match({ code, stdout }, { code: 2, stdout: '' })
  t.match(stderr, 'export')
})

t.test('a command ends quietly when the reader closes its output', async (t) => {
  const child = startLlmProxy(['serve', '--help'])
  child.stdout.destroy()
  const [stderr, [code]] = await Promise.all([text(child.stderr), once(child, 'close')])
  t.strictSame({ code, stderr }, { code: 0, stderr: '' })
})

/** Starts a server whose response to `/health` is this. */
async function startHealthServer(t: Test, status: number): Promise<string> {
  const server = createServer((request, response) => {
    response.writeHead(request.url === '/health' ? status : 404).end('{"status":"ok"}')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  return String((server.address() as AddressInfo).port)
}

t.test("health prints the proxy's report, and exits with 0 only when it is healthy", async (t) => {
  const url = `http://127.0.0.1:${await startHealthServer(t, 200)}/`
  t.strictSame(await runLlmProxy(['health', '--url', url]), {
    code: 0,
    stdout: '{"status":"ok"}\n',
    stderr: '',
  })
  const unhealthy = `http://127.0.0.1:${await startHealthServer(t, 503)}`
  t.match(await runLlmProxy(['health', '--url', unhealthy]), { code: 1, stdout: '{"status":"ok"}\n' })
})

t.test('health without a URL uses the address of serve in the same environment', async (t) => {
  const env = { LLM_PROXY_HOST: '0.0.0.0', LLM_PROXY_PORT: await startHealthServer(t, 200) }
  t.match(await runLlmProxy(['health'], { env }), { code: 0 })
})

t.test('health of an unreachable proxy is one line and exit code 1', async (t) => {
  const url = `http://127.0.0.1:${await freePort()}`
  const { code, stdout, stderr } = await runLlmProxy(['health', '--url', url])
  t.match({ code, stdout }, { code: 1, stdout: '' })
  t.match(stderr, new RegExp(`^llm-proxy: no proxy answers at ${url}: .*ECONNREFUSED.*\n$`))
})

t.test('health times out', async (t) => {
  const server = createServer(() => {}).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => {
    server.closeAllConnections()
    server.close()
  })
  const url = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
  const { code, stderr } = await runLlmProxy(['health', '--url', url, '--timeout', '50ms'])
  t.equal(code, 1)
  t.match(stderr, 'no response within 50 ms')
})

t.test('under an older Node the launcher uses the one that npm installed', { skip: !OLD_NODE }, async (t) => {
  const launch = { node: OLD_NODE! }
  t.match(await runLlmProxy(['--version'], launch), { code: 0, stdout: /^\d+\.\d+\.\d+\n$/, stderr: '' })
  t.match(await runLlmProxy(['--port', 'x'], launch), {
    code: 2,
    stdout: '',
    stderr: /^llm-proxy: --port: invalid value "x"/,
  })
})
