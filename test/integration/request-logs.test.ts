/** The log lines of a request's life, and the line per turn of `--log-requests`. */
import t, { type Test } from 'tap'
import type { Logger } from '../../src/base/logger.ts'
import { EmbeddedEngine } from '../../src/embedded/engine/embedded-engine.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startEngine } from '../helpers/engine.ts'
import { createListingLogger, type LogLine } from '../helpers/listing-logger.ts'
import { startProxy } from '../helpers/proxy.ts'
import { joinWorker, untilWorkers } from '../helpers/relay-rig.ts'
import { sendJson, startScriptedServer } from '../helpers/scripted-server.ts'
import { until } from '../helpers/until.ts'

const QUESTION = [
  { role: 'system', content: 'You count.' },
  { role: 'user', content: 'Count to three.' },
]

/** An engine that samples nothing before its gate is open. */
class GatedEngine extends EmbeddedEngine {
  gate = Promise.resolve()

  override async generate(...args: Parameters<EmbeddedEngine['generate']>): Promise<void> {
    await this.gate
    await super.generate(...args)
  }
}

async function startFailingEngine(t: Test): Promise<string> {
  const models = { data: [{ id: 'embedded', owned_by: 'vllm' }] }
  const engine = await startScriptedServer((request, response) =>
    request.method === 'GET' ? sendJson(response, models) : sendJson(response, { error: 'no memory' }, 500),
  )
  t.teardown(() => engine.close())
  return engine.url
}

interface RequestOptions {
  messages?: readonly object[]
  stream?: boolean
  headers?: Record<string, string>
}

/**
 * Starts a proxy.
 * @returns it, the lines of its log, and a function that sends a request to a session and returns the response's text
 */
