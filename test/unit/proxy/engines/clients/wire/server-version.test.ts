import t, { type Test } from 'tap'
import { ProxyError } from '../../../../../../src/base/errors.ts'
import { CLIENT_OF_KIND } from '../../../../../../src/proxy/engines/clients/client-of-kind.ts'
import { ServerVersion } from '../../../../../../src/proxy/engines/clients/wire/server-version.ts'
import { sendJson, startScriptedServer } from '../../../../../helpers/scripted-server.ts'
import { until } from '../../../../../helpers/until.ts'

const LIMIT_MS = 10

/** Creates the version of a server that does not respond until `respond` is called. */
function setUp(t: Test, { limitMs = LIMIT_MS } = {}) {
  // The timer of the limit does not keep the process alive.
  const alive = setInterval(() => {}, 1_000)
  t.teardown(() => clearInterval(alive))
  const queries: ((text: string) => void)[] = []
  const query = (_path: string, signal: AbortSignal) =>
    new Promise<string>((resolve, reject) => {
      queries.push(resolve)
      signal.addEventListener('abort', () => reject(signal.reason))
    })
  const version = new ServerVersion({ query }, ['/version'], limitMs)
  const respond = (text: string) => queries.at(-1)!(JSON.stringify({ version: text }))
  return { version, queries, respond }
}

t.test('the version of a server that does not respond is unknown, and queried again', async (t) => {
  const { version, queries, respond } = setUp(t)
  t.strictSame(await version.getFields(new AbortController().signal), {})
  const later = version.isSince('0.32', new AbortController().signal)
  t.equal(queries.length, 2)
  respond('0.33')
  t.equal(await later, true)
})

t.test('the version is queried again after a failure that may be transient, and only then', async (t) => {
  const missing = new ProxyError('engine_rejected', 'Not Found', { status: 404 })
  const cases: [title: string, responses: Record<string, ProxyError>, queries: number][] = [
    ['no such routes', { '/first': missing, '/second': missing }, 1],
    ['HTTP 503', { '/first': missing, '/second': new ProxyError('engine_failed', 'HTTP 503') }, 2],
    ['a lost connection', { '/first': new ProxyError('engine_lost', 'lost'), '/second': missing }, 2],
    ['overload', { '/first': missing, '/second': new ProxyError('engine_rejected', '', { status: 429 }) }, 2],
  ]
  for (const [title, responses, expected] of cases) {
    const paths: string[] = []
    const query = async (path: string) => {
      paths.push(path)
      throw responses[path]
    }
    const version = new ServerVersion({ query }, ['/first', '/second'])
    const { signal } = new AbortController()
    t.strictSame(await version.getFields(signal), {}, title)
    t.strictSame(await version.getFields(signal), {}, title)
    t.equal(paths.length, expected * 2, title)
  }
})

t.test('a caller that is aborted neither waits for the others nor ends their query', async (t) => {
  const { version, queries, respond } = setUp(t, { limitMs: 60_000 })
  const first = new AbortController()
  const second = new AbortController()
  const waits = [first, second].map(({ signal }) => version.getFields(signal))
  const other = version.getFields(new AbortController().signal)
  first.abort(new Error('left'))
  second.abort(new Error('time is up'))
  await t.rejects(waits[0]!, { message: 'left' })
  await t.rejects(waits[1]!, { message: 'time is up' })
  respond('0.33')
  t.strictSame(await other, { version: '0.33' })
  t.equal(queries.length, 1)
})

t.test('a server that was silent keeps its version, one that failed is queried again', async (t) => {
  for (const kind of ['vllm', 'sglang'] as const) {
    let status = 200
    let isSilent = false
    const server = await startScriptedServer(({ path }, response) => {
      if (isSilent) return
      if (path === '/version' || path === '/server_info') return sendJson(response, { version: '0.33.0' })
      if (path === '/v1/models') return sendJson(response, { data: [{ id: 'tiny' }] }, status)
      sendJson(response, {}, path === '/health' ? status : 404)
    })
    t.teardown(() => server.close())
    const engine = CLIENT_OF_KIND[kind]({ url: server.url })
    t.teardown(() => engine.close())
    const check = (signal = new AbortController().signal) => engine.checkHealth(signal)
    const countVersions = () =>
      server.requests.filter(({ path }) => path === '/version' || path === '/server_info').length
    await check()
    isSilent = true
    const limit = new AbortController()
    const { length: before } = server.requests
    const silent = check(limit.signal)
    await until(() => server.requests.length > before)
    limit.abort(new Error('time is up'))
    await t.rejects(silent, kind)
    isSilent = false
    await check()
    t.equal(countVersions(), 1, kind)
    status = 500
    await t.rejects(check(), kind)
    status = 200
    await check()
    t.equal(countVersions(), 2, kind)
  }
})
