import { once } from 'node:events'
import { type AddressInfo, connect } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import Fastify from 'fastify'
import t, { type Test } from 'tap'
import { SseReply } from '../../src/proxy/http/agent/sse-reply.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { openEventStream, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { until } from '../helpers/until.ts'

const CHUNK = 'x'.repeat(64 * 1024)

/**
 * Sends an endless stream to an agent that reads only when the test lets it. @param stallMs how long it may read
 * nothing
 */
async function startEndlessStream(t: Test, stallMs: number) {
  const app = Fastify({ forceCloseConnections: true })
  t.teardown(() => app.close())
  const { promise: ended, resolve: end } = Promise.withResolvers<Error | null>()
  let sent = 0
  app.get('/', async (_request, reply) => {
    const sse = new SseReply(reply, undefined, stallMs)
    while (!reply.raw.destroyed) {
      await sse.send(CHUNK)
      sent += 1
    }
    end(reply.raw.errored)
  })
  await app.listen({ host: '127.0.0.1', port: 0 })
  const agent = connect((app.server.address() as AddressInfo).port, '127.0.0.1')
  t.teardown(() => agent.destroy())
  await once(agent, 'connect')
  agent.on('error', () => {})
  agent.write('GET / HTTP/1.1\r\nhost: proxy\r\n\r\n')
  return { agent, ended, sent: () => sent }
}

t.test('an agent that stops reading uses bounded memory, and loses its stream after a while', async (t) => {
  const { agent, ended, sent } = await startEndlessStream(t, 100)
  agent.pause()
  t.match(await ended, { name: 'ProxyError', code: 'agent_too_slow' })
  t.ok(sent() * CHUNK.length < 32 * 1024 * 1024, "the kernel's buffers, and no more")
})

t.test('an agent that reads now and then keeps its stream', async (t) => {
  const { agent, ended, sent } = await startEndlessStream(t, 2_000)
  let outcome: Error | null | undefined
  void ended.then((error) => {
    outcome = error
  })
  for (let round = 0; round < 4; round += 1) {
    const before = sent()
    agent.resume()
    await until(() => outcome !== undefined || sent() >= before + 200)
    agent.pause()
    await sleep(700)
  }
  t.equal(outcome, undefined)
  agent.destroy()
  t.not((await ended)?.name, 'ProxyError', 'it disconnected by itself')
})

/** Starts an engine whose response never ends, and that reports when its output is not read. */
async function startEndlessEngine(t: Test) {
  const { promise: stuck, resolve: reportStuck } = Promise.withResolvers<void>()
  const engine = await startScriptedServer(async (request, response) => {
    if (request.method === 'GET') return sendJson(response, { data: [{ id: 'm' }] })
    const send = openEventStream(response)
    const closed = once(response, 'close')
    while (!response.destroyed) {
      if (send({ choices: [{ index: 0, delta: { content: CHUNK } }] })) continue
      const patience = setTimeout(reportStuck, 500)
      await Promise.race([new Promise((resolve) => response.once('drain', resolve)), closed])
      clearTimeout(patience)
    }
  })
  t.teardown(() => engine.close())
  return { url: engine.url, stuck }
}

/** Starts a proxy with a request in flight whose agent does not read the response. */
async function startProxyWithUnreadResponse(t: Test): Promise<TestProxy> {
  const engine = await startEndlessEngine(t)
  const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'openai' })
  const agent = connect(Number(new URL(proxy.url).port), '127.0.0.1')
  t.teardown(() => agent.destroy())
  agent.on('error', () => {})
  agent.pause()
  const body = '{"messages":[{"role":"user","content":"Go on."}],"stream":true}'
  agent.write(
    `POST /s/v1/chat/completions HTTP/1.1\r\nhost: proxy\r\ncontent-length: ${body.length}\r\n\r\n${body}`,
  )
  await engine.stuck
  return proxy
}

t.test('the end of a session does not wait for an agent that reads nothing', async (t) => {
  const proxy = await startProxyWithUnreadResponse(t)
  const startedAt = performance.now()
  await proxy.post('/sessions/s/complete')
  t.ok(performance.now() - startedAt < 3_000)
  t.match((await proxy.get('/sessions/s')).turns, [{ status: 'aborted', error: { code: 'turn_cancelled' } }])
  t.match((await proxy.get('/health')).engines, [{ in_flight: 0 }])
})

t.test('a shutdown waits no longer than its grace period for an agent that reads nothing', async (t) => {
  const proxy = await startProxyWithUnreadResponse(t)
  const startedAt = performance.now()
  t.same(await proxy.server.stop(100), { drained: false })
  t.ok(performance.now() - startedAt < 10_000)
})
