import t, { type Test } from 'tap'
import type { EmbeddedEngineOptions } from '../../src/embedded/engine/embedded-engine.ts'
import { Playbook } from '../../src/embedded/engine/playbook.ts'
import { createAutoClient } from '../../src/proxy/engines/clients/auto-client.ts'
import { createSglangClient } from '../../src/proxy/engines/clients/sglang/client.ts'
import { createVllmClient } from '../../src/proxy/engines/clients/vllm/client.ts'
import type { EngineClient } from '../../src/proxy/engines/port/engine-client.ts'
import { findInexactReason } from '../../src/proxy/session/prompts/exactness.ts'
import {
  chatRequest,
  collect,
  completionRequest,
  fold,
  noAbort,
  tokenRequest,
} from '../conformance/engine-client.ts'
import { startEngine } from '../helpers/engine.ts'
import { pull } from '../helpers/event-stream.ts'
import { startFakeSglang } from '../helpers/fake-sglang.ts'
import { startFakeVllm } from '../helpers/fake-vllm.ts'
import { createListingLogger } from '../helpers/listing-logger.ts'
import { startProxy } from '../helpers/proxy.ts'
import { openEventStream, type Script, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

type Create = typeof createVllmClient

/** Creates a client of a server that was started for the test; both are closed with it. */
function createClient<Server extends { url: string; close(): Promise<void> }>(
  t: Test,
  create: Create,
  server: Server,
) {
  const client = create({ url: server.url })
  t.teardown(async () => {
    await client.close()
    await server.close()
  })
  return { client, server }
}

const run = async (client: EngineClient, body: Record<string, unknown>, stream = true) =>
  fold(await collect(pull(client, tokenRequest([5, 6, 7], body, stream), noAbort)))

t.test(
  'a limit above the length that vLLM serves is reduced to it, and a smaller one is sent unchanged',
  async (t) => {
    const { client, server } = createClient(t, createVllmClient, await startFakeVllm())
    await client.checkHealth(noAbort)
    for (const max_tokens of [40_951, 32]) await run(client, { model: 'fake', max_tokens })
    const sampled = server.requests.filter(({ method }) => method === 'POST')
    t.strictSame(
      sampled.map(({ body }) => body.max_tokens),
      [4_096 - 3, 32],
    )
  },
)

t.test("vLLM's requests in token mode", async (t) => {
  const { client, server } = createClient(t, createVllmClient, await startFakeVllm())
  const rendered = {
    tools: [{ type: 'function', function: { name: 'f' } }],
    tool_choice: 'auto',
    chat_template_kwargs: { enable_thinking: false },
    add_generation_prompt: true,
    include_reasoning: false,
    echo: true,
    truncate_prompt_tokens: 1,
    n: 1,
  }
  const sampling = {
    model: 'fake',
    temperature: 0.5,
    seed: 1,
    stop: ['###'],
    stop_token_ids: [2],
    skip_special_tokens: false,
    response_format: { type: 'json_object' },
    structured_outputs: { regex: 'a+' },
    custom: { kept: true },
  }
  const recording = { logprobs: false, top_logprobs: 3, return_token_ids: false, add_special_tokens: true }
  await run(client, { ...rendered, ...sampling, ...recording, max_tokens: 9, max_completion_tokens: 8 })
  await run(client, { logprobs: true, top_logprobs: 3 }, false)
  const [streamed, full] = server.requests
  t.equal(streamed?.path, '/v1/completions')
  t.same(streamed?.body, {
    ...sampling,
    prompt: [5, 6, 7],
    add_special_tokens: false,
    max_tokens: 8,
    logprobs: 0,
    return_token_ids: true,
    return_tokens_as_token_ids: true,
    stream: true,
    stream_options: { include_usage: true },
  })
  t.match(full?.body, { logprobs: 3, stream: false, return_tokens_as_token_ids: true })
  t.notOk('return_token_ids' in full!.body, 'only the first request requests its prompt ids')
  t.notOk('stream_options' in full!.body || 'top_logprobs' in full!.body)
})

/** Returns the script of an unhealthy vLLM that samples one token after the prompt that it saw. */
const createSamplingScript =
  (seen: () => readonly number[]): Script =>
  ({ body, method }, response) => {
    if (method === 'GET') return sendJson(response, { data: [] }, 503)
    const choice = { index: 0, text: '', logprobs: { tokens: ['token_id:9'], token_logprobs: [-1] } }
    const promptIds = body.return_token_ids ? { prompt_token_ids: seen() } : {}
    sendJson(response, {
      choices: [{ ...choice, ...promptIds, finish_reason: 'stop' }],
      usage: { prompt_tokens: seen().length },
    })
  }

t.test('vLLM returns one prompt of 32, and all once it has seen another one', async (t) => {
  let seen = [5, 6, 7]
  const script = createSamplingScript(() => seen)
  const { client, server } = createClient(t, createVllmClient, await startScriptedServer(script))
  const sendRequest = async () => {
    const { start, tokenIds, logprobs } = await run(client, { max_tokens: 1 }, false)
    t.same([[...tokenIds], [...logprobs]], [[9], [-1]])
    return [...start!.promptTokenIds!]
  }
  const listIdRequests = () =>
    server.requests
      .filter(({ method }) => method === 'POST')
      .map(({ body }) => body.return_token_ids === true)
  for (let count = 0; count < 33; count += 1) t.same(await sendRequest(), [5, 6, 7])
  t.same(listIdRequests(), [true, ...Array(31).fill(false), true])
  await client.checkHealth(noAbort).catch(() => {})
  seen = [5, 6, 8]
  t.same(await sendRequest(), seen, 'after a failed health check the prompt ids are requested again')
  t.same(await sendRequest(), seen)
  t.same(
    listIdRequests().slice(-2),
    [true, true],
    'from an engine that saw another prompt they are requested each time',
  )
})

t.test(
  'an unknown prompt of another length fails the request, and the next one requests its prompt ids',
  async (t) => {
    let seen = [5, 6, 7]
    const script = createSamplingScript(() => seen)
    const { client } = createClient(t, createVllmClient, await startScriptedServer(script))
    await run(client, { max_tokens: 1 }, false)
    seen = [1, 5, 6, 7]
    await t.rejects(run(client, { max_tokens: 1 }, false), {
      code: 'engine_failed',
      message: /sampled after 4 tokens, and was sent 3/,
    })
    const { start } = await run(client, { max_tokens: 1 }, false)
    t.same([...start!.promptTokenIds!], [1, 5, 6, 7])
  },
)

t.test('a request without a limit may fill the context', async (t) => {
  const models = [{ id: 'adapter' }, { id: 'base', max_model_len: 100 }, { id: 'small', max_model_len: 2 }]
  const choice = { index: 0, text: 'a', token_ids: [1], finish_reason: 'stop' }
  const script: Script = ({ method }, response) =>
    sendJson(response, method === 'GET' ? { data: models } : { choices: [choice] })
  const { client, server } = createClient(t, createVllmClient, await startScriptedServer(script))
  for (const [model, expected] of [
    ['base', 97],
    ['adapter', 97],
    ['small', 1],
    [undefined, 97],
  ] as const) {
    await run(client, { model, max_tokens: null }, false)
    t.equal(server.requests.at(-1)?.body.max_tokens, expected, `of ${model}`)
  }
  t.equal(server.requests.filter(({ path }) => path === '/v1/models').length, 1, 'the list is requested once')
  models.splice(0, 3, { id: 'base', max_model_len: 50 })
  await client.checkHealth(noAbort)
  await run(client, { max_tokens: null }, false)
  t.equal(server.requests.at(-1)?.body.max_tokens, 47, 'the list is read again with each health check')
  models[0] = { id: 'base' }
  await client.checkHealth(noAbort)
  await t.rejects(run(client, { max_tokens: null }), { code: 'unsupported', param: 'max_tokens' })
})

t.test('the ids that vLLM reports as its prompt are reported, whatever was sent', async (t) => {
  const responses: [object, number[]][] = [
    [{ prompt_token_ids: [1, 5, 6, 7] }, [1, 5, 6, 7]],
    [{ prompt_token_ids: null }, [5, 6, 7]],
  ]
  for (const [fields, expected] of responses) {
    const choice = { index: 0, text: 'a', token_ids: [1], finish_reason: 'stop', ...fields }
    const server = await startScriptedServer((_, response) => sendJson(response, { choices: [choice] }))
    const { client } = createClient(t, createVllmClient, server)
    t.same([...(await run(client, {})).start!.promptTokenIds!], expected)
  }
})

t.test('an agent that requested only logprobs gets no alternatives', async (t) => {
  const top = { 'token_id:5': -0.5, 'token_id:6': -1.5 }
  const logprobs = { tokens: ['token_id:5'], token_logprobs: [-0.5], top_logprobs: [top] }
  const vllm = { choices: [{ index: 0, text: 'a', finish_reason: 'stop', logprobs }] }
  const meta_info = {
    finish_reason: { type: 'stop' },
    completion_tokens: 1,
    output_token_logprobs: [[-0.5, 5, 'a']],
    output_top_logprobs: [[[-0.5, 5, 'a']]],
  }
  const responses: [Create, object][] = [
    [createVllmClient, vllm],
    [createSglangClient, { output_ids: [5], meta_info }],
  ]
  for (const [create, reply] of responses) {
    const server = await startScriptedServer((_, response) => sendJson(response, reply))
    const { client } = createClient(t, create, server)
    const getTops = async (body: Record<string, unknown>) =>
      (await run(client, { max_tokens: 1, logprobs: true, ...body })).logprobsContent.map(
        (entry) => entry.top_logprobs.length,
      )
    t.same(await getTops({}), [0])
    t.same(await getTops({ top_logprobs: 0 }), [0])
    t.same(await getTops({ top_logprobs: 1 }), [1])
  }
})

t.test("vLLM's wire returns the same in token mode as in chat mode, before parsing", async (t) => {
  const text =
    'A queue gives things back in the order in which they came, and a stack in the opposite one. '.repeat(2)
  const rules = [{ name: 'only', when: {}, answer: { content: text } }]
  const options: EmbeddedEngineOptions = { playbook: new Playbook({ rules }) }
  const { engine, url } = await startEngine(t, options)
  const client = createVllmClient({ url })
  t.teardown(() => client.close())
  const body = { messages: [{ role: 'user' as const, content: 'What is a queue?' }], max_tokens: null }
  const ids = await engine.tokenizeChat(body)
  const inChat = fold(await collect(pull(client, chatRequest(body), noAbort)))
  for (const stream of [true, false]) {
    const completion = fold(await collect(pull(client, tokenRequest(ids, body, stream), noAbort)))
    t.same(completion.tokenIds, inChat.tokenIds)
    t.same(completion.logprobs, inChat.logprobs)
    t.same(completion.start?.promptTokenIds, inChat.start?.promptTokenIds)
    t.equal(completion.end?.finishReason, 'stop')
    t.ok(completion.tokenIds.length > 16, 'beyond the default limit of the route')
    t.equal(findInexactReason(completion), null)
  }
})

t.test('a chat of SGLang is requested without streaming, because its streams have no ids', async (t) => {
  const { client, server } = createClient(t, createSglangClient, await startFakeSglang())
  for (let count = 0; count < 4; count += 1) {
    const completion = fold(await collect(pull(client, chatRequest({ model: 'fake' }), noAbort)))
    t.equal(completion.content, 'Hello there, agent')
    t.equal(findInexactReason(completion), null)
    t.equal(completion.end?.weightVersion, 'default')
  }
  t.same(
    server.requests.map(({ path, body }) => [path, body.stream]),
    [true, false, true, false, true, false, false].map((stream) => ['/v1/chat/completions', stream]),
    'the client remembers it after three rejections',
  )
  const text = fold(await collect(pull(client, completionRequest({ prompt: [5, 6] }), noAbort)))
  t.equal(findInexactReason(text), null, 'a completion is streamed')
  t.same([server.requests.at(-1)?.path, server.requests.at(-1)?.body.stream], ['/v1/completions', true])
})

t.test("SGLang's requests in token mode", async (t) => {
  const { client, server } = createClient(t, createSglangClient, await startFakeSglang())
  const completion = await run(client, { temperature: 0.5, max_tokens: null, tools: [], custom: 1 })
  t.same(completion.tokenIds, [1_000, 1_001, 1_002, 1_003, 1_004, 2])
  t.match(completion.end, { finishReason: 'stop', stopReason: 2 })
  t.equal(server.requests[0]?.path, '/generate')
  t.same(server.requests[0]?.body, {
    custom: 1,
    session_id: 'session-1',
    input_ids: [5, 6, 7],
    sampling_params: { max_new_tokens: null, temperature: 0.5 },
    return_logprob: true,
    logprob_start_len: -1,
    top_logprobs_num: 0,
    return_text_in_logprobs: false,
    stream: true,
  })
})

t.test("SGLang's defaults in token mode are recorded as far as it reports them", async (t) => {
  for (const [preferred, sampling] of [
    [null, { defaults: { temperature: 1 } }],
    [{ temperature: 0.7, top_k: 20, stop: ['x'] }, { defaults: { temperature: 0.7, top_k: 20 } }],
    [undefined, undefined],
  ] as const) {
    const server = await startFakeSglang({ preferredSamplingParams: preferred })
    const { client } = createClient(t, createSglangClient, server)
    await client.checkHealth(noAbort)
    t.strictSame((await run(client, {})).start!.sampling, sampling)
  }
})

t.test('a limit above the length that SGLang serves is the rest of that length', async (t) => {
  const { client, server } = createClient(t, createSglangClient, await startFakeSglang())
  const getRequestedLimit = async (limit: Record<string, number>) => {
    await run(client, limit)
    return server.requests.at(-1)!.body.sampling_params
  }
  t.same(await getRequestedLimit({ max_tokens: 5_000 }), { max_new_tokens: 5_000 }, 'before any health check')
  await client.checkHealth(noAbort)
  t.same(await getRequestedLimit({ max_tokens: 4_092 }), { max_new_tokens: 4_092 })
  t.same(await getRequestedLimit({ max_tokens: 4_093 }), { max_new_tokens: null })
  t.same(await getRequestedLimit({ max_completion_tokens: 40_957, max_tokens: 5 }), { max_new_tokens: null })
})

t.test('rejections and failures of SGLang keep their message', async (t) => {
  const token = {
    output_ids: [1],
    meta_info: { finish_reason: null, completion_tokens: 1, prompt_tokens: 3 },
  }
  const outcomes: [string, Script, { code: string; [field: string]: unknown }][] = [
    [
      'a rejection',
      (_, response) => sendJson(response, { error: { message: 'top_k must be -1' } }, 400),
      { code: 'engine_rejected', status: 400, message: 'top_k must be -1' },
    ],
    [
      'an error in a stream',
      (_, response) => {
        const send = openEventStream(response)
        send(token)
        send({ error: { message: 'out of memory' } })
        send('[DONE]')
        response.end()
      },
      { code: 'engine_lost', message: /out of memory/ },
    ],
    [
      'a stream that ends early',
      (_, response) => {
        openEventStream(response)(token)
        response.end('data: [DONE]\n\n')
      },
      { code: 'engine_lost' },
    ],
    [
      'a complete response of several samples',
      (_, response) => sendJson(response, [token, token]),
      { code: 'engine_failed' },
    ],
  ]
  for (const [title, script, expected] of outcomes) {
    const { client } = createClient(t, createSglangClient, await startScriptedServer(script))
    await t.rejects(run(client, {}), expected, title)
  }
})

t.test('the health of SGLang', async (t) => {
  const sendRequest = async (script: Script, times = 1) => {
    const { client, server } = createClient(t, createSglangClient, await startScriptedServer(script))
    for (let time = 1; time < times; time += 1) await client.checkHealth(noAbort)
    return { health: await client.checkHealth(noAbort), paths: server.requests.map(({ path }) => path) }
  }
  const data = [{ id: 'qwen', max_model_len: 4096 }]
  const server =
    (infoPath: string, healthStatus = 200): Script =>
    ({ path }, response) => {
      if (path === '/v1/models') sendJson(response, { data })
      else if (path === '/health') response.writeHead(healthStatus).end()
      else if (path === infoPath) sendJson(response, { is_generation: true, weight_version: 'v7' })
      else sendJson(response, { detail: 'Not Found' }, 404)
    }
  const healthy = { models: [{ id: 'qwen', maxModelLen: 4096 }], weightVersion: 'v7' }
  const newer = await sendRequest(server('/model_info'))
  const versions = ['/server_info', '/get_server_info']
  t.same(newer, { health: healthy, paths: ['/ready', '/health', '/v1/models', ...versions, '/model_info'] })
  const older = await sendRequest(server('/get_model_info'), 2)
  t.same(older.health, healthy)
  t.equal(older.paths.filter((path) => path === '/model_info').length, 1, 'a missing route is requested once')
  t.same((await sendRequest(server('none'))).health, { models: healthy.models })
  await t.rejects(sendRequest(server('none', 503)), { code: 'engine_failed' })
})

t.test('an engine of an unknown kind is probed before token mode is rejected', async (t) => {
  const vllm = createClient(t, createAutoClient, await startFakeVllm())
  t.equal(vllm.client.takesTokenIds, true, 'the engine may accept them')
  t.equal(findInexactReason(await run(vllm.client, {})), null)
  const other = createClient(t, createAutoClient, await startFakeVllm({ strict: true }))
  await t.rejects(run(other.client, {}), { code: 'unsupported' })
  t.equal(other.client.takesTokenIds, false)
})

t.test('health reports which engines accept token ids', async (t) => {
  const server = await startFakeVllm()
  t.teardown(() => server.close())
  for (const [engineKind, expected] of [
    ['vllm', true],
    ['openai', false],
  ] as const) {
    const proxy = await startProxy(t, { engineUrls: [server.url], engineKind, db: 'memory' })
    t.match((await proxy.get('/health')).engines, [{ kind: engineKind, takes_token_ids: expected }])
  }
})

t.test('a start with an engine that serves less context than the model has is a warning', async (t) => {
  const { url } = await startEngine(t)
  const { logger, lines } = createListingLogger()
  const config = { engineUrls: [url], tokenizer: 'embedded', contextLength: 1_000_000 }
  const proxy = await startProxy(t, config, logger)
  t.match(
    lines.filter(({ level }) => level === 'warn'),
    [{ event: 'context_length_limited', served_length: Number, model_length: 1_000_000 }],
  )
  t.match(await proxy.get('/health'), { context_length: 1_000_000 })
})
