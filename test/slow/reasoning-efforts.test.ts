/** Reasoning efforts that the model rejects, from the agent to the engine, in each mode. */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { run as runDoctor } from '../../src/cli/doctor/run.ts'
import { DOCTOR } from '../../src/commands.ts'
import { loadConfig } from '../../src/proxy/config/load.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { qwen38Error, writeModelWithEfforts } from '../helpers/effort-rules.ts'
import { startEngine } from '../helpers/engine.ts'
import { type FakeVllm, type FakeVllmOptions, startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker, startRelayProxy, untilWorkers } from '../helpers/relay-rig.ts'
import { IS_FULL } from '../helpers/tier.ts'
import { until } from '../helpers/until.ts'

const HELLO = [{ role: 'user', content: 'Hello.' }]

async function startVllm(t: Test, options: FakeVllmOptions = {}): Promise<FakeVllm> {
  const engine = await startFakeVllm({ templateError: qwen38Error, ...options })
  t.teardown(() => engine.close())
  return engine
}

/** Starts a proxy for the engine, which is behind a worker in relay mode. */
async function startProxyFor(
  t: Test,
  mode: 'local' | 'relay',
  engineUrl: string,
  more: Partial<ServeConfig> = {},
) {
  if (mode === 'local') return startProxy(t, { engineUrls: [engineUrl], ...more })
  const proxy = await startRelayProxy(t, more)
  joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engineUrl], workerId: 'w' })
  await untilWorkers(proxy, 'w')
  return proxy
}

async function chat(proxy: TestProxy, session: string, fields: object) {
  const response = await fetch(`${proxy.baseUrl(session)}/chat/completions`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'fake', messages: HELLO, ...fields }),
  })
  return { status: response.status, text: await response.text() }
}

/** Returns the bodies of the engine's chat requests, without those that measure the logprobs mode. */
function getChatBodies({ requests }: Pick<FakeVllm, 'requests'>): Record<string, unknown>[] {
  return requests
    .filter(({ path, body }) => path.endsWith('/chat/completions') && body.messages[0].content === 'Hello.')
    .map(({ body }) => body)
}

function getEfforts(engine: FakeVllm): unknown[] {
  return getChatBodies(engine).map(({ reasoning_effort: effort }) => effort)
}

async function lastTurn(proxy: TestProxy, session: string) {
  const { turns } = await proxy.get(`/sessions/${session}`)
  return turns.at(-1)
}

for (const mode of ['local', 'relay'] as const) {
  for (const stream of IS_FULL ? [false, true] : [mode === 'relay']) {
    const title = `${mode} mode, ${stream ? 'a stream' : 'a complete response'}`
    t.test(`${title}: the engine's error declares its efforts, once`, async (t) => {
      const engine = await startVllm(t)
      const proxy = await startProxyFor(t, mode, engine.url)
      for (const [effort, sent, attempts] of [
        ['high', 'xhigh', ['high', 'xhigh']],
        ['high', 'xhigh', ['xhigh']],
        ['minimal', 'low', ['low']],
      ] as const) {
        const before = getEfforts(engine).length
        const { status, text } = await chat(proxy, 's', { stream, reasoning_effort: effort })
        t.equal(status, 200)
        t.match(text, stream ? '[DONE]' : 'Hello there, agent!')
        t.strictSame(getEfforts(engine).slice(before), attempts)
        const turn = await lastTurn(proxy, 's')
        t.equal(turn.status, 'completed')
        t.strictSame(turn.annotations.reasoning_effort, { requested: effort, sent })
        t.equal(turn.params.reasoning_effort, effort, "the agent's request is recorded")
      }
      await chat(proxy, 's', { stream, reasoning_effort: 'medium' })
      t.equal((await lastTurn(proxy, 's')).annotations.reasoning_effort, undefined)
      const metrics = await (await fetch(`${proxy.url}/metrics`)).text()
      t.match(metrics, 'llm_proxy_reasoning_efforts_adapted_total{requested="high",sent="xhigh"} 2\n')
      t.match(metrics, 'llm_proxy_reasoning_efforts_adapted_total{requested="minimal",sent="low"} 1\n')
    })
  }

  t.test(`${mode} mode: learned efforts are dropped once the engine was unavailable`, async (t) => {
    const engine = await startVllm(t)
    const proxy = await startProxyFor(t, mode, engine.url, { healthIntervalMs: 20 })
    await chat(proxy, 's', { reasoning_effort: 'high' })
    const healthy = async () => {
      const { engines, workers } = await proxy.get('/health')
      return (engines ?? workers)[0].healthy
    }
    engine.fail(true)
    await until(async () => !(await healthy()))
    engine.fail(false)
    await until(healthy)
    await chat(proxy, 's', { reasoning_effort: 'high' })
    t.strictSame(getEfforts(engine), ['high', 'xhigh', 'high', 'xhigh'])
  })
}

