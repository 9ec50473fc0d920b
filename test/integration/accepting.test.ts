/** Agents are new processes, and a rollout starts hundreds of them at once. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { connect } from 'node:net'
import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'

const onLinux = process.platform === 'linux' ? {} : { skip: 'elsewhere a port has one handle' }
const AGENTS = 100
const REQUEST = 'GET /robots.txt HTTP/1.1\r\nHost: localhost\r\n\r\n'

t.test('many connections are accepted in one iteration of the event loop', onLinux, async (t) => {
  const { url } = await startProxy(t)
  const { port, hostname } = new URL(url)
  // Counts the event-loop iterations that accept connections, however many others a busy machine has in between.
  const iterations = new Set<number>()
  let iteration = 0
  const countIteration = () => {
    iteration += 1
    counting = setImmediate(countIteration)
  }
  let counting = setImmediate(countIteration)
  const recordIteration = () => iterations.add(iteration)
  subscribe('net.server.socket', recordIteration)
  const agents = Array.from({ length: AGENTS }, () => connect(Number(port), hostname))
  t.teardown(() => agents.forEach((agent) => void agent.destroy()))
  const responses = agents.map(async (agent) => {
    agent.write(REQUEST)
    const [response] = await once(agent, 'data')
    return String(response).split('\r\n')[0]
  })
  t.same(new Set(await Promise.all(responses)), new Set(['HTTP/1.1 404 Not Found']))
  clearImmediate(counting)
  unsubscribe('net.server.socket', recordIteration)
  // Accepting one connection per iteration would take as many iterations as there are agents.
  t.ok(iterations.size >= 1 && iterations.size < AGENTS / 2, `${iterations.size} iterations`)
})

t.test('a port has one proxy, although it has several handles', async (t) => {
  const first = await startProxy(t, { db: 'memory' })
  const port = Number(new URL(first.url).port)
  await t.rejects(startProxy(t, { db: 'memory', port }), { code: 'EADDRINUSE' })
  await first.server.stop(0)
  const { url } = await startProxy(t, { db: 'memory', port })
  t.equal(url, first.url, 'the port is free once the proxy has stopped')
})

t.test(
  'whichever handle accepted a connection, its broken request is rejected, and shutdown waits for its response',
  async (t) => {
    const { url, server } = await startProxy(t, { db: 'memory' })
    const { port, hostname } = new URL(url)
    const open = () => connect(Number(port), hostname)
    const broken = await Promise.all(
      Array.from({ length: 40 }, async () => {
        const agent = open()
        agent.write('NO HTTP\r\n\r\n')
        const [response] = await once(agent, 'data')
        agent.destroy()
        return String(response).split('\r\n')[0]
      }),
    )
    t.same(new Set(broken), new Set(['HTTP/1.1 400 Bad Request']))
    const idle = Array.from({ length: 40 }, open)
    await Promise.all(idle.map((agent) => once(agent, 'connect')))
    const closed = idle.map((agent) => {
      agent.on('error', () => {}).resume()
      return new Promise((resolve) => agent.once('close', resolve))
    })
    await server.stop(0)
    await Promise.all(closed)
  },
)
