/** A model whose files have a `response_template`, which decides how responses are parsed. */
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import OpenAI from 'openai'
import t, { type Test } from 'tap'
import { getEmbeddedModelFolder } from '../../src/embedded/engine/embedded-model.ts'
import { loadTokenizer } from '../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { startProxy } from '../helpers/proxy.ts'
import { type IncomingRequest, sendJson, startScriptedServer } from '../helpers/scripted-server.ts'

const published = JSON.parse(
  readFileSync(join(import.meta.dirname, '../unit/proxy/tokens/responses/fixtures/published.json'), 'utf8'),
) as { templates: Record<string, object> }
const tokenizer = loadTokenizer(getEmbeddedModelFolder())
const END = tokenizer.eosTokenId!
const messages = [{ role: 'user' as const, content: 'Weather in Oslo?' }]
const tool = {
  type: 'function' as const,
  function: { name: 'weather', parameters: { type: 'object', properties: { days: { type: 'integer' } } } },
}
/** Markup of no known family, so that only the template can have parsed it. */
const template = {
  start_anchor: '<|im_start|>assistant\n',
  fields: {
    reasoning_content: { open: '[thought]', close: '[said]' },
    tool_calls: {
      open_pattern: '\\[call (?P<name>\\w+)\\]',
      close: '[end]',
      repeats: true,
      content: 'kv-lines',
      transform: { type: 'function', function: { name: '{name}', arguments: '{content}' } },
    },
    content: {},
  },
}
const COMPLETION = '[thought]It is cold.[said]\nOne moment.\n[call weather]\ndays: 3\n[end]'

/** Creates a model with this template, and an engine that returns `text`, one token per chunk if it streams. */
async function start(t: Test, responseTemplate: object, text: string, toolParser = 'auto') {
  const model = mkdtempSync(join(tmpdir(), 'response-template-'))
  t.teardown(() => rmSync(model, { recursive: true }))
  cpSync(getEmbeddedModelFolder(), model, { recursive: true })
  const file = join(model, 'tokenizer_config.json')
  const config = JSON.parse(readFileSync(file, 'utf8')) as object
  writeFileSync(file, JSON.stringify({ ...config, response_template: responseTemplate }))
  const ids = [...tokenizer.encode(text), END]
  const server = await startScriptedServer(({ method, path, body }: IncomingRequest, response) => {
    if (method === 'GET' && path === '/health') return void response.end()
    if (method === 'GET' && path === '/version') return sendJson(response, { version: '0.12.0' })
    if (method === 'GET')
      return sendJson(response, { object: 'list', data: [{ id: 'm', object: 'model', max_model_len: 4096 }] })
    // The engine has no chat template, and its logprobs mode cannot be measured.
    if (body.messages) return sendJson(response, {}, 400)
    if (path === '/tokenize') return sendJson(response, { tokens: tokenizer.encode(body.prompt) })
    const createChoice = (some: readonly number[], isLast: boolean) => ({
      index: 0,
      text: '',
      finish_reason: isLast ? 'stop' : null,
      token_ids: some,
      prompt_token_ids: body.prompt,
      logprobs: { tokens: some.map(String), token_logprobs: some.map(() => -0.5) },
    })
    const usage = { prompt_tokens: body.prompt.length, completion_tokens: ids.length }
    const full = { id: 'x', object: 'text_completion', model: 'm' }
    if (!body.stream) return sendJson(response, { ...full, choices: [createChoice(ids, true)], usage })
    response.writeHead(200, { 'content-type': 'text/event-stream' })
    for (const [index, id] of ids.entries()) {
      const chunk = { ...full, choices: [createChoice([id], index === ids.length - 1)] }
      response.write(`data: ${JSON.stringify(chunk)}\n\n`)
    }
    response.end(`data: ${JSON.stringify({ ...full, choices: [], usage })}\n\ndata: [DONE]\n\n`)
  })
  t.teardown(() => server.close())
  const proxy = await startProxy(t, {
    engineUrls: [server.url],
    engineKind: 'vllm',
    tokenizer: model,
    toolParser,
  })
  const client = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0 })
  const health = async () => (await (await fetch(`${proxy.url}/health`)).json()) as { tool_parser: object }
  return { client, health, proxy }
}

const EXPECTED = {
  content: 'One moment.',
  tool_calls: [{ type: 'function', function: { name: 'weather', arguments: '{"days": 3}' } }],
}

t.test('responses are parsed by it, complete and streamed, and health reports it', async (t) => {
  const { client, health, proxy } = await start(t, template, COMPLETION)
  t.match(await health(), { tool_parser: { name: 'response_template', chosen_by: 'response_template' } })
  const full = await client.chat.completions.create({ model: 'm', messages, tools: [tool] })
  t.match(full.choices[0], { finish_reason: 'tool_calls', message: EXPECTED })
  const { choices } = await client.chat.completions
    .stream({ model: 'm', messages, tools: [tool] })
    .finalChatCompletion()
  t.match(choices[0], { finish_reason: 'tool_calls', message: EXPECTED })
  const { turns } = (await (await fetch(`${proxy.url}/sessions/s`)).json()) as { turns: object[] }
  t.match(turns, [
    { exact: true, completion_text: 'One moment.' },
    { exact: true, completion_text: 'One moment.' },
  ])
})

t.test('constrained tool calls are parsed as JSON', async (t) => {
  const { client } = await start(t, template, '[{"name": "weather", "parameters": {"days":3}}]')
  const { choices } = await client.chat.completions.create({
    model: 'm',
    messages,
    tools: [tool],
    tool_choice: 'required',
  })
  t.match(choices[0]!.message.tool_calls, [{ function: { name: 'weather', arguments: '{"days":3}' } }])
})

t.test('--tool-parser overrides the template', async (t) => {
  const { client, health } = await start(t, template, COMPLETION, 'plain')
  t.match(await health(), { tool_parser: { name: 'plain', chosen_by: 'name' } })
  const { choices } = await client.chat.completions.create({ model: 'm', messages, tools: [tool] })
  t.equal(choices[0]!.message.content, COMPLETION)
})

t.test('an unusable template is a warning, and the chat template decides', async (t) => {
  const toolCall = '<tool_call>\n{"name": "weather", "arguments": {"days": 3}}\n</tool_call>'
  const { client, health } = await start(t, { ...template, version: 2 }, toolCall)
  t.match(await health(), {
    tool_parser: { name: 'hermes', warning: /response_template cannot be used: .*version: 2; .* as hermes/ },
  })
  const { choices } = await client.chat.completions.create({ model: 'm', messages, tools: [tool] })
  t.match(choices[0]!.message.tool_calls, EXPECTED.tool_calls)
})

t.test('parsing begins with the part of the response that the prompt contains', async (t) => {
  const { client } = await start(t, published.templates['transformers qwen2']!, ' it is.\n</think>\nCold.')
  const prefix = { role: 'assistant' as const, content: '<think>\nSo' }
  const { choices } = await client.chat.completions.create({
    model: 'm',
    messages: [...messages, prefix],
    ...{ continue_final_message: true, add_generation_prompt: false },
  })
  t.match(choices[0]!.message, { content: 'Cold.', reasoning_content: ' it is.' })
})
