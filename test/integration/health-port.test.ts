import { Worker } from 'node:worker_threads'
import t, { type Test } from 'tap'
import { openHealthPort } from '../../src/proxy/http/operator/health/health-port.ts'
import { startProxy } from '../helpers/proxy.ts'
import { RawConnection } from '../helpers/raw-connection.ts'
import { until } from '../helpers/until.ts'

const OK = { code: 200, body: '{"status":"ok"}' }

/** Polls on a thread until the response has this status, while this thread is blocked. @returns whether it had */
async function respondsWhileBlocked(t: Test, url: string, status: number): Promise<boolean> {
  const shared = new SharedArrayBuffer(8)
  const [BEGIN, DONE] = [0, 1]
  const flags = new Int32Array(shared)
  const code = `
    const { workerData: { url, status, shared } } = require('node:worker_threads')
    const flags = new Int32Array(shared)
    const http = require('node:http')
    const poll = () => http.get(url, (response) => {
      response.resume()
      if (response.statusCode !== status) return setTimeout(poll, 5)
      Atomics.store(flags, ${DONE}, 1)
      Atomics.notify(flags, ${DONE})
    })
    Atomics.wait(flags, ${BEGIN}, 0)
    poll()`
  const poller = new Worker(code, { eval: true, workerData: { url, status, shared } })
  t.teardown(() => poller.terminate())
  await new Promise((resolve) => poller.once('online', resolve))
  Atomics.store(flags, BEGIN, 1)
  Atomics.notify(flags, BEGIN)
  return Atomics.wait(flags, DONE, 0, 60_000) !== 'timed-out'
}

t.test("the health port responds while the proxy's thread is blocked", async (t) => {
  const proxy = await startProxy(t, { healthPort: 0 })
  const { healthUrl } = proxy.server
  t.ok(await respondsWhileBlocked(t, healthUrl!, 200))
})

t.test('it returns what /health returns without a key, and nothing else', async (t) => {
  const proxy = await startProxy(t, { healthPort: 0, adminKeys: ['an-admin-key-that-is-long'] })
  const response = await fetch(proxy.server.healthUrl!)
  t.equal(response.status, 200)
  t.strictSame(await response.json(), { status: 'ok', mode: 'local', connected_workers: 0 })
  const { origin } = new URL(proxy.server.healthUrl!)
  t.equal((await fetch(`${origin}/health/live`)).status, 200)
  t.equal((await fetch(`${origin}/sessions`)).status, 404)
  t.equal((await fetch(`${origin}/health/workers`)).status, 404)
  t.equal((await fetch(`${origin}/health`, { method: 'POST' })).status, 404)
  t.equal((await fetch(`${origin}/health`, { method: 'HEAD' })).status, 200)
})

t.test("it forwards the proxy's own report", async (t) => {
  let now = OK
  const port = await openHealthPort({
    host: '127.0.0.1',
    port: 0,
    basePath: '/llm',
    intervalMs: 1,
    getHealth: async () => now,
  })
  t.teardown(() => port.close())
  t.match(port.url, /\/llm\/health$/)
  t.equal((await fetch(port.url)).status, 200)
  now = { code: 503, body: '{"status":"draining"}' }
  await until(async () => (await fetch(port.url)).status === 503)
  t.equal(await (await fetch(port.url)).text(), now.body)
  const live = await fetch(`${port.url}/live`)
  t.strictSame([live.status, await live.json()], [200, { status: 'ok' }], 'it needs no restart')
})

t.test('a proxy that reports nothing for long is stuck', async (t) => {
  const port = await openHealthPort({ host: '127.0.0.1', port: 0, stuckMs: 50, getHealth: async () => OK })
  t.teardown(() => port.close())
  t.ok(await respondsWhileBlocked(t, port.url, 503))
  t.ok(await respondsWhileBlocked(t, `${port.url}/live`, 503))
})

t.test('a port in use is an error at the start', async (t) => {
  const options = { host: '127.0.0.1', getHealth: async () => OK }
  const port = await openHealthPort({ ...options, port: 0 })
  t.teardown(() => port.close())
  await t.rejects(openHealthPort({ ...options, port: Number(new URL(port.url).port) }), {
    code: 'start_failed',
    message: /--health-port.*EADDRINUSE/,
  })
})

t.test('silent connections evict each other, and never a probe', async (t) => {
  const proxy = await startProxy(t, { healthPort: 0 })
  const url = proxy.server.healthUrl!
  const silent: RawConnection[] = []
  t.teardown(() => silent.forEach(({ socket }) => void socket.destroy()))
  for (let count = 0; count < 100; count += 1) silent.push(await RawConnection.open(url))
  await until(() => silent.filter(({ socket }) => socket.destroyed).length >= 36)
  t.equal((await fetch(url)).status, 200)
})
