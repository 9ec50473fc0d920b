import t, { type Test } from 'tap'
import { openEngines } from '../../src/open-engines.ts'
import { PromptIds } from '../../src/protocol/token-ids/prompt-ids.ts'
import { detectEngineKind } from '../../src/proxy/engines/clients/auto-client.ts'
import { createOpenaiClient } from '../../src/proxy/engines/clients/openai/client.ts'
import { createSglangClient } from '../../src/proxy/engines/clients/sglang/client.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import type { EngineClient } from '../../src/proxy/engines/port/engine-client.ts'
import { chatRequest, collect, completionRequest, fold, noAbort } from '../conformance/engine-client.ts'
import { pull } from '../helpers/event-stream.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { startProxy } from '../helpers/proxy.ts'
import { type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

interface Options {
  url: string
  apiKey?: string
}

async function setUp(
  t: Test,
  createClient: (options: Options) => EngineClient,
  { strict = false, ...options }: { strict?: boolean; apiKey?: string } = {},
) {
  const engine = await startFakeVllm({ strict })
  const client = createClient({ url: `${engine.url}/v1/`, ...options })
  t.teardown(async () => {
    await client.close()
    await engine.close()
  })
  return { client, engine, bodies: () => engine.requests.flatMap(({ body }) => body ?? []) }
}

t.test('a request reports its session to routers in front of engines', async (t) => {
  const engine = await startFakeVllm({})
  t.teardown(() => engine.close())
  for (const engineKind of ['vllm', 'openai', 'auto'] as const) {
    const choice = {
      engineUrls: [engine.url],
      engineKind,
      engineSessionHeader: 'X-Session-ID, X-SMG-Routing-Key',
    }
    const [client] = openEngines(choice)
    t.teardown(() => client!.close())
    const request = { ...chatRequest({}), sessionId: 'harbor/hello-world:0 é' }
    await collect(pull(client!, request, noAbort))
    const { headers } = engine.requests.findLast(({ path }) => path === '/v1/chat/completions')!
    t.equal(headers['x-session-id'], 'harbor%2Fhello-world%3A0%20%C3%A9')
    t.equal(headers['x-smg-routing-key'], headers['x-session-id'])
  }
  const dynamo = {
    engineUrls: [engine.url],
    engineKind: 'vllm',
    engineSessionHeader: 'X-Dynamo-Session-ID',
  } as const
  const [client] = openEngines(dynamo)
  t.teardown(() => client!.close())
  await collect(pull(client!, { ...chatRequest({}), sessionId: 'a', subagent: 'b 1' }, noAbort))
  t.match(
    engine.requests.at(-1)?.headers,
    { 'x-dynamo-session-id': 'a%2Fsubagent%3Ab%201', 'x-dynamo-parent-session-id': 'a' },
    "a sub-agent has a separate session, and Dynamo receives its parent's",
  )
  const [silent] = openEngines({ engineUrls: [engine.url], engineKind: 'vllm', engineSessionHeader: 'none' })
  t.teardown(() => silent!.close())
  await collect(pull(silent!, chatRequest({}), noAbort))
  t.notOk(engine.requests.at(-1)?.headers['x-session-id'])
  for (const engineSessionHeader of ['', 'a b', 'Authorization', 'X-A,']) {
    const choice = { engineUrls: [engine.url], engineKind: 'vllm', engineSessionHeader } as const
    t.throws(() => openEngines(choice), { code: 'config_invalid' }, engineSessionHeader)
  }
})

t.test("llm-d's router gets its own token for the chosen engine back, until the session ends", async (t) => {
  const router = await startScriptedServer(({ headers }, response) => {
    response.setHeader('x-session-token', `pod-of-${headers['x-session-id']}`)
    sendJson(response, { choices: [{ index: 0, message: { content: 'hi' }, finish_reason: 'stop' }] })
  })
  t.teardown(() => router.close())
  for (const kind of ['vllm', 'sglang', 'openai'] as const) {
    const choice = { engineUrls: [router.url], engineKind: kind, engineSessionHeader: 'X-Session-ID' }
    const [client] = openEngines(choice)
    t.teardown(() => client!.close())
    const getSessionToken = async (session: { sessionId: string; subagent?: string }) => {
      await collect(pull(client!, { ...chatRequest({}, false), ...session }, noAbort)).catch(() => {})
      return router.requests.findLast(({ path }) => path === '/v1/chat/completions')?.headers[
        'x-session-token'
      ]
    }
    t.equal(await getSessionToken({ sessionId: 'a' }), undefined)
    t.equal(await getSessionToken({ sessionId: 'a' }), 'pod-of-a')
    t.equal(
      await getSessionToken({ sessionId: 'a', subagent: 'b' }),
      undefined,
      'a sub-agent may be on another engine',
    )
    t.equal(await getSessionToken({ sessionId: 'a', subagent: 'b' }), 'pod-of-a%2Fsubagent%3Ab')
    t.equal(await getSessionToken({ sessionId: 'c' }), undefined)
    client!.endSession!('a')
    t.equal(await getSessionToken({ sessionId: 'a' }), undefined)
    t.equal(await getSessionToken({ sessionId: 'c' }), 'pod-of-c')
  }
})

t.test("vLLM's chat requests, whatever the agent requested", async (t) => {
  const { client, bodies, engine } = await setUp(t, createVllmClient, { apiKey: 'sk-1' })
  const agent = {
    logprobs: null,
    top_logprobs: 5,
    return_token_ids: false,
    include_reasoning: false,
    tools: [],
    tool_choice: 'auto',
    stream: null,
    custom: { kept: true },
  }
  await collect(pull(client, chatRequest(agent), noAbort))
  await collect(
    pull(client, chatRequest({ ...agent, stream_options: { include_usage: false } }, false), noAbort),
  )
  const common = {
    messages: [{ role: 'user', content: 'Hello' }],
    max_tokens: 4,
    logprobs: true,
    return_token_ids: true,
    custom: { kept: true },
  }
  t.same(bodies(), [
    { ...common, stream: true, stream_options: { include_usage: true } },
    { ...common, stream: false },
  ])
  t.equal(engine.requests.at(-1)?.path, '/v1/chat/completions')
  t.equal(engine.requests.at(-1)?.headers.authorization, 'Bearer sk-1')
})

t.test(
  'a vLLM whose streams drop ids is reported at the start, and gets requests without streaming',
  async (t) => {
    const versions: [version: string, isComplete: boolean][] = [
      ['0.12.0', true],
      ['0.10.2', true],
      ['0.13.0', false],
      ['0.32.0', false],
      ['0.1.dev9+gabc', false],
    ]
    for (const [version, isComplete] of versions) {
      const seen: unknown[] = []
      const script: Script = ({ path, body }, response) => {
        if (path === '/version') return sendJson(response, { version })
        if (path === '/v1/models') return sendJson(response, { object: 'list', data: [{ id: 'm' }] })
        if (body === undefined) return void response.end()
        seen.push(body.stream)
        const logprobs = { content: [{ token: 'a', logprob: -1, bytes: null, top_logprobs: [] }] }
        const message = { role: 'assistant', content: 'a' }
        const choice = { index: 0, token_ids: [5], logprobs, finish_reason: 'stop', message }
        sendJson(response, { prompt_token_ids: [1], choices: [choice] })
      }
      const server = await startScriptedServer(script)
      const client = createVllmClient(server)
      t.teardown(async () => {
        await client.close()
        await server.close()
      })
      await client.checkHealth(noAbort)
      t.match(
        client.warning ?? '',
        isComplete ? /vLLM 0\.1\d.*upgrade it to 0\.13, or use token mode/ : /^$|^it is vLLM 0\.13\.0, older/,
        version,
      )
      t.strictSame(fold(await collect(pull(client, chatRequest({}, true), noAbort))).tokenIds, [5])
      t.strictSame(seen, [!isComplete], version)
    }
  },
)

t.test('messages that are serialized already are sent unchanged', async (t) => {
  for (const createClient of [createVllmClient, createOpenaiClient]) {
    const { client, bodies } = await setUp(t, createClient)
    const request = chatRequest({})
    await collect(pull(client, request, noAbort))
    const messagesJson = [Buffer.from('{"content": "Hello", "role": "user"}')]
    await collect(pull(client, { ...request, messagesJson }, noAbort))
    const [serialized, forwarded] = bodies()
    t.strictSame(forwarded, serialized)
  }
  const { client, bodies } = await setUp(t, createVllmClient)
  const messagesJson = [Buffer.from('{"role":"user","content":"Hello"}')]
  const promptTokenIds = PromptIds.of(1, 2)
  await collect(pull(client, { ...chatRequest({}), promptTokenIds, messagesJson }, noAbort))
  t.strictSame([bodies()[0]?.messages, bodies()[0]?.prompt], [undefined, [1, 2]], 'ids replace them')
})

t.test('an agent that requests logprobs keeps its number of alternatives', async (t) => {
  const { client, bodies } = await setUp(t, createVllmClient)
  await collect(pull(client, chatRequest({ logprobs: true, top_logprobs: 5 }), noAbort))
  await collect(pull(client, completionRequest({ prompt: 'a', logprobs: 3 }), noAbort))
  await collect(pull(client, completionRequest({ prompt: 'a', logprobs: null }), noAbort))
  t.match(bodies(), [{ logprobs: true, top_logprobs: 5 }, { logprobs: 3 }, { logprobs: 0 }])
})

t.test('a completion request has its limit under the older name', async (t) => {
  const { client, bodies, engine } = await setUp(t, createVllmClient)
  const request = completionRequest({ prompt: [1, 2], max_tokens: null, max_completion_tokens: 3 }, false)
  const completion = fold(await collect(pull(client, request, noAbort)))
  t.equal(completion.tokenIds.length, 3)
  t.same(bodies(), [{ prompt: [1, 2], max_tokens: 3, logprobs: 0, return_token_ids: true, stream: false }])
  t.equal(engine.requests[0]?.path, '/v1/completions')
})

t.test(
  'an engine that repeatedly rejects unknown fields gets requests without them from then on',
  async (t) => {
    const { client, bodies } = await setUp(t, createOpenaiClient, { strict: true })
    const first = fold(await collect(pull(client, chatRequest({ model: 'fake' }), noAbort)))
    t.equal(first.content, 'Hello there, agent')
    t.equal(first.logprobs.length, 4, 'logprobs are still recorded')
    t.equal(first.tokenIds.length, 0)
    t.equal(client.warning, undefined, 'one rejection proves nothing')
    for (let count = 2; count <= 4; count += 1)
      await collect(pull(client, chatRequest({ model: 'fake' }), noAbort))
    t.same(
      bodies().map((body) => body.return_token_ids),
      [...Array(3).fill([true, true, undefined]).flat(), undefined],
      'three requests were rejected with ids, the fourth omits them',
    )
    t.match(client.warning, /token ids/)
  },
)

t.test('an engine that accepts the fields a second later gets them again', async (t) => {
  for (const createClient of [createOpenaiClient, createSglangClient]) {
    const { client, bodies, engine } = await setUp(t, createClient)
    engine.rejectNext(1)
    await collect(pull(client, chatRequest({ model: 'fake' }, false), noAbort))
    const exact = fold(await collect(pull(client, chatRequest({ model: 'fake' }, false), noAbort)))
    t.ok(exact.tokenIds.length > 0)
    t.equal(bodies().length, 3)
  }
})

t.test('a replaced engine gets all fields again, after a failed check or some requests', async (t) => {
  for (const checks of [true, false]) {
    const { client, engine } = await setUp(t, createOpenaiClient)
    const sendRequest = async () =>
      fold(await collect(pull(client, chatRequest({ model: 'fake' }, false), noAbort)))
    engine.rejectIds(true)
    for (let count = 0; count < 4; count += 1) t.same((await sendRequest()).tokenIds, [])
    t.match(client.warning, /token ids/)
    engine.rejectIds(false)
    t.same((await sendRequest()).tokenIds, [], 'the client cannot know of the change')
    if (checks) {
      engine.fail(true)
      await t.rejects(client.checkHealth(noAbort))
      engine.fail(false)
      await client.checkHealth(noAbort)
    } else for (let count = 0; count < 50 && client.warning; count += 1) await sendRequest()
    t.ok((await sendRequest()).tokenIds.length > 0)
    t.equal(client.warning, undefined)
  }
})

t.test('ids take precedence over streaming for an engine that does not support both', async (t) => {
  const rejection = {
    object: 'error',
    message: 'return_token_ids is not supported with streaming',
    code: 400,
  }
  const server = await startScriptedServer(({ body }, response) => {
    if (body.stream && body.return_token_ids) return sendJson(response, rejection, 400)
    t.notOk(body.stream_options)
    const choice = {
      index: 0,
      message: { content: 'hi' },
      token_ids: [7],
      prompt_token_ids: [1],
      finish_reason: 'stop',
    }
    sendJson(response, { choices: [choice] })
  })
  const client = createOpenaiClient({ url: server.url })
  for (let count = 0; count < 4; count += 1) {
    const completion = fold(await collect(pull(client, chatRequest({ model: 'sglang' }), noAbort)))
    t.same([completion.content, completion.tokenIds], ['hi', [7]])
  }
  t.equal(server.requests.length, 7, 'the client remembers it')
  await client.close()
  await server.close()
})

t.test(
  "an invalid request of the agent is rejected, and does not change the engine's capabilities",
  async (t) => {
    const { client, bodies } = await setUp(t, createOpenaiClient)
    const wrong = chatRequest({ model: 'fake', temperature: -1 })
    await t.rejects(collect(pull(client, wrong, noAbort)), { code: 'engine_rejected', status: 400 })
    await collect(pull(client, chatRequest({ model: 'fake' }), noAbort))
    t.equal(bodies().at(-1).return_token_ids, true)
  },
)

t.test('ids are recovered from an engine that writes them only into the tokens', async (t) => {
  const server = await startScriptedServer(({ body }, response) => {
    t.equal(body.return_tokens_as_token_ids, true)
    const content = [{ token: 'token_id:7', logprob: -1, bytes: [104, 105], top_logprobs: [] }]
    const choice = { index: 0, message: { content: 'hi' }, logprobs: { content }, finish_reason: 'stop' }
    sendJson(response, { choices: [choice] })
  })
  const client = createOpenaiClient({ url: server.url })
  const completion = fold(await collect(pull(client, chatRequest({ logprobs: true }, false), noAbort)))
  t.same(completion.tokenIds, [7])
  t.equal(completion.logprobsContent[0]?.token, 'hi')
  await client.close()
  await server.close()
})

t.test('health', async (t) => {
  const sendRequest = async (script: Script, times = 1) => {
    const server = await startScriptedServer(script)
    const client = createVllmClient({ url: server.url })
    t.teardown(async () => {
      await client.close()
      await server.close()
    })
    for (let time = 1; time < times; time += 1) await client.checkHealth(noAbort)
    return { health: await client.checkHealth(noAbort), paths: server.requests.map(({ path }) => path) }
  }
  const models = { data: [{ id: 'qwen', max_model_len: 4096 }, { id: 'lora' }, {}] }
  const { health, paths } = await sendRequest(({ path }, response) => {
    if (path === '/v1/models') sendJson(response, models)
    else if (path === '/weight_info') sendJson(response, { weight_version: 7 })
    else response.end()
  })
  t.same(health, { models: [{ id: 'qwen', maxModelLen: 4096 }, { id: 'lora' }], weightVersion: '7' })
  t.same(paths, ['/health', '/v1/models', '/weight_info', '/is_paused', '/is_sleeping', '/version'])
  const old = await sendRequest(
    ({ path }, response) => sendJson(response, models, path === '/weight_info' ? 404 : 200),
    2,
  )
  t.same(old.paths.filter((path) => path === '/weight_info').length, 1, 'a missing route is requested once')
  const getUnavailable = async (states: Record<string, boolean>) => {
    const { health } = await sendRequest(({ path }, response) => {
      if (path === '/v1/models') return sendJson(response, models)
      const reply = states[path.slice(1)]
      sendJson(
        response,
        reply === undefined ? {} : { [path.slice(1)]: reply },
        reply === undefined ? 404 : 200,
      )
    })
    return health.unavailable
  }
  t.equal(await getUnavailable({ is_paused: true, is_sleeping: true }), 'paused')
  t.equal(await getUnavailable({ is_sleeping: true }), 'asleep', 'only if it is not paused')
  t.equal(await getUnavailable({ is_paused: false, is_sleeping: false }), undefined)
  const failing: [string, Script][] = [
    [
      'a dead engine behind its server',
      ({ path }, response) => sendJson(response, models, path === '/health' ? 503 : 200),
    ],
    ['a rejected key', ({ path }, response) => sendJson(response, {}, path === '/v1/models' ? 401 : 200)],
    ['an invalid list of models', (_, response) => sendJson(response, { data: 'none' })],
    ['a page', (_, response) => void response.end('<html>')],
  ]
  for (const [title, script] of failing)
    await t.rejects(sendRequest(script), { code: 'engine_failed' }, title)
})

const VLLM_METRICS =
  '# HELP vllm:num_requests_running Requests that run.\nvllm:num_requests_running{engine="0"} 0.0\n'

t.test('the kind of an engine', async (t) => {
  const detect = async (script: Script) => {
    const server = await startScriptedServer(script)
    try {
      return await detectEngineKind({ url: server.url }, noAbort)
    } finally {
      await server.close()
    }
  }
  const models =
    (owner: string): Script =>
    ({ path }, response) =>
      path === '/v1/models'
        ? sendJson(response, { data: [{ id: 'm', owned_by: owner }] })
        : sendJson(response, {}, 404)
  t.equal(await detect(models('vllm')), 'vllm', 'is detected by the owner of its models')
  t.equal(await detect(models('sglang')), 'sglang')
  t.equal(await detect(models('somebody')), 'openai')
  t.equal(
    await detect(({ path }, response) => {
      if (path === '/metrics') return void response.end(VLLM_METRICS)
      sendJson(response, { version: '0.12' }, path === '/version' ? 200 : 401)
    }),
    'vllm',
    'is detected by its version and its metrics, without a key',
  )
  for (const owner of ['tensorrt_llm', 'llamacpp', 'nvidia', 'acme'])
    for (const [metrics, kind] of [
      ['# TYPE trtllm_kv_cache_hit_rate gauge\n', 'openai'],
      ['# HELP other Not of vllm: at all\n', 'openai'],
      [VLLM_METRICS, 'vllm'],
    ] as const) {
      const server: Script = (request, response) => {
        if (request.path === '/metrics') return void response.end(metrics)
        if (request.path === '/version') return sendJson(response, { version: '1' })
        return models(owner)(request, response)
      }
      t.equal(await detect(server), kind, `${owner}'s models, a version, and ${metrics.split('\n')[0]}`)
    }
  for (const route of ['/model_info', '/get_model_info']) {
    const kind = await detect(({ path }, response) =>
      sendJson(response, { is_generation: true }, path === route ? 200 : 401),
    )
    t.equal(kind, 'sglang', "is detected by its server's description of the model")
  }
  await t.rejects(
    detect((_, response) => sendJson(response, {}, 404)),
    { code: 'engine_failed', message: /kind/ },
  )
  const gone = await startScriptedServer(() => {})
  await gone.close()
  await t.rejects(detectEngineKind({ url: gone.url }, noAbort), { code: 'engine_unreachable' })
  await t.rejects(detectEngineKind({ url: 'nonsense' }, noAbort), { code: 'config_invalid' })
})

t.test('an agent that declares its sub-agents has them forwarded to routers', async (t) => {
  const engine = await startFakeVllm({})
  t.teardown(() => engine.close())
  const proxy = await startProxy(t, { engineUrls: [engine.url] })
  const body = JSON.stringify({ model: 'fake', messages: [{ role: 'user', content: 'hi' }] })
  const sessions = { 'subagent:critic': 's/subagent:critic', subagent: 's', main: 's' }
  for (const [agentRole, session] of Object.entries(sessions)) {
    const headers = { 'content-type': 'application/json', 'x-llm-proxy-line': agentRole }
    await (await fetch(`${proxy.baseUrl('s')}/chat/completions`, { method: 'POST', headers, body })).text()
    const { headers: sentHeaders } = engine.requests.findLast(({ path }) => path === '/v1/chat/completions')!
    t.equal(sentHeaders['x-session-id'], encodeURIComponent(session), agentRole)
  }
})

t.test('missing prompt ids of any kind of engine are warned of after a few requests', async (t) => {
  let ids: object = {}
  const server = await startScriptedServer((request, response) => {
    if (request.method === 'GET') return sendJson(response, { data: [{ id: 'm' }] })
    const message = { role: 'assistant', content: 'a' }
    sendJson(response, { ...ids, choices: [{ index: 0, message, token_ids: [1], finish_reason: 'stop' }] })
  })
  t.teardown(() => server.close())
  for (const create of [createVllmClient, createSglangClient, createOpenaiClient]) {
    const client = create({ url: server.url })
    const sendRequest = async () => await collect(pull(client, chatRequest({}, false), noAbort))
    for (let count = 0; count < 3; count += 1) {
      t.equal(client.warning, undefined, `${client.kind}: ${count}`)
      await sendRequest()
    }
    t.match(client.warning, /reports no token ids of prompts/, client.kind)
    ids = { prompt_token_ids: [7] }
    await sendRequest()
    t.equal(client.warning, undefined, `${client.kind}: it reports them again`)
    ids = {}
    await client.close()
  }
})
