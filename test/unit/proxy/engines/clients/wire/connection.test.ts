/** Optional routes of a server, which is replaced or restarted while a client uses it. */
import t, { type Test } from 'tap'
import { CLIENT_OF_KIND } from '../../../../../../src/proxy/engines/clients/client-of-kind.ts'
import { type Script, sendJson, startScriptedServer } from '../../../../../helpers/scripted-server.ts'

/** Starts a server, and checks its health with a client of this kind. */
async function startServer(t: Test, kind: 'vllm' | 'sglang', script: Script) {
  const server = await startScriptedServer(script)
  const engine = CLIENT_OF_KIND[kind]({ url: server.url })
  t.teardown(async () => {
    await engine.close()
    await server.close()
  })
  const check = () => engine.checkHealth(new AbortController().signal)
  const takePaths = () => server.requests.splice(0).map(({ path }) => path)
  return { check, takePaths }
}

t.test('a pause of SGLang is detected after a gateway responded with 404 during its restart', async (t) => {
  let state: 'serving' | 'restarting' | 'paused' = 'serving'
  const { check } = await startServer(t, 'sglang', ({ path }, response) => {
    if (state === 'restarting') return sendJson(response, 'default backend - 404', 404)
    if (path === '/ready') return sendJson(response, {}, state === 'paused' ? 503 : 200)
    if (path === '/v1/models') return sendJson(response, { data: [{ id: 'tiny' }] })
    if (path === '/server_info') return sendJson(response, { version: '0.5.23' })
    if (path === '/model_info') return sendJson(response, { weight_version: 'v1' })
    // While paused it would respond after 20 s.
    sendJson(response, {}, state === 'paused' ? 503 : 200)
  })
  await check()
  state = 'restarting'
  await t.rejects(check(), { code: 'engine_failed' })
  state = 'serving'
  t.match(await check(), { weightVersion: 'v1', unavailable: undefined })
  state = 'paused'
  t.match(await check(), { unavailable: 'paused' })
})

t.test('routes that vLLM has after a restart are requested, and missing ones only once before', async (t) => {
  let state: 'plain' | 'down' | 'development' = 'plain'
  const { check, takePaths } = await startServer(t, 'vllm', ({ path }, response) => {
    if (state === 'down') return sendJson(response, {}, 503)
    if (path === '/v1/models') return sendJson(response, { data: [{ id: 'tiny' }] })
    if (path === '/health') return void response.end()
    if (path === '/version') return sendJson(response, { version: '0.32.0' })
    if (state === 'plain') return sendJson(response, {}, 404)
    sendJson(response, { weight_version: 'v7', is_paused: false, is_sleeping: true })
  })
  t.match(await check(), { weightVersion: undefined, unavailable: undefined })
  takePaths()
  await check()
  t.strictSame(takePaths(), ['/health', '/v1/models'])
  state = 'down'
  await t.rejects(check())
  state = 'development'
  t.match(await check(), { weightVersion: 'v7', unavailable: 'asleep' })
})

t.test('the health route is requested by each check, even if it responded with 404', async (t) => {
  for (const kind of ['vllm', 'sglang'] as const) {
    let status = 404
    const { check } = await startServer(t, kind, ({ path }, response) => {
      if (path === '/v1/models') return sendJson(response, { data: [{ id: 'tiny' }] })
      sendJson(response, {}, path === '/health' ? status : 404)
    })
    await check()
    status = 503
    await t.rejects(check(), { code: 'engine_failed' }, kind)
  }
})
