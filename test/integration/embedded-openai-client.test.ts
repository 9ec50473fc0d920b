/** A real OpenAI client works with a served embedded engine as it does with vLLM. */
import OpenAI, { type APIError } from 'openai'
import type { ChatCompletionMessageParam, ChatCompletionTool } from 'openai/resources/chat/completions'
import t, { type Test } from 'tap'
import { EmbeddedEngine, type EmbeddedEngineOptions } from '../../src/embedded/engine/embedded-engine.ts'
import { buildEngineServer, type EngineServer } from '../../src/embedded/server/server.ts'
import { eventually } from '../conformance/engine-client.ts'

const CALCULATOR: ChatCompletionTool = {
  type: 'function',
  function: {
    name: 'calculator',
    parameters: { type: 'object', properties: { expression: { type: 'string' } }, required: ['expression'] },
  },
}

async function serve(
  t: Test,
  options: EmbeddedEngineOptions = {},
): Promise<{ client: OpenAI; server: EngineServer }> {
  const server = buildEngineServer(new EmbeddedEngine(options))
  const url = await server.listen({ port: 0, host: '127.0.0.1' })
  t.teardown(() => server.close())
  return { server, client: new OpenAI({ baseURL: `${url}/v1`, apiKey: 'none', maxRetries: 0 }) }
}

t.test('a chat request gets a response', async (t) => {
  const { client, server } = await serve(t)
  const response = await client.chat.completions.create({
    model: 'embedded',
    messages: [{ role: 'user', content: 'Hello!' }],
    seed: 1,
    max_tokens: 40,
  })
  const [choice] = response.choices
  t.equal(choice?.message.role, 'assistant')
  t.type(choice?.message.content, 'string')
  t.equal(response.usage?.total_tokens, response.usage!.prompt_tokens + response.usage!.completion_tokens)
  t.match(server.counters, { running: 0, served: 1, aborted: 0, failed: 0 })
})

t.test('a stream carries the content of the complete response', async (t) => {
  const { client } = await serve(t)
  const request = {
    model: 'embedded',
    messages: [{ role: 'user' as const, content: 'Tell me about Ada.' }],
    seed: 3,
    max_tokens: 60,
    logprobs: true,
    return_token_ids: true,
  }
  const full = (await client.chat.completions.create(request)) as VllmCompletion
  const stream = await client.chat.completions.create({
    ...request,
    stream: true,
    stream_options: { include_usage: true },
  })
  const chunks: VllmChunk[] = []
  for await (const chunk of stream) chunks.push(chunk as VllmChunk)

  const choices = chunks.flatMap((chunk) => chunk.choices)
  t.equal(choices.map(({ delta }) => delta.content ?? '').join(''), full.choices[0].message.content)
  t.same(
    choices.flatMap(({ token_ids: ids }) => ids ?? []),
    full.choices[0].token_ids,
  )
  t.same(
    choices.flatMap(({ logprobs }) => logprobs?.content ?? []),
    full.choices[0].logprobs?.content,
  )
  t.same(chunks[0]?.prompt_token_ids, full.prompt_token_ids)
  t.equal(choices.at(-1)?.finish_reason, full.choices[0].finish_reason)
  t.match(chunks.at(-1), {
    choices: { length: 0 },
    usage: { completion_tokens: full.usage!.completion_tokens },
  })
})

t.test('a tool loop runs to its result, streamed and complete', async (t) => {
  const { client } = await serve(t)
  for (const stream of [false, true]) {
    const messages: ChatCompletionMessageParam[] = [
      { role: 'user', content: 'Compute (12 + 7) * 3 step by step.' },
    ]
    const expressions: string[] = []
    let response: string | null = null
    while (response === null) {
      const request = { model: 'embedded', messages, tools: [CALCULATOR] }
      const completion = stream
        ? await client.chat.completions.stream(request).finalChatCompletion()
        : await client.chat.completions.create(request)
      const { message, finish_reason: finishReason } = completion.choices[0]!
      messages.push(message)
      t.equal(finishReason, message.tool_calls?.length ? 'tool_calls' : 'stop')
      if (!message.tool_calls?.length) response = message.content
      for (const call of message.tool_calls ?? []) {
        if (call.type !== 'function') throw new Error('not a function call')
        const { expression } = JSON.parse(call.function.arguments) as { expression: string }
        expressions.push(expression)
        const content = expression === '12 + 7' ? '19' : '57'
        messages.push({ role: 'tool', tool_call_id: call.id, content })
      }
    }
    t.same(expressions, ['12 + 7', '19 * 3'])
    t.equal(response, 'The answer is 57.')
  }
})

t.test('a client that disconnects stops the engine within 100 ms', async (t) => {
  const { client, server } = await serve(t, { cannedTokens: 30_000, tokensPerSecond: 500 })
  for (const stream of [true, false]) {
    const controller = new AbortController()
    const pending = client.chat.completions.create(
      { model: 'embedded', messages: [{ role: 'user', content: 'Hello!' }], stream },
      { signal: controller.signal },
    )
    const ended = drain(pending)
    await eventually(() => server.counters.running === 1)
    controller.abort()
    await eventually(() => server.counters.running === 0, 100)
    await ended
  }
  t.match(server.counters, { served: 0, aborted: 2, failed: 0 })
})

