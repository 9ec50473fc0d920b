/**
 * Errors of an engine, a worker or a template may quote the prompt: the agent gets them and they are recorded, but not
 * logged.
 */
import { Writable } from 'node:stream'
import { pino } from 'pino'
import t, { type Test } from 'tap'
import { formatLine } from '../../src/cli/logger.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startProxy } from '../helpers/proxy.ts'
import { joinWorker, untilWorkers } from '../helpers/relay-rig.ts'
import { openEventStream, type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { V1Worker } from '../helpers/v1-worker.ts'

const PROMPT = 'the patient is called Otto'

function createLogger() {
  const lines: string[] = []
  const sink = new Writable({
    write(line, _encoding, done) {
      lines.push(String(line))
      done()
    },
  })
  return { lines, logger: pino({ level: 'trace', base: null, customLevels: { audit: 35 } }, sink) }
}

const body = { error: { message: `cannot sample after: ${PROMPT}` } }
const RESPONSES: Record<string, Script> = {
  'a rejection': (_, response) => sendJson(response, body, 422),
  'an HTTP error': (_, response) => sendJson(response, body, 500),
  'an error in place of a response': (_, response) => sendJson(response, body),
  'no JSON': (_, response) => void response.end(`<html>${PROMPT}</html>`),
  'no HTTP': (_, response) => void response.socket?.end(`HTTP/1.1 OK ${PROMPT}\r\n\r\n`),
  'an error in a stream': (_, response) => {
    openEventStream(response)({ choices: [{ index: 0, delta: { content: 'a' } }] })
    response.end(`data: ${JSON.stringify(body)}\n\n`)
  },
}

async function start(t: Test, mode: 'local' | 'relay', script: Script, overrides: Partial<ServeConfig> = {}) {
  const engine = await startScriptedServer((request, response) => {
    const models = { data: [{ id: 'm', owned_by: 'vllm' }] }
    return request.method === 'GET' ? sendJson(response, models) : script(request, response)
  })
  t.teardown(() => engine.close())
  const log = createLogger()
  const local = { engineUrls: [engine.url], engineKind: 'vllm' } as const
  if (mode === 'local') return { ...log, proxy: await startProxy(t, { ...local, ...overrides }, log.logger) }
  const proxy = await startProxy(t, { mode, ...overrides }, log.logger)
  joinWorker(t, { ...local, workerId: 'w', proxyUrls: [proxy.url] }, log.logger)
  await untilWorkers(proxy, 'w')
  return { ...log, proxy }
}

for (const mode of ['local', 'relay'] as const)
  for (const [what, script] of Object.entries(RESPONSES))
    t.test(`${mode} mode: the text of an engine's response is in no log: ${what}`, async (t) => {
      const { proxy, lines } = await start(t, mode, script)
      const body = { model: 'm', stream: true, messages: [{ role: 'user', content: PROMPT }] }
      const headers = { 'content-type': 'application/json' }
      const init = { method: 'POST', headers, body: JSON.stringify(body) }
      const text = await (await fetch(`${proxy.baseUrl('s')}/chat/completions`, init)).text()
      t.match(text, /error/)
      if (what !== 'no HTTP') t.match(text, PROMPT, 'the agent receives it')
      const failures = lines.filter((line) => /engine_(failed|rejected|lost)/.test(line))
      t.ok(failures.length > 0, 'the log has a line of it')
      t.notMatch(lines.join(''), PROMPT)
    })

t.test('the content of administrative requests is in no log, as JSON or as text', async (t) => {
  const { lines, logger: log } = createLogger()
  const proxy = await startProxy(t, {}, log)
  await proxy.post('/sessions', { session_id: 's', metadata: { task: PROMPT } })
  const body = { model: 'm', messages: [{ role: 'user', content: PROMPT }], max_tokens: 2 }
  t.ok((await proxy.post('/s/v1/chat/completions', body)).choices)
  await proxy.post('/sessions/s/reward', { reward: 1, components: { [PROMPT]: 1 } })
  for (const control of ['pause', 'resume']) await proxy.post(`/admin/${control}`, {})
  await proxy.post('/admin/weight_version', { weight_version: 'step-1' })
  await proxy.post('/sessions/s/complete', {})
  await proxy.server.stop(0)
  const events = new Set(lines.map((line) => JSON.parse(line).event))
  for (const event of ['admin_request', 'paused', 'resumed', 'weight_version_set'])
    t.ok(events.has(event), event)
  const text = lines.map((line) =>
    formatLine(line.replace(/"level":\d+/, '"level":"info"').replace(/"time":\d+/, '"time":""')),
  )
  t.match(text.join(''), 'Administrative request route="POST /sessions"')
  t.notMatch([...lines, ...text].join(''), PROMPT)
})

t.test(
  'the life of a request in each dialect is in the log without its prompt, completion or key',
  async (t) => {
    const { lines, logger: log } = createLogger()
    const keys = { adminKeys: ['admin-key-0123456789'], agentKeySecrets: ['s'.repeat(32)] }
    const proxy = await startProxy(t, { tokenizer: 'embedded', ...keys }, log)
    const { agent_key: key } = await proxy.post('/sessions', { session_id: 's' })
    const messages = [{ role: 'user', content: PROMPT }]
    const tokens = { model: 'embedded', max_tokens: 4 }
    const bodies = {
      'v1/chat/completions': { ...tokens, messages },
      'v1/completions': { ...tokens, prompt: PROMPT },
      'v1/responses': { model: 'embedded', input: PROMPT },
      'v1/messages': { ...tokens, messages, system: PROMPT },
      'v1beta/models/embedded:generateContent': { contents: [{ role: 'user', parts: [{ text: PROMPT }] }] },
    }
    for (const [path, body] of Object.entries(bodies)) {
      const headers = { 'content-type': 'application/json', authorization: `Bearer ${key}`, 'x-api-key': key }
      const init = { method: 'POST', headers, body: JSON.stringify(body) }
      const response = await fetch(`${proxy.url}/s/${path}`, init)
      t.equal(response.status, 200, path)
      await response.text()
    }
    const { turns } = await proxy.get('/sessions/s')
    await proxy.server.stop(0)
    const events = lines.map((line) => JSON.parse(line))
    for (const event of ['request_accepted', 'turn_dispatched', 'turn_ended', 'response_delivered'])
      t.equal(events.filter((line) => line.event === event).length, Object.keys(bodies).length, event)
    const text = lines.join('')
    t.notMatch(text, PROMPT)
    t.notMatch(text, key)
    t.notMatch(text, keys.adminKeys[0]!)
    for (const { completion_text: completion } of turns) t.notOk(text.includes(JSON.stringify(completion)))
  },
)

t.test('errors of a worker of version 1 are in no log', async (t) => {
  const log = createLogger()
  const proxy = await startProxy(t, { mode: 'relay' }, log.logger)
  const url = `${proxy.url.replace('http', 'ws')}/ws/worker`
  await V1Worker.connect(url, 'old', ({ messages }) =>
    messages[0]?.content === 'calls' ? { tool_calls: PROMPT } : { error: `cannot sample after: ${PROMPT}` },
  )
  const sendRequest = (content: string) =>
    proxy.post('/s/v1/chat/completions', { model: 'm', messages: [{ role: 'user', content }] })
  t.match((await sendRequest('x')).error.message, PROMPT)
  t.ok((await sendRequest('calls')).error)
  t.match(log.lines.join(''), /engine_failed/)
  t.notMatch(log.lines.join(''), PROMPT)
})
