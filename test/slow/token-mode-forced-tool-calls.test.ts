/**
 * In token mode, an agent that forces a tool call gets one: the engine is constrained to a JSON schema, and its
 * completion is parsed as calls.
 */
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { getEmbeddedModelFolder } from '../../src/embedded/engine/embedded-model.ts'
import { loadTokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { startProxy } from '../helpers/proxy.ts'
import { type IncomingRequest, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

const tokenizer = loadTokenizer(getEmbeddedModelFolder())
const END = tokenizer.eosTokenId!

/** Starts an engine with vLLM's wire format that always writes `text`. */
async function startWriter(t: Test, text: string, version = '0.12.0') {
  const ids = [...tokenizer.encode(text), END]
  const server = await startScriptedServer(({ method, path, body }: IncomingRequest, response) => {
    if (method === 'GET') {
      if (path === '/health') response.end()
      else if (path === '/version') sendJson(response, { version })
      else
        sendJson(response, {
          object: 'list',
          data: [{ id: 'm', object: 'model', owned_by: 'vllm', max_model_len: 4096 }],
        })
      return
    }
    // The engine has no chat template, and its logprobs mode cannot be measured.
    if (body.messages) return sendJson(response, {}, 400)
    if (path === '/tokenize') return sendJson(response, { tokens: tokenizer.encode(body.prompt) })
    const choice = {
      index: 0,
      text: '',
      finish_reason: 'stop',
      prompt_token_ids: body.prompt,
      token_ids: ids,
      logprobs: { tokens: ids.map(String), token_logprobs: ids.map(() => -0.5) },
    }
    const usage = { prompt_tokens: body.prompt.length, completion_tokens: ids.length }
    sendJson(response, { id: 'x', object: 'text_completion', model: 'm', choices: [choice], usage })
  })
  t.teardown(() => server.close())
  const proxy = await startProxy(t, { engineUrls: [server.url], engineKind: 'vllm', tokenizer: 'embedded' })
  const client = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0 })
  const sentBodies = () =>
    server.requests
      .filter(({ method, path }) => method === 'POST' && path === '/v1/completions')
      .map(({ body }) => body)
  return { proxy, client, sentBodies }
}

/** A strict tool, as the SDK's helpers make them: the SDK parses its arguments. */
function tool(name: string, properties: Record<string, object>) {
  const parameters = { type: 'object', properties, required: Object.keys(properties) }
  return { type: 'function' as const, function: { name, strict: true, parameters } }
}

const weather = tool('weather', { city: { type: 'string' } })
const clock = tool('clock', {})
const messages = [{ role: 'user' as const, content: 'Weather in Oslo?' }]
const ONE_CALL = '[{"name": "weather", "parameters": {"city":  "Oslo"}}]'

t.test("openai's own parse helper gets the named function", async (t) => {
  const { client, proxy, sentBodies } = await startWriter(t, ONE_CALL)
  const completion = await client.chat.completions.parse({
    model: 'm',
    messages,
    tools: [weather, clock],
    tool_choice: { type: 'function', function: { name: 'weather' } },
  })
  const [choice] = completion.choices
  t.equal(choice?.finish_reason, 'tool_calls')
  t.match(choice?.message, {
    content: null,
    tool_calls: [{ function: { arguments: '{"city":  "Oslo"}', parsed_arguments: { city: 'Oslo' } } }],
  })
  const [{ response_format: format, tool_choice: choiceSent }] = sentBodies()
  t.equal(choiceSent, undefined)
  t.match(format, {
    type: 'json_schema',
    json_schema: {
      schema: {
        type: 'array',
        minItems: 1,
        maxItems: 1,
        items: {
          anyOf: [{ properties: { name: { enum: ['weather'] }, parameters: { required: ['city'] } } }],
        },
      },
    },
  })
  const { turns } = await proxy.get('/sessions/s')
  t.equal(turns[0].exact, true)
  t.same(turns[0].completion_token_ids, [...tokenizer.encode(ONE_CALL), END], 'the sampled text is recorded')
})

t.test('a request after a forced call continues from the sampled tokens', async (t) => {
  const { client, proxy, sentBodies } = await startWriter(t, ONE_CALL)
  const tools = [weather]
  const first = await client.chat.completions.create({ model: 'm', messages, tools, tool_choice: 'required' })
  const call = first.choices[0]!.message
  const result = { role: 'tool' as const, tool_call_id: call.tool_calls![0]!.id, content: '7 degrees' }
  await client.chat.completions.create({ model: 'm', messages: [...messages, call, result], tools })
  const [before, after] = sentBodies()
  const sampled = [...before.prompt, ...tokenizer.encode(ONE_CALL), END]
  t.same(after.prompt.slice(0, sampled.length), sampled)
  t.equal(after.response_format, undefined)
  const { turns } = await proxy.get('/sessions/s')
  t.equal(turns[1].annotations.prompt.reason, 'extended')
})