/** Rejects chats with this seed, once their effort is accepted. */
const rejectSeedSeven = (body: Record<string, unknown>) =>
  qwen38Error(body) ?? (body.seed === 7 ? 'seed 7 is not available' : undefined)

t.test('an error that is unrelated to efforts is not retried', async (t) => {
  const engine = await startVllm(t, { templateError: rejectSeedSeven })
  const proxy = await startProxyFor(t, 'local', engine.url)
  const { status, text } = await chat(proxy, 's', { reasoning_effort: 'low', seed: 7 })
  t.equal(status, 400)
  t.match(text, 'seed 7 is not available')
  t.strictSame(getEfforts(engine), ['low'])
})

t.test('a request is sent twice at most, and then has the error of its own effort', async (t) => {
  const templateError = ({ reasoning_effort: effort }: Record<string, unknown>) =>
    effort === 'low' ? undefined : `Unsupported reasoning effort: ${effort}`
  const engine = await startVllm(t, { templateError })
  const proxy = await startProxyFor(t, 'local', engine.url)
  const sendRequest = () => chat(proxy, 's', { reasoning_effort: 'high' })
  const { status, text } = await sendRequest()
  t.equal(status, 400)
  t.match(text, 'Unsupported reasoning effort: high')
  t.strictSame(getEfforts(engine), ['high', 'xhigh'])
  t.equal((await sendRequest()).status, 400)
  t.strictSame(getEfforts(engine).slice(2), ['medium', 'max'], 'both rejected efforts are known')
  t.equal((await sendRequest()).status, 200)
  t.strictSame((await lastTurn(proxy, 's')).annotations.reasoning_effort, { requested: 'high', sent: 'low' })
})

t.test('errors that differ in more than the effort declare nothing', async (t) => {
  const templateError = ({ reasoning_effort: effort }: Record<string, unknown>) =>
    effort === undefined ? undefined : `effort ${effort} and budget ${effort === 'high' ? 1 : 2} conflict`
  const engine = await startVllm(t, { templateError })
  const proxy = await startProxyFor(t, 'local', engine.url)
  for (let repetition = 0; repetition < 2; repetition += 1)
    await chat(proxy, 's', { reasoning_effort: 'high' })
  t.strictSame(getEfforts(engine), ['high', 'xhigh', 'high', 'xhigh'])
})

t.test('the retry keeps its own error where that has another cause', async (t) => {
  const engine = await startVllm(t, { templateError: rejectSeedSeven })
  const proxy = await startProxyFor(t, 'local', engine.url)
  const { status, text } = await chat(proxy, 's', { reasoning_effort: 'high', seed: 7 })
  t.equal(status, 400)
  t.match(text, 'seed 7 is not available')
  t.strictSame(getEfforts(engine), ['high', 'xhigh'])
})

t.test("an effort of the session's sampling_params is adapted like the agent's", async (t) => {
  const engine = await startVllm(t)
  const proxy = await startProxyFor(t, 'local', engine.url)
  await proxy.post('/sessions', { session_id: 's', sampling_params: { reasoning_effort: 'max' } })
  await chat(proxy, 's', { reasoning_effort: 'low' })
  t.strictSame(getEfforts(engine), ['max', 'xhigh'])
  t.strictSame((await lastTurn(proxy, 's')).annotations.reasoning_effort, { requested: 'max', sent: 'xhigh' })
})

t.test('each model of an engine has separate efforts', async (t) => {
  const templateError = (body: Record<string, unknown>) =>
    body.model === 'fake' ? qwen38Error(body) : undefined
  const engine = await startVllm(t, { templateError })
  const proxy = await startProxyFor(t, 'local', engine.url)
  await chat(proxy, 's', { reasoning_effort: 'high' })
  await chat(proxy, 's', { reasoning_effort: 'high', model: undefined })
  t.strictSame(getEfforts(engine), ['high', 'xhigh', 'high'])
})

t.test('none becomes disabled reasoning', async (t) => {
  const engine = await startVllm(t)
  const proxy = await startProxyFor(t, 'local', engine.url)
  const { status } = await chat(proxy, 's', { reasoning_effort: 'none' })
  t.equal(status, 200)
  t.strictSame(getEfforts(engine), ['none', undefined])
  t.strictSame(getChatBodies(engine).at(-1)!.chat_template_kwargs, { enable_thinking: false })
  t.strictSame((await lastTurn(proxy, 's')).annotations.reasoning_effort, { requested: 'none', sent: null })
})

