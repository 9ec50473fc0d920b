/**
 * Integers above 2^53 reach engines and recorded turns with all of their digits: 64-bit seeds, and bounds of schemas.
 */
import t, { type Test } from 'tap'
import { getEmbeddedModelFolder } from '../../src/embedded/engine/embedded-model.ts'
import type { ServeConfig } from '../../src/proxy/config/options/serve.ts'
import { startEngine } from '../helpers/engine.ts'
import { startFakeSglang } from '../helpers/fake-sglang.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy, type TestProxy } from '../helpers/proxy.ts'
import { joinWorker, startRelayProxy } from '../helpers/relay-rig.ts'
import { until } from '../helpers/until.ts'

const SEED = '9223372036854775807'
const BOUND = '9007199254740993'
const SCHEMA = `{"type":"object","properties":{"a":{"type":"integer","maximum":${BOUND}}}}`
const MESSAGES = '[{"role":"user","content":"Hi"}]'
const LONG_MESSAGES = `[{"role":"user","content":"${'word '.repeat(1_000)}"}]`

/** Bodies of each dialect, with the seed and, where the dialect has them, a schema. */
const DIALECTS: Record<string, { path: string; body(messages: string): string; hasSchema?: boolean }> = {
  'Chat Completions': {
    path: '/v1/chat/completions',
    body: (messages) =>
      `{"model":"m","messages":${messages},"max_tokens":4,"seed":${SEED},` +
      `"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":${SCHEMA}}}}`,
    hasSchema: true,
  },
  Completions: {
    path: '/v1/completions',
    body: () => `{"model":"m","prompt":"Hi","max_tokens":4,"seed":${SEED}}`,
  },
  Responses: {
    path: '/v1/responses',
    body: (messages) =>
      `{"model":"m","input":${messages},"max_output_tokens":16,"seed":${SEED},` +
      `"text":{"format":{"type":"json_schema","name":"s","schema":${SCHEMA}}}}`,
    hasSchema: true,
  },
  Messages: {
    path: '/v1/messages',
    body: (messages) => `{"model":"m","messages":${messages},"max_tokens":4,"seed":${SEED}}`,
  },
  Gemini: {
    path: '/v1beta/models/m:generateContent',
    body: () =>
      `{"contents":[{"role":"user","parts":[{"text":"Hi"}]}],"generationConfig":{"maxOutputTokens":4,"seed":${SEED},` +
      `"responseMimeType":"application/json","responseJsonSchema":${SCHEMA}}}`,
    hasSchema: true,
  },
}

async function post(url: string, body: string): Promise<Response> {
  return fetch(url, { method: 'POST', headers: { 'content-type': 'application/json' }, body })
}

/** Returns the JSON of a session and its turns from the sessions API. */
const getSessionText = async (proxy: TestProxy, session: string) => {
  const response = await fetch(`${proxy.url}/sessions/${session}`)
  return response.text()
}

/** Sends each dialect's body, short and long, and checks what the engine received and what is recorded. */
async function checkDialects(
  t: Test,
  proxy: TestProxy,
  engine: { requests: { method: string; text: string }[] },
  seedField = 'seed',
): Promise<void> {
  for (const [name, { path, body, hasSchema }] of Object.entries(DIALECTS)) {
    for (const messages of [MESSAGES, LONG_MESSAGES]) {
      const session = `${name.replaceAll(' ', '-')}-${messages.length}`
      const response = await post(`${proxy.url}/${session}${path}`, body(messages))
      t.equal(response.status, 200, `${name}: ${await response.text()}`)
      const sentText = engine.requests.filter(({ method }) => method === 'POST').at(-1)!.text
      t.match(sentText, `"${seedField}":${SEED}`, `${name}: the engine's seed`)
      if (hasSchema)
        t.match(
          sentText,
          `maximum${sentText.includes('\\"') ? '\\' : ''}":${BOUND}`,
          `${name}: a schema's bound`,
        )
      t.match(await getSessionText(proxy, session), `"seed":${SEED}`, `${name}: recorded`)
    }
  }
}

async function startVllmProxy(t: Test, options: Partial<ServeConfig> = {}) {
  const engine = await startFakeVllm()
  const proxy = await startProxy(t, { engineUrls: [engine.url], engineKind: 'vllm', ...options })
  t.teardown(() => engine.close())
  return { engine, proxy }
}