t.test('any of several functions: all are offered, with one call if calls may not be parallel', async (t) => {
  const two = '[{"name": "clock", "parameters": {}}, {"name": "weather", "parameters": {"city": "Oslo"}}]'
  const { client, sentBodies } = await startWriter(t, two)
  const body = { model: 'm', messages, tools: [weather, clock], tool_choice: 'required' as const }
  const { choices } = await client.chat.completions.create(body)
  const calls = choices[0]!.message.tool_calls!.map((call) => call.type === 'function' && call.function.name)
  t.same(calls, ['clock', 'weather'])
  await client.chat.completions.create({ ...body, parallel_tool_calls: false })
  const [free, single] = sentBodies().map(({ response_format: format }) => format.json_schema.schema)
  t.equal(free.items.anyOf.length, 2)
  t.equal(free.maxItems, undefined)
  t.equal(single.maxItems, 1)
})

const MARKUP = '<tool_call>\n{"name": "weather", "arguments": {"city":  "Oslo"}}\n</tool_call>'

t.test(
  "a current engine is constrained to the model's own markup, and its completion is parsed as a call",
  async (t) => {
    const { client, proxy, sentBodies } = await startWriter(t, MARKUP, '0.32.0+cpu')
    const body = { model: 'm', messages, tools: [weather, clock] }
    const { choices } = await client.chat.completions.create({ ...body, tool_choice: 'required' })
    t.match(choices[0]?.message, {
      content: null,
      tool_calls: [{ function: { name: 'weather', arguments: '{"city":  "Oslo"}' } }],
    })
    const [{ response_format: format, structured_outputs: outputs, ...rest }] = sentBodies()
    t.equal(format, undefined)
    t.notOk('tools' in rest || 'call_format' in rest)
    t.match(JSON.parse(outputs.structural_tag), {
      type: 'structural_tag',
      format: {
        type: 'tags_with_separator',
        stop_after_first: false,
        tags: [{ begin: /^<tool_call>\n{"name": "weather"/ }],
      },
    })
    const { turns } = await proxy.get('/sessions/s')
    t.same(turns[0].completion_token_ids, [...tokenizer.encode(MARKUP), END])
    t.equal((await proxy.get('/health')).engines[0].warning, undefined)
  },
)

t.test('strict tools and a limit of one call constrain a current engine', async (t) => {
  const { client, sentBodies } = await startWriter(t, MARKUP, '0.33.0')
  const loose = { type: 'function' as const, function: { name: 'clock' } }
  const body = { model: 'm', messages, tools: [loose] }
  await client.chat.completions.create(body)
  await client.chat.completions.create({ ...body, parallel_tool_calls: false })
  await client.chat.completions.create({ ...body, tools: [weather] })
  const [free, one, strict] = sentBodies().map(({ structured_outputs: outputs }) =>
    outputs === undefined ? undefined : JSON.parse(outputs.structural_tag).format,
  )
  t.equal(free, undefined)
  t.match(one, { type: 'triggered_tags', stop_after_first: true, tags: [{ content: { json_schema: true } }] })
  t.match(strict, {
    stop_after_first: false,
    tags: [{ content: { json_schema: weather.function.parameters } }],
  })
})

t.test('an older engine gets unchanged requests, and what it cannot enforce is reported', async (t) => {
  const { client, proxy, sentBodies } = await startWriter(t, 'No.')
  await client.chat.completions.create({ model: 'm', messages, tools: [weather] })
  t.notOk('structured_outputs' in sentBodies()[0])
  t.match((await proxy.get('/health')).engines[0].warning, /0\.32 or newer.*strict/)
})

t.test('an unconstrained engine may write its own markup', async (t) => {
  const { client } = await startWriter(t, '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>')
  const body = { model: 'm', messages, tools: [clock], tool_choice: 'required' as const }
  const { choices } = await client.chat.completions.create(body)
  t.match(choices[0]?.message.tool_calls, [{ function: { name: 'clock', arguments: '{}' } }])
})

t.test('a choice that cannot be enforced is rejected with the reason', async (t) => {
  const { client, sentBodies } = await startWriter(t, ONE_CALL)
  const getRejection = (extra: object) =>
    client.chat.completions.create({ model: 'm', messages, tools: [weather], ...extra }).then(
      () => ({}),
      (error: unknown) => error,
    )
  const createChoice = (name: string) => ({ tool_choice: { type: 'function', function: { name } } })
  t.match(await getRejection(createChoice('other')), { status: 400, param: 'tool_choice', message: /other/ })
  t.match(await getRejection({ tool_choice: 'required', tools: [] }), { status: 400, param: 'tool_choice' })
  t.match(await getRejection({ tool_choice: 'required', response_format: { type: 'json_object' } }), {
    status: 400,
    param: 'response_format',
  })
  t.equal(sentBodies().length, 0, 'the engine receives no request')
})

t.test('a session may declare that tools are only offered', async (t) => {
  const { client, proxy, sentBodies } = await startWriter(t, 'No.')
  await proxy.post('/sessions', { session_id: 's', sampling_params: { tool_choice: 'auto' } })
  const body = { model: 'm', messages, tools: [weather], tool_choice: 'required' as const }
  const { choices } = await client.chat.completions.create(body)
  t.equal(choices[0]?.message.content, 'No.')
  t.equal(sentBodies()[0].response_format, undefined)
})
