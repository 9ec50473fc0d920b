/** The embedded engine's bytes equal vLLM's, including every field and null. */
import t from 'tap'
import { ProxyError } from '../../src/base/errors.ts'
import { EmbeddedEngine, type EmbeddedEngineOptions } from '../../src/embedded/engine/embedded-engine.ts'
import { Playbook } from '../../src/embedded/engine/playbook.ts'
import { buildEngineServer } from '../../src/embedded/server/server.ts'

const MESSAGES = [{ role: 'user', content: 'Hello!' }]

function createEngine(response: object, options: EmbeddedEngineOptions = {}): EmbeddedEngine {
  const playbook = new Playbook({ rules: [{ name: 'only', when: {}, answer: response }] })
  return new EmbeddedEngine({ playbook, ...options })
}

async function post(engine: EmbeddedEngine, url: string, body: object, headers: Record<string, string> = {}) {
  const server = buildEngineServer(engine)
  const reply = await server.inject({ method: 'POST', url, payload: body, headers })
  await server.close()
  return reply
}

/** Returns the events of a stream, `[DONE]` included, without the fields that vary per request. */
function readEvents(body: string): unknown[] {
  return body
    .split('\n\n')
    .filter((event) => event !== '')
    .map((event) => event.slice('data: '.length))
    .map((data) => (data === '[DONE]' ? data : omitHead(JSON.parse(data) as object)))
}

function omitHead(response: object): object {
  const { id: _id, created: _created, ...rest } = response as Record<string, unknown>
  return rest
}

t.test('a chat stream: role chunk, one chunk per token, finish with the last token, done', async (t) => {
  const reply = await post(createEngine({ content: 'Hi!' }), '/v1/chat/completions', {
    messages: MESSAGES,
    stream: true,
  })
  t.equal(reply.headers['content-type'], 'text/event-stream; charset=utf-8')
  const head = { object: 'chat.completion.chunk', model: 'embedded' }
  const chunk = (choice: object) => ({ ...head, choices: [{ index: 0, ...choice }] })
  const middle = { logprobs: null, finish_reason: null, token_ids: null }
  t.strictSame(readEvents(reply.body), [
    {
      ...chunk({ delta: { role: 'assistant', content: '' }, logprobs: null, finish_reason: null }),
      prompt_token_ids: null,
    },
    chunk({ delta: { content: 'Hi' }, ...middle }),
    chunk({ delta: { content: '!' }, ...middle }),
    chunk({ delta: {}, ...middle, finish_reason: 'stop', stop_reason: null }),
    '[DONE]',
  ])
})

t.test(
  'tokens whose text the tool parser buffers are chunks only for clients that request token ids',
  async (t) => {
    const engine = createEngine({ tool_calls: [{ name: 'f', arguments: { a: 1 } }] })
    const tools = [{ type: 'function', function: { name: 'f' } }]
    const body = { messages: MESSAGES, tools, stream: true }
    const plain = readEvents((await post(engine, '/v1/chat/completions', body)).body)
    t.equal(plain.length, 4, 'role, the tool call, finish, done')
    t.match(plain[1], {
      choices: [
        {
          delta: {
            tool_calls: [{ index: 0, type: 'function', function: { name: 'f', arguments: '{"a": 1}' } }],
          },
        },
      ],
    })
    const counted = readEvents(
      (await post(engine, '/v1/chat/completions', { ...body, return_token_ids: true })).body,
    )
    const ids = counted.flatMap(
      (event) => (event as { choices?: [{ token_ids?: number[] }] }).choices?.[0].token_ids ?? [],
    )
    t.equal(
      engine.detokenize(ids),
      '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call><|im_end|>',
    )
  },
)

t.test('a complete chat response has every field that vLLM sends', async (t) => {
  const engine = createEngine({ reasoning: 'Well.', content: 'Hi!' })
  const reply = await post(engine, '/v1/chat/completions', { messages: MESSAGES, return_token_ids: true })
  const promptIds = await engine.tokenizeChat({ messages: [{ role: 'user', content: 'Hello!' }] })
  const ids = await engine.tokenizeText('<think>\nWell.\n</think>\n\nHi!<|im_end|>')
  t.strictSame(omitHead(reply.json()), {
    object: 'chat.completion',
    model: 'embedded',
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: '\n\nHi!',
          refusal: null,
          annotations: null,
          audio: null,
          function_call: null,
          reasoning: '\nWell.\n',
        },
        logprobs: null,
        finish_reason: 'stop',
        stop_reason: null,
        token_ids: ids,
      },
    ],
    service_tier: null,
    system_fingerprint: null,
    usage: {
      prompt_tokens: promptIds.length,
      completion_tokens: ids.length,
      total_tokens: promptIds.length + ids.length,
      prompt_tokens_details: null,
    },
    prompt_logprobs: null,
    prompt_token_ids: promptIds,
    kv_transfer_params: null,
  })
})

t.test('a completion stream has its own head and nulls', async (t) => {
  const engine = createEngine({}, { cannedTokens: 2 })
  const reply = await post(engine, '/v1/completions', { prompt: 'x', stream: true, stream_options: {} })
  const choice = {
    index: 0,
    logprobs: null,
    finish_reason: null,
    stop_reason: null,
    token_ids: null,
    prompt_token_ids: null,
  }
  const head = { object: 'text_completion', model: 'embedded' }
  t.strictSame(readEvents(reply.body), [
    { ...head, choices: [{ ...choice, text: 'The' }], usage: null },
    { ...head, choices: [{ ...choice, text: '', finish_reason: 'stop' }], usage: null },
    { ...head, choices: [], usage: { prompt_tokens: 1, completion_tokens: 2, total_tokens: 3 } },
    '[DONE]',
  ])
})