t.test(
  'the rejection of an effort does not reduce what is requested of an unidentified engine',
  async (t) => {
    const engine = await startVllm(t)
    const proxy = await startProxyFor(t, 'local', engine.url, { engineKind: 'openai' })
    await chat(proxy, 's', { reasoning_effort: 'high' })
    t.strictSame(getEfforts(engine), ['high', 'xhigh'])
    t.equal((await lastTurn(proxy, 's')).exact, true)
  },
)

t.test('count_tokens counts the prompt with the effort that is sent', async (t) => {
  const efforts: unknown[] = []
  const chatIds = ({ chat_template_kwargs: kwargs }: Record<string, unknown>) => {
    efforts.push((kwargs as Record<string, unknown>).reasoning_effort)
    return [1, 2, 3]
  }
  const engine = await startVllm(t, { chatIds })
  const proxy = await startProxyFor(t, 'local', engine.url)
  for (let repetition = 0; repetition < 2; repetition += 1)
    t.strictSame(await count(proxy, 'fake'), { input_tokens: 3 })
  t.strictSame(efforts, ['xhigh', 'xhigh'])
  const attempts = engine.requests.filter(({ path, body }) => path === '/tokenize' && body.messages)
  t.equal(attempts.length, 3, 'the first count was rejected once, and declared the efforts')
})

function count(proxy: TestProxy, model: string) {
  const body = { model, messages: HELLO, output_config: { effort: 'high' } }
  return proxy.post('/s/v1/messages/count_tokens', body)
}

t.test('token mode', async (t) => {
  const folder = t.testdir({ model: {} })
  const tokenizer = join(folder, 'model')
  writeModelWithEfforts(tokenizer)
  const { url } = await startEngine(t)
  const tokenProxy = (mode: 'local' | 'relay', db: string) =>
    startProxyFor(t, mode, url, { tokenizer, db: join(folder, db) })
  const fields = { model: 'embedded', max_tokens: 4 }

  const checkTurns = async (t: Test, proxy: TestProxy) => {
    const { reasoning_efforts: efforts } = await proxy.get('/health')
    t.strictSame(efforts, { accepted: ['low', 'medium', 'xhigh'], read: true })
    for (const stream of [false, true]) {
      const { status } = await chat(proxy, 's', { ...fields, stream, reasoning_effort: 'high' })
      t.equal(status, 200)
      const turn = await lastTurn(proxy, 's')
      t.match(turn, { status: 'completed', exact: true })
      t.strictSame(turn.annotations.reasoning_effort, { requested: 'high', sent: 'xhigh' })
    }
  }

  await t.test("local mode: the template's efforts are known from the start", async (t) => {
    const proxy = await tokenProxy('local', 'local.db')
    await checkTurns(t, proxy)
    for (const effort of ['none', 'no_think']) {
      const { status, text } = await chat(proxy, 'r', { ...fields, reasoning_effort: effort })
      t.equal(status, 400, 'the template has no switch for reasoning, and an unknown name is forwarded')
      t.match(text, `Unexpected reasoning effort ${effort}`)
    }
    const { tokens } = await proxy.post('/s/tokenize', { messages: HELLO, reasoning_effort: 'max' })
    t.strictSame(await count(proxy, 'embedded'), { input_tokens: tokens.length })
    const { completion_text: content } = await lastTurn(proxy, 's')
    await proxy.server.stop(1_000)
    const restarted = await tokenProxy('local', 'local.db')
    const messages = [...HELLO, { role: 'assistant', content }, ...HELLO]
    await chat(restarted, 's', { ...fields, messages, reasoning_effort: 'max' })
    t.match((await lastTurn(restarted, 's')).annotations.prompt, { reason: 'extended' })
  })

  await t.test("relay mode: the template's efforts are known from the start", async (t) => {
    await checkTurns(t, await tokenProxy('relay', 'relay.db'))
  })

  await t.test('doctor prints them', async (t) => {
    const written: string[] = []
    const { write } = process.stdout
    process.stdout.write = (text: string | Uint8Array) => written.push(String(text)) > 0
    try {
      await runDoctor({ ...loadConfig(DOCTOR, {}, {}), tokenizer, engineUrls: [url], port: 0, json: true })
    } finally {
      process.stdout.write = write
    }
    const findings: { about: string; seen: string }[] = JSON.parse(written.join(''))
    t.equal(
      findings.find(({ about }) => about === 'reasoning efforts')?.seen,
      'the chat template accepts low, medium, xhigh; minimal becomes low; high becomes xhigh; max becomes xhigh',
    )
  })
})