async function start(t: Test, config: Partial<ServeConfig>, isLevelEnabled: Logger['isLevelEnabled']) {
  const { logger, lines } = createListingLogger()
  const logged = { ...logger, ...(isLevelEnabled && { isLevelEnabled }) }
  const proxy = await startProxy(t, { engineKind: 'vllm', ...config }, logged)
  const sendRequest = async (
    sessionId: string,
    { messages = QUESTION, stream = false, headers = {} }: RequestOptions,
  ) => {
    const response = await fetch(`${proxy.baseUrl(sessionId)}/chat/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...headers },
      body: JSON.stringify({ model: 'embedded', messages, stream, max_tokens: 4 }),
    })
    return await response.text()
  }
  return { proxy, lines, sendRequest }
}

/** Returns the lines of each request of a session, in order of arrival, once this many responses have been sent. */
async function getLives(lines: readonly LogLine[], sessionId: string, count: number): Promise<LogLine[][]> {
  const own = () => lines.filter(({ session_id }) => session_id === sessionId)
  await until(() => own().filter(({ event }) => event === 'response_delivered').length === count)
  return [...Map.groupBy(own(), ({ request_id }) => request_id).values()]
}

const getEvents = (lines: readonly LogLine[] = []) => lines.map(({ event }) => event)

t.test('at debug each step of a request is one line with its ids', async (t) => {
  const engine = new GatedEngine()
  const { url } = await startEngine(t, engine)
  const { proxy, lines, sendRequest } = await start(t, { engineUrls: [url] }, () => true)
  const getTurns = async (sessionId: string) => (await proxy.get(`/sessions/${sessionId}`)).turns

  t.match(await sendRequest('s', { stream: true }), '[DONE]')
  const { completion_text: content } = (await getTurns('s'))[0]
  const conversation = [...QUESTION, { role: 'assistant', content }]
  await sendRequest('s', { messages: [...conversation, { role: 'user', content: 'Count on.' }] })
  await sendRequest('s', { messages: [...conversation, { role: 'user', content: 'Count back.' }] })
  await sendRequest('s', { messages: [{ role: 'system', content: 'You add.' }, ...QUESTION.slice(1)] })
  const lives = await getLives(lines, 's', 4)
  const turns: { turn_id: string }[] = await getTurns('s')
  const ids = turns.map(({ turn_id }) => turn_id)
  const [streamed, extended, forked, branched] = lives
  const steps = (match: string) => [
    'request_accepted',
    'turn_opened',
    'turn_dispatched',
    match,
    'turn_first_token',
    'turn_committed',
    'turn_ended',
    'response_delivered',
  ]
  t.strictSame(getEvents(streamed), steps('turn_matched'))
  t.strictSame(getEvents(extended), steps('turn_matched'))
  t.strictSame(getEvents(forked), steps('turn_branched'))
  t.strictSame(getEvents(branched), steps('turn_branched'))
  for (const [index, life] of lives.entries()) {
    t.equal(new Set(life.map(({ request_id }) => request_id)).size, 1)
    const turnIds = life.slice(1).map(({ turn_id }) => turn_id)
    t.strictSame(new Set(turnIds), new Set([ids[index]]))
    t.ok(life.every(({ level }) => level === 'debug'))
  }
  t.match(streamed, [
    { dialect: 'chat' },
    { turn_index: 0 },
    { member: url, attempt: 1, queue_ms: 0 },
    { prompt_reason: 'first', reused_tokens: 0, parent_turn_id: undefined },
    { first_token_ms: Number },
    { turn_status: 'completed' },
    {},
    { status: 200, complete: true },
  ])
  const continued = { parent_turn_id: ids[0], reused_tokens: Number(streamed![6]!.prompt_tokens) + 4 }
  t.match(extended![3], { prompt_reason: 'extended', ...continued })
  t.match(forked![3], { prompt_reason: 'forked', ...continued, known_messages: 3 })
  t.match(branched![3], { prompt_reason: 'branched', reused_tokens: 0, known_messages: 0 })

  // The gate stays closed until the retry has joined.
  const gate = Promise.withResolvers<void>()
  engine.gate = gate.promise
  const first = sendRequest('retried', {})
  await until(() =>
    lines.some(({ event, session_id }) => event === 'turn_opened' && session_id === 'retried'),
  )
  const joined = sendRequest('retried', { headers: { 'x-stainless-retry-count': '1' } })
  await until(() => lines.some(({ event }) => event === 'retry_joined'))
  gate.resolve()
  t.equal(await joined, await first)
  t.equal(await sendRequest('retried', { headers: { 'x-stainless-retry-count': '2' } }), await first)
  const [original, join, redelivery] = await getLives(lines, 'retried', 3)
  const [{ turn_id }] = await getTurns('retried')
  t.strictSame(getEvents(original), steps('turn_matched'))
  t.match(original![6], { joined_retries: 1 })
  t.strictSame(getEvents(join), ['request_accepted', 'retry_joined', 'response_delivered'])
  t.match(join!.slice(1), [{ turn_id, retry_count: 1 }, { turn_id }])
  t.strictSame(getEvents(redelivery), ['request_accepted', 'response_redelivered', 'response_delivered'])
  t.match(redelivery!.slice(1), [{ turn_id, retry_count: 2 }, { turn_id }])
})

t.test('a request that waits and fails over has a line of each engine', async (t) => {
  const { url } = await startEngine(t)
  const failing = await startFailingEngine(t)
  const { proxy, lines, sendRequest } = await start(t, { engineUrls: [failing, url] }, () => true)
  await proxy.post('/admin/pause')
  const response = sendRequest('s', {})
  await until(() => lines.some(({ event }) => event === 'turn_queued'))
  await proxy.post('/admin/resume')
  await response
  const [life] = await getLives(lines, 's', 1)
  t.strictSame(getEvents(life), [
    'request_accepted',
    'turn_opened',
    'turn_queued',
    'turn_dispatched',
    'turn_failed_over',
    'turn_dispatched',
    'turn_matched',
    'turn_first_token',
    'turn_committed',
    'turn_ended',
    'response_delivered',
  ])
  t.match(life!.slice(3, 6), [
    { member: failing, attempt: 1, queue_ms: Number },
    { member: failing, code: 'engine_failed', reason: `the engine at ${failing} responded with HTTP 500` },
    { member: url, attempt: 2 },
  ])
  t.match(life![9], { engine: url, attempts: 2, queue_ms: life![5]!.queue_ms })
})

t.test(
  'in relay mode, a turn whose agent has disconnected is logged as aborted and undelivered',
  async (t) => {
    const engine = new GatedEngine()
    const { url } = await startEngine(t, engine)
    const { proxy, lines } = await start(t, { mode: 'relay' }, () => true)
    joinWorker(t, { workerId: 'w', proxyUrls: [proxy.url], engineUrls: [url], engineKind: 'vllm' })
    await untilWorkers(proxy, 'w')
    const gate = Promise.withResolvers<void>()
    t.teardown(() => gate.resolve())
    engine.gate = gate.promise
    const agent = new AbortController()
    const body = JSON.stringify({ model: 'embedded', messages: QUESTION })
    const headers = { 'content-type': 'application/json' }
    const request = { method: 'POST', headers, body, signal: agent.signal }
    const response = fetch(`${proxy.baseUrl('s')}/chat/completions`, request)
    await until(() => lines.some(({ event }) => event === 'turn_dispatched'))
    agent.abort()
    await t.rejects(response)
    const ended = await until(() => lines.find(({ event }) => event === 'turn_ended'))
    t.match(ended, { turn_status: 'aborted', code: 'agent_gone', sampled_tokens: 0, attempts: 1 })
    const [life = []] = await getLives(lines, 's', 1)
    t.match(
      life.find(({ event }) => event === 'turn_dispatched'),
      { member: 'w' },
    )
    t.match(
      life.find(({ event }) => event === 'response_delivered'),
      { complete: false },
    )
  },
)

t.test('with --log-requests a turn is one line at info, and its steps are not written', async (t) => {
  const { url } = await startEngine(t)
  const config = { engineUrls: [url], logRequests: true }
  const { proxy, lines, sendRequest } = await start(t, config, undefined)
  await sendRequest('s', {
    headers: { 'x-llm-proxy-line': 'subagent:scout', 'x-stainless-retry-count': '1' },
  })
  await proxy.server.stop(0)
  const [turn, ...others] = lines.filter(({ session_id }) => session_id === 's')
  t.strictSame(others, [])
  t.match(turn, {
    level: 'info',
    message: 'Turn ended',
    event: 'turn_ended',
    session_id: 's',
    request_id: String,
    turn_id: String,
    turn_index: 0,
    agent_role: 'subagent:scout',
    dialect: 'chat',
    engine: url,
    turn_status: 'completed',
    code: undefined,
    prompt_tokens: 22,
    reused_tokens: 0,
    sampled_tokens: 4,
    queue_ms: 0,
    first_token_ms: Number,
    total_ms: Number,
    attempts: 1,
    retry_count: 1,
    joined_retries: 0,
    prompt_reason: 'first',
  })
})

t.test('without --log-requests a logger that writes no debug lines gets none of a request', async (t) => {
  const { url } = await startEngine(t)
  const { lines, sendRequest } = await start(t, { engineUrls: [url] }, (level) => level !== 'debug')
  await sendRequest('s', {})
  t.strictSame(
    lines.filter(({ session_id }) => session_id === 's'),
    [],
  )
})
