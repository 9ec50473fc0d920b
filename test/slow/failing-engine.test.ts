/** An engine that responds to requests with an error while its health checks succeed. */
import t, { type Test } from 'tap'
import { startEngine } from '../helpers/engine.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker, untilWorkers } from '../helpers/relay-rig.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

const messages = [{ role: 'user', content: 'What is in the box?' }]
const MAX_TOKENS = 4

/** Path and body of a request in each dialect, without the session's id. */
const DIALECTS: [string, object][] = [
  ['v1/chat/completions', { model: 'embedded', messages, max_tokens: MAX_TOKENS }],
  ['v1/chat/completions', { model: 'embedded', messages, max_tokens: MAX_TOKENS, stream: true }],
  ['v1/completions', { model: 'embedded', prompt: 'The box', max_tokens: MAX_TOKENS }],
  ['v1/responses', { model: 'embedded', input: 'The box?', max_output_tokens: 16 }],
  ['v1/messages', { model: 'embedded', messages, max_tokens: MAX_TOKENS }],
  [
    'v1beta/models/embedded:generateContent',
    { contents: [{ parts: [{ text: 'The box?' }] }], generationConfig: { maxOutputTokens: MAX_TOKENS } },
  ],
]
const SESSIONS = 20

/** Starts an engine in front of `engineUrl` that fails requests that sample. */
async function startFailingEngine(t: Test, engineUrl: string, status: number) {
  const headers = status === 500 ? {} : { 'retry-after': '30' }
  const server = await startScriptedServer(async ({ method, path, text }, response) => {
    if (method === 'GET' || path.endsWith('tokenize')) {
      const forwarded = await fetch(engineUrl + path, {
        method,
        ...(text && { body: text, headers: { 'content-type': 'application/json' } }),
      })
      response.writeHead(forwarded.status, { 'content-type': forwarded.headers.get('content-type') ?? '' })
      response.end(await forwarded.text())
      return
    }
    for (const [name, value] of Object.entries(headers)) response.setHeader(name, value)
    sendJson(response, { error: { message: 'CUDA out of memory' } }, status)
  })
  t.teardown(() => server.close())
  return server
}

async function startRelay(t: Test, tokenizer: object, engineUrls: string[]): Promise<TestProxy> {
  const proxy = await startProxy(t, { mode: 'relay', ...tokenizer })
  const workerIds = engineUrls.map((_, index) => `w${index}`)
  engineUrls.forEach((url, index) => {
    joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [url], workerId: workerIds[index]! })
  })
  await untilWorkers(proxy, ...workerIds)
  return proxy
}

const MODES = [
  { mode: 'local', tokenizer: {} },
  { mode: 'relay', tokenizer: {} },
  { mode: 'local', tokenizer: { tokenizer: 'embedded' } },
  { mode: 'relay', tokenizer: { tokenizer: 'embedded' } },
]

for (const { mode, tokenizer } of MODES) {
  for (const status of [500, 503, 429]) {
    const title = `${mode}, ${'tokenizer' in tokenizer ? 'token' : 'chat'} mode: an engine that responds with ${status} fails no session`
    t.test(title, async (t) => {
      const { url } = await startEngine(t)
      const failing = await startFailingEngine(t, url, status)
      const engineUrls = [failing.url, url]
      const proxy =
        mode === 'relay'
          ? await startRelay(t, tokenizer, engineUrls)
          : await startProxy(t, { engineUrls, ...tokenizer })
      for (let session = 0; session < SESSIONS; session += 1) {
        const [path, body] = DIALECTS[session % DIALECTS.length]!
        const response = await fetch(`${proxy.url}/s${session}/${path}`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify(body),
        })
        const text = await response.text()
        t.equal(response.status, 200, `${path}: ${text.slice(0, 300)}`)
        t.notMatch(text, 'out of memory')
      }
      const health = await proxy.get('/health')
      const members = health[mode === 'relay' ? 'workers' : 'engines']
      const [ejected] = members.filter((member: object) => 'ejected_for_s' in member)
      t.match(ejected, { healthy: true, name: mode === 'relay' ? 'w0' : failing.url })
      t.ok(ejected.ejected_for_s > 0)
      const metrics = await (await fetch(`${proxy.url}/metrics`)).text()
      t.match(metrics, /^llm_proxy_ejections_total 1$/m)
      t.match(metrics, new RegExp(`^llm_proxy_member_ejected\\{member="${ejected.name}"\\} 1$`, 'm'))
    })
  }
}

for (const mode of ['local', 'relay']) {
  for (const status of [503, 429]) {
    t.test(
      `${mode}: the Retry-After of the only engine, with status ${status}, reaches the client`,
      async (t) => {
        const { url } = await startEngine(t)
        const { url: failing } = await startFailingEngine(t, url, status)
        const proxy =
          mode === 'relay'
            ? await startRelay(t, {}, [failing])
            : await startProxy(t, { engineUrls: [failing] })
        for (const [path, body] of DIALECTS) {
          const response = await fetch(`${proxy.url}/s/${path}`, {
            method: 'POST',
            headers: { 'content-type': 'application/json' },
            body: JSON.stringify(body),
          })
          const text = await response.text()
          t.equal(response.status, status === 429 ? 429 : 502, `${path}: ${text.slice(0, 300)}`)
          t.equal(response.headers.get('retry-after'), '30', path)
        }
      },
    )
  }
}