t.test('a client that breaks out of its stream stops the engine', async (t) => {
  const { client, server } = await serve(t, { cannedTokens: 30_000, tokensPerSecond: 500 })
  const stream = await client.chat.completions.create({
    model: 'embedded',
    messages: [{ role: 'user', content: 'Hello!' }],
    stream: true,
  })
  for await (const _ of stream) break
  await eventually(() => server.counters.running === 0, 100)
  t.equal(server.counters.aborted, 1)
})

t.test('completions of token ids continue them, streamed and complete', async (t) => {
  const { client } = await serve(t)
  const request = {
    model: 'embedded',
    prompt: [1, 2, 3],
    seed: 5,
    max_tokens: 8,
    logprobs: 1,
    return_token_ids: true,
  }
  const full = (await client.completions.create(request)) as unknown as VllmTextCompletion
  const chunks: VllmTextCompletion[] = []
  for await (const chunk of await client.completions.create({ ...request, stream: true })) {
    chunks.push(chunk as unknown as VllmTextCompletion)
  }
  const [choice] = full.choices
  const streamed = chunks.map((chunk) => chunk.choices[0])
  t.same(choice.prompt_token_ids, [1, 2, 3], 'prompt ids are on the choice')
  t.same(
    streamed.map((part) => part.prompt_token_ids),
    [[1, 2, 3], ...chunks.slice(1).map(() => null)],
  )
  t.equal(streamed.map((part) => part.text).join(''), choice.text)
  t.same(
    streamed.flatMap((part) => part.token_ids),
    choice.token_ids,
  )
  for (const list of ['tokens', 'token_logprobs', 'text_offset', 'top_logprobs'] as const) {
    t.same(
      streamed.flatMap((part): unknown[] => part.logprobs[list]),
      choice.logprobs[list],
      list,
    )
  }
})

t.test('errors are those of vLLM', async (t) => {
  const { client, server } = await serve(t, { contextLength: 64 })
  const getRejection = (body: object) =>
    client.chat.completions
      .create({ model: 'embedded', messages: [{ role: 'user', content: 'Hello!' }], ...body })
      .then(
        () => t.fail('should be rejected'),
        ({ status, error }: APIError) => ({ status, error }),
      )
  t.same(await getRejection({ model: 'gpt-4' }), {
    status: 404,
    error: { message: 'The model `gpt-4` does not exist.', type: 'NotFoundError', param: 'model', code: 404 },
  })
  const tooLong = {
    status: 400,
    error: {
      message: /^This model's maximum context length is 64 tokens\./,
      param: 'input_tokens',
      code: 400,
    },
  }
  t.match(await getRejection({ max_tokens: 1_000 }), tooLong)
  t.match(await getRejection({ max_tokens: 1_000, stream: true }), tooLong, 'before the stream begins')
  const wrong: [param: string, body: object][] = [
    ['temperature', { temperature: -1 }],
    ['messages', { messages: 'hi' }],
    ['top_logprobs', { top_logprobs: 2 }],
    ['tools', { tools: [] }],
    ['tool_choice', { tool_choice: 'auto' }],
    ['stream_options', { stream_options: { include_usage: true } }],
  ]
  for (const [param, body] of wrong) {
    t.match(
      await getRejection(body),
      { status: 400, error: { type: 'BadRequestError', param, code: 400 } },
      param,
    )
  }
  t.equal(server.counters.running, 0)
})

t.test('the model is listed with its context length', async (t) => {
  const { client } = await serve(t, { model: 'tiny', contextLength: 128 })
  const models = await client.models.list()
  t.match(models.data, [{ id: 'tiny', object: 'model', owned_by: 'vllm', max_model_len: 128 }])
})

async function drain(pending: PromiseLike<unknown>): Promise<void> {
  try {
    const response = await pending
    for await (const _ of response as AsyncIterable<unknown>);
  } catch (error) {
    if (!(error instanceof OpenAI.APIUserAbortError)) throw error
  }
}

/** vLLM's fields beside OpenAI's. */
type VllmCompletion = OpenAI.ChatCompletion & {
  choices: [OpenAI.ChatCompletion.Choice & { token_ids: number[] }]
  prompt_token_ids: number[]
}

type VllmChunk = Omit<OpenAI.ChatCompletionChunk, 'choices'> & {
  choices: (OpenAI.ChatCompletionChunk.Choice & { token_ids?: number[] })[]
  prompt_token_ids?: number[]
}

interface VllmTextCompletion {
  choices: [
    {
      text: string
      token_ids: number[]
      prompt_token_ids: number[] | null
      logprobs: { tokens: string[]; token_logprobs: number[]; text_offset: number[]; top_logprobs: object[] }
    },
  ]
}