t.test('each dialect forwards and records them in chat mode', async (t) => {
  const { engine, proxy } = await startVllmProxy(t)
  await checkDialects(t, proxy, engine)
})

t.test('each dialect forwards and records them in token mode', async (t) => {
  const { engine, proxy } = await startVllmProxy(t, { tokenizer: getEmbeddedModelFolder() })
  await checkDialects(t, proxy, engine)
})

t.test('a worker forwards them', async (t) => {
  const engine = await startFakeVllm()
  const proxy = await startRelayProxy(t)
  joinWorker(t, { proxyUrls: [proxy.url], engineUrls: [engine.url], engineKind: 'vllm' })
  t.teardown(() => engine.close())
  await until(async () => (await proxy.get('/health')).workers?.length === 1)
  await checkDialects(t, proxy, engine)
})

t.test('SGLang gets the seed under its own name', async (t) => {
  const engine = await startFakeSglang()
  const proxy = await startProxy(t, {
    engineUrls: [engine.url],
    engineKind: 'sglang',
    tokenizer: getEmbeddedModelFolder(),
  })
  t.teardown(() => engine.close())
  const { path, body } = DIALECTS['Chat Completions']!
  t.equal((await post(`${proxy.url}/s${path}`, body(MESSAGES))).status, 200)
  t.match(engine.requests.at(-1)!.text, `"sampling_seed":${SEED}`)
})

t.test("a session's seed overrides the agent's, is echoed, and is the one in rows", async (t) => {
  const { engine, proxy } = await startVllmProxy(t)
  const body = `{"session_id":"s","sampling_params":{"seed":${SEED},"temperature":0.50,"max_tokens":4}}`
  t.equal((await post(`${proxy.url}/sessions`, body)).status, 200)
  const request = `{"model":"m","messages":${MESSAGES},"seed":1}`
  t.equal((await post(`${proxy.url}/s/v1/chat/completions`, request)).status, 200)
  t.match(engine.requests.at(-1)!.text, `"seed":${SEED}`)
  t.match(await getSessionText(proxy, 's'), `"sampling_params":{"seed":${SEED},"temperature":0.5`)
  const rows = await fetch(`${proxy.url}/sessions/s/trajectories?details=sampling`)
  t.match(await rows.text(), `"seed":${SEED}`)
})

t.test('each choice of a request with n has a separate seed', async (t) => {
  const { engine, proxy } = await startVllmProxy(t)
  const body = `{"model":"m","messages":${MESSAGES},"n":2,"max_tokens":4,"seed":${BOUND}}`
  t.equal((await post(`${proxy.url}/s/v1/chat/completions`, body)).status, 200)
  const seeds = engine.requests.flatMap(({ text }) => /"seed":(\d+)/.exec(text)?.[1] ?? []).sort()
  t.strictSame(seeds, [BOUND, '9007199254740994'])
})

t.test('the embedded engine draws with all 64 bits', async (t) => {
  const engine = await startEngine(t)
  // A JavaScript number rounds both to 9007199254740992.
  const draw = async (seed: string) => {
    const body = `{"model":"embedded","messages":${MESSAGES},"max_tokens":32,"temperature":2.0,"seed":${seed}}`
    const { choices } = (await (await post(`${engine.url}/v1/chat/completions`, body)).json()) as {
      choices: { message: { content: string } }[]
    }
    return choices[0]!.message.content
  }
  t.equal(await draw('9007199254740993'), await draw('9007199254740993'))
  t.not(await draw('9007199254740993'), await draw('9007199254740995'))
})

t.test("a seed that is not an integer is rejected with the field's name", async (t) => {
  const { proxy } = await startVllmProxy(t)
  for (const seed of ['1.5', '"a"', '{"rawJSON":"1"}', '[1]']) {
    const response = await post(
      `${proxy.url}/s/v1/chat/completions`,
      `{"model":"m","messages":${MESSAGES},"seed":${seed}}`,
    )
    t.equal(response.status, 400, seed)
    t.match(await response.json(), { error: { param: 'seed', message: /must be integer/ } })
  }
})
