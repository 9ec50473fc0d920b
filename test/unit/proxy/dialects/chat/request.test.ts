import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { REASONING_EFFORTS } from '../../../../../src/protocol/canonical/reasoning-effort.ts'
import { lowerChatRequest } from '../../../../../src/proxy/dialects/chat/request.ts'

const messages = [{ role: 'user', content: 'hi' }]

function getRejection(body: unknown): { code: string; param: string | undefined; message: string } {
  try {
    lowerChatRequest(body)
  } catch (error) {
    if (error instanceof ProxyError) return { code: error.code, param: error.param, message: error.message }
    throw error
  }
  throw new Error('the request was accepted')
}

t.test('a request keeps every field it came with', async (t) => {
  const body = {
    model: 'm',
    messages: [
      { role: 'system', content: [{ type: 'text', text: 'be brief', cache_control: { type: 'ephemeral' } }] },
      {
        role: 'user',
        content: [{ type: 'image_url', image_url: { url: 'data:image/png;base64,AA' } }],
        odd: 1,
      },
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{' } }],
      },
      { role: 'tool', tool_call_id: 'c', content: 'x' },
    ],
    tools: [
      {
        type: 'function',
        function: { name: 'f', parameters: { properties: { __proto__: null, constructor: {} } } },
      },
    ],
    tool_choice: { type: 'function', function: { name: 'f' } },
    parallel_tool_calls: false,
    response_format: { type: 'json_schema', json_schema: { name: 's', schema: {} } },
    max_completion_tokens: 7,
    chat_template_kwargs: { enable_thinking: false },
    some_future_field: [1, { two: null }],
  }
  const before = JSON.stringify(body)
  const lowered = lowerChatRequest(body)
  t.equal(lowered.body, body, 'the same object: no field is dropped, coerced or defaulted')
  t.equal(JSON.stringify(lowered.body), before)
})

t.test('the request selects the outputs that its agent receives', async (t) => {
  t.same(lowerChatRequest({ messages }).responseOptions, {
    logprobs: false,
    tokenIds: false,
    reasoning: true,
    streamUsage: false,
  })
  const all = {
    messages,
    stream: true,
    logprobs: true,
    return_token_ids: true,
    include_reasoning: false,
    stream_options: { include_usage: true },
  }
  t.same(lowerChatRequest(all).responseOptions, {
    logprobs: true,
    tokenIds: true,
    reasoning: false,
    streamUsage: true,
  })
  const none = { messages, stream: null, logprobs: null, return_token_ids: false, stream_options: null }
  t.match(lowerChatRequest(none), {
    stream: false,
    responseOptions: { logprobs: false, tokenIds: false, reasoning: true, streamUsage: false },
  })
})

t.test('an invalid body is rejected with the name of the field', async (t) => {
  const cases: [body: unknown, param: string | undefined, message: RegExp][] = [
    [[], undefined, /must be object/],
    [null, undefined, /must be object/],
    [{}, 'messages', /'messages' is required/],
    [{ messages: [] }, 'messages', /1 items/],
    [{ messages: 'hi' }, 'messages', /must be array/],
    [{ messages: [{ content: 'x' }] }, 'messages.0.role', /is required/],
    [
      { messages: [...messages, { role: 'user', content: 4 }] },
      'messages.1.content',
      /string or must be array/,
    ],
    [{ messages: [{ role: 'user', content: [{ text: 'x' }] }] }, 'messages.0.content.0.type', /is required/],
    [
      { messages: [{ role: 'assistant', tool_calls: [{ function: {} }] }] },
      'messages.0.tool_calls.0.function.name',
      /required/,
    ],
    [{ messages, temperature: 'hot' }, 'temperature', /must be number/],
    [{ messages, temperature: -1 }, 'temperature', /0/],
    [{ messages, top_p: 2 }, 'top_p', /1/],
    [{ messages, stream: 'yes' }, 'stream', /must be boolean/],
    [{ messages, max_tokens: 1.5 }, 'max_tokens', /must be integer/],
    [{ messages, stop: [1] }, 'stop.0', /must be string/],
    [{ messages, tools: [{}] }, 'tools.0.type', /required/],
  ]
  for (const [body, param, message] of cases) {
    const rejected = getRejection(body)
    t.equal(rejected.code, 'invalid_request', JSON.stringify(body))
    t.equal(rejected.param, param, JSON.stringify(body))
    t.match(rejected.message, message, JSON.stringify(body))
  }
})

t.test('a function tool without its function is rejected by name', async (t) => {
  for (const tool of [
    { type: 'function', name: 'f' },
    { type: 'function', function: null },
  ]) {
    t.match(getRejection({ messages, tools: [tool] }), { code: 'invalid_request', param: 'tools.0.function' })
  }
  const tool_choice = { type: 'function', name: 'f' }
  t.match(getRejection({ messages, tool_choice }), { code: 'invalid_request', param: 'tool_choice.function' })
})

t.test('n above 1 requests as many choices', async (t) => {
  t.equal(lowerChatRequest({ messages, n: 4 }).choices, 4)
  for (const n of [1, null, undefined]) t.notOk('choices' in lowerChatRequest({ messages, n }))
  for (const n of [0, -1, 1.5, '2'])
    t.match(getRejection({ messages, n }), { code: 'invalid_request', param: 'n' })
})

t.test(
  'alternatives require logprobs: a request without them is rejected, as by vLLM and OpenAI',
  async (t) => {
    for (const logprobs of [undefined, null, false]) {
      t.match(getRejection({ messages, top_logprobs: 2, logprobs }), {
        code: 'invalid_request',
        param: 'top_logprobs',
        message: /'logprobs' must be true/,
      })
      t.equal(lowerChatRequest({ messages, top_logprobs: 0, logprobs }).kind, 'chat', 'none are requested')
    }
    t.equal(lowerChatRequest({ messages, top_logprobs: 2, logprobs: true }).kind, 'chat')
  },
)

t.test('every reasoning effort is forwarded unchanged', async (t) => {
  for (const effort of [...REASONING_EFFORTS, 'no_think', 40]) {
    const { body } = lowerChatRequest({
      model: 'm',
      messages,
      reasoning_effort: effort,
      chat_template_kwargs: { reasoning_effort: effort },
    })
    t.match(body, { reasoning_effort: effort, chat_template_kwargs: { reasoning_effort: effort } })
  }
})