t.test('one prompt may be in a list, several are rejected', async (t) => {
  const engine = createEngine({}, { cannedTokens: 2 })
  for (const prompt of [['x'], [[5, 6]], 'x', [5, 6]]) {
    t.equal((await post(engine, '/v1/completions', { prompt })).statusCode, 200, JSON.stringify(prompt))
  }
  for (const prompt of [['x', 'y'], [[5], [6]], [], null]) {
    const reply = await post(engine, '/v1/completions', { prompt })
    t.match(reply.json(), { error: { type: 'BadRequestError', code: 400 } }, JSON.stringify(prompt))
  }
})

t.test('tokens are written as ids on request', async (t) => {
  const engine = createEngine({ content: 'Hi!' })
  const ids = await engine.tokenizeText('Hi!<|im_end|>')
  const body = { messages: MESSAGES, logprobs: true, return_tokens_as_token_ids: true }
  const { choices } = (await post(engine, '/v1/chat/completions', body)).json()
  const written = choices[0].logprobs.content.map(({ token }: { token: string }) => token)
  t.same(
    written,
    ids.map((id) => `token_id:${id}`),
  )
})

t.test('the client determines the id, in the header or else in the body', async (t) => {
  const engine = createEngine({ content: 'Hi!' })
  const body = { messages: MESSAGES, request_id: 'from-body' }
  t.equal((await post(engine, '/v1/chat/completions', body)).json().id, 'chatcmpl-from-body')
  const headers = { 'x-request-id': 'from-header' }
  t.equal((await post(engine, '/v1/chat/completions', body, headers)).json().id, 'chatcmpl-from-header')
})

t.test('a failure after the first event is an event in the stream', async (t) => {
  const engine = failAfterFirstBatch(new EmbeddedEngine({ cannedTokens: 100 }))
  const reply = await post(engine, '/v1/chat/completions', { messages: MESSAGES, stream: true })
  t.equal(reply.statusCode, 200)
  t.same(readEvents(reply.body).slice(-2), [
    { error: { message: 'out of memory', type: 'InternalServerError', param: null, code: 502 } },
    '[DONE]',
  ])
})

/** Returns an engine that fails after its first batch. */
function failAfterFirstBatch(engine: EmbeddedEngine): EmbeddedEngine {
  async function generate(...[request, sink, signal]: Parameters<EmbeddedEngine['generate']>): Promise<void> {
    let isFirst = true
    const write: typeof sink.write = (batch) => {
      if (!isFirst) throw new ProxyError('engine_failed', 'out of memory')
      isFirst = false
      return sink.write(batch)
    }
    await engine.generate(request, { write }, signal)
  }
  return new Proxy(engine, {
    get: (target, name) => (name === 'generate' ? generate : Reflect.get(target, name, target)),
  })
}

t.test('broken JSON and unknown paths', async (t) => {
  const server = buildEngineServer(createEngine({}))
  t.teardown(() => server.close())
  const headers = { 'content-type': 'application/json' }
  const broken = await server.inject({ method: 'POST', url: '/v1/chat/completions', payload: '{', headers })
  t.equal(broken.statusCode, 400)
  t.match(broken.json(), { error: { type: 'BadRequestError', code: 400 } })
  t.same((await server.inject('/nowhere')).json(), { detail: 'Not Found' })
})

t.test('text, messages and ids are converted into each other', async (t) => {
  const engine = createEngine({})
  const text = await post(engine, '/tokenize', { prompt: 'Hello there', return_token_strs: true })
  const ids = await engine.tokenizeText('Hello there')
  t.strictSame(text.json(), {
    count: ids.length,
    max_model_len: 131_072,
    tokens: ids,
    token_strs: ['Hello', 'Ġthere'],
  })
  const chat = await post(engine, '/tokenize', { messages: MESSAGES })
  t.same(chat.json().tokens, await engine.tokenizeChat({ messages: [{ role: 'user', content: 'Hello!' }] }))
  t.equal(chat.json().token_strs, null)
  t.same((await post(engine, '/detokenize', { tokens: ids })).json(), { prompt: 'Hello there' })
  t.equal((await post(engine, '/detokenize', { tokens: [99_999] })).statusCode, 400)
  t.equal((await post(engine, '/tokenize', {})).statusCode, 400)
})

t.test('health, version, load and weights are reported', async (t) => {
  const engine = createEngine({}, { weightVersion: 'step-1' })
  const server = buildEngineServer(engine, { version: '0.11.0' })
  t.teardown(() => server.close())
  const health = await server.inject('/health')
  t.same([health.statusCode, health.body], [200, ''])
  t.equal((await server.inject({ method: 'POST', url: '/ping' })).statusCode, 200)
  t.same((await server.inject('/version')).json(), { version: '0.11.0' })
  t.same((await server.inject('/load')).json(), { server_load: 0 })
  t.same((await server.inject('/weight_info')).json(), { weight_version: 'step-1' })
  const update = {
    method: 'POST' as const,
    url: '/update_weight_version',
    payload: { new_version: 'step-2' },
  }
  t.same((await server.inject(update)).json(), { success: true, new_version: 'step-2' })
  t.equal(engine.weightVersion, 'step-2')
  t.equal((await server.inject({ ...update, payload: {} })).statusCode, 400)
})
