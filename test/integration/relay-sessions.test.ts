/** Engines and routers receive the same session information through workers as from a proxy in local mode. */
import t, { type Test } from 'tap'
import { pull } from '../helpers/event-stream.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy } from '../helpers/proxy.ts'
import { RawWorker } from '../helpers/raw-worker.ts'
import { joinWorker } from '../helpers/relay-rig.ts'
import { relayServerFor } from '../helpers/relay-server.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { until } from '../helpers/until.ts'

type Proxy = Awaited<ReturnType<typeof startProxy>>

async function sendRequest(proxy: Proxy, agentRole: string, session = 's'): Promise<void> {
  const headers = { 'content-type': 'application/json', 'x-llm-proxy-line': agentRole }
  const body = JSON.stringify({ model: 'fake', messages: [{ role: 'user', content: 'hi' }], max_tokens: 2 })
  const response = await fetch(`${proxy.baseUrl(session)}/chat/completions`, {
    method: 'POST',
    headers,
    body,
  })
  await response.text()
}

async function startRelay(t: Test, engineUrl: string): Promise<Proxy> {
  const proxy = await startProxy(t, { mode: 'relay' })
  joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engineUrl], workerId: 'w' })
  await until(async () => (await proxy.get('/health')).connected_workers === 1)
  return proxy
}

t.test('a sub-agent has a separate session for routers', async (t) => {
  const engine = await startFakeVllm({})
  t.teardown(() => engine.close())
  const proxy = await startRelay(t, engine.url)
  for (const [agentRole, name] of Object.entries({ main: 's', 'subagent:critic': 's/subagent:critic' })) {
    await sendRequest(proxy, agentRole)
    const { headers } = engine.requests.findLast(({ path }) => path === '/v1/chat/completions')!
    t.equal(headers['x-session-id'], encodeURIComponent(name), agentRole)
  }
})

t.test('SGLang releases its state of a session and of its sub-agents when the session ends', async (t) => {
  const server = await startScriptedServer(({ method, path }, response) => {
    if (path === '/v1/models') return sendJson(response, { data: [{ id: 'fake', owned_by: 'sglang' }] })
    if (path === '/server_info')
      return sendJson(response, { version: '0.5.23', enable_session_radix_cache: true })
    if (method === 'GET') return sendJson(response, {})
    if (path === '/close_session') return void response.end()
    sendJson(response, { error: { message: 'enough' } }, 400)
  })
  t.teardown(() => server.close())
  const proxy = await startRelay(t, server.url)
  await sendRequest(proxy, 'main')
  await sendRequest(proxy, 'subagent:critic')
  await sendRequest(proxy, 'main', 'goes on')
  await proxy.post('/sessions/s/complete', {})
  const closed = () => server.requests.filter(({ path }) => path === '/close_session')
  await until(() => closed().length === 2)
  t.same(
    closed().map(({ body }) => body.session_id),
    ['s', 's/subagent:critic'],
  )
})

t.test('only a capable worker that has served the session is notified of its end', async (t) => {
  const { url, backend } = await relayServerFor(t)
  const capabilities = ['cancel', 'session_end']
  const workers = [
    await RawWorker.hello(url, { worker_id: 'old', capabilities: ['cancel'], models: [{ id: 'a' }] }),
    await RawWorker.hello(url, { worker_id: 'new', capabilities, models: [{ id: 'b' }] }),
    await RawWorker.hello(url, { worker_id: 'idle', capabilities, models: [{ id: 'c' }] }),
  ]
  t.teardown(() => {
    for (const { socket } of workers) socket.close()
  })
  await until(() => backend.list().length === 3)
  for (const [index, model] of ['a', 'b'].entries()) {
    const request = {
      ...{ requestId: model, sessionId: 's', stream: true, kind: 'chat' as const },
      body: { model, messages: [{ role: 'user' as const, content: 'hi' }] },
    }
    const response = Array.fromAsync(pull(backend, request, new AbortController().signal))
    await workers[index]!.next('completion_request')
    workers[index]!.chunk(model, 1, 'x', { start: { engine: 'e' } })
    workers[index]!.end(model, 2)
    await response
  }
  backend.releaseSession('s')
  backend.releaseSession('s')
  t.match(await workers[1]!.next('session_end'), { session_id: 's' })
  // Frames are in order: everything sent before the pong has arrived.
  for (const worker of workers) {
    worker.send({ type: 'ping' })
    await worker.next('pong')
    t.notOk(
      worker.frames.some(({ type }) => type === 'session_end'),
      'once, and to no other worker',
    )
  }
})
