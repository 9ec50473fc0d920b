import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { seal } from '../../../../../src/proxy/dialects/common/sealed-reasoning.ts'
import {
  lowerCountTokensRequest,
  lowerMessagesRequest,
} from '../../../../../src/proxy/dialects/messages/request.ts'

const requestBody = { model: 'm', max_tokens: 10 }
const hi = [{ role: 'user', content: 'hi' }]
const image = { type: 'image', source: { type: 'base64', media_type: 'image/png', data: 'AAAA' } }

function lower(fields: object) {
  const { body } = lowerMessagesRequest({ ...requestBody, messages: hi, ...fields })
  return body as Record<string, unknown>
}

function createConversation(messages: unknown[], fields: object = {}): unknown[] {
  return lower({ messages, ...fields }).messages as unknown[]
}

function getRejection(fields: object): { code: string; param: string | undefined; message: string } {
  try {
    lowerMessagesRequest({ ...requestBody, messages: hi, ...fields })
  } catch (error) {
    if (error instanceof ProxyError) return { code: error.code, param: error.param, message: error.message }
    throw error
  }
  throw new Error('the request was accepted')
}

t.test('the smallest request', async (t) => {
  t.same(lowerMessagesRequest({ ...requestBody, messages: hi }), {
    kind: 'chat',
    body: { model: 'm', max_tokens: 10, messages: hi },
    rejectOverlong: true,
    stream: false,
    responseOptions: { logprobs: false, tokenIds: false, reasoning: true, streamUsage: true },
  })
})

t.test('the system prompt is one system message, its blocks joined by newlines', async (t) => {
  t.same(createConversation(hi, { system: 'Be brief.' }), [{ role: 'system', content: 'Be brief.' }, ...hi])
  const blocks = [
    { type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } },
    { type: 'text', text: 'Be kind.' },
  ]
  t.same(createConversation(hi, { system: blocks }), [
    { role: 'system', content: 'Be brief.\nBe kind.' },
    ...hi,
  ])
  for (const system of ['', [], null])
    t.same(createConversation(hi, { system }), hi, 'an empty system prompt is no message')
})

t.test('a system message within the conversation becomes part of a user message', async (t) => {
  const hurry = { role: 'system', content: [{ type: 'text', text: 'Hurry.' }] }
  const reminder = '<system-reminder>\nHurry.\n</system-reminder>'
  t.match(createConversation([...hi, hurry]), [
    { role: 'user', content: [{ text: 'hi' }, { text: reminder }] },
  ])
  const use = { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'f', input: {} }] }
  const result = { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: '1' }] }
  t.match(createConversation([...hi, use, result, hurry]), {
    2: { role: 'tool', content: '1' },
    3: { role: 'user', content: reminder },
  })
})

t.test('a system message before the conversation is part of the system prompt', async (t) => {
  const messages = [{ role: 'system', content: 'Be kind.' }, ...hi]
  t.same(createConversation(messages), [{ role: 'system', content: 'Be kind.' }, ...hi])
  t.same(createConversation(messages, { system: 'Be brief.' }), [
    { role: 'system', content: 'Be brief.\nBe kind.' },
    ...hi,
  ])
})

t.test('text, images and text documents are parts of a message', async (t) => {
  const content = [
    { type: 'text', text: 'look', cache_control: { type: 'ephemeral' }, citations: null },
    image,
    { type: 'image', source: { type: 'url', url: 'https://x/y.png' } },
    { type: 'document', title: 'T', source: { type: 'text', media_type: 'text/plain', data: 'doc' } },
    { type: 'document', source: { type: 'base64', media_type: 'application/pdf', data: 'JVBE' } },
    { type: 'document', source: { type: 'content', content: [{ type: 'text', text: 'more' }] } },
  ]
  t.same(createConversation([{ role: 'user', content }]), [
    {
      role: 'user',
      content: [
        { type: 'text', text: 'look' },
        { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
        { type: 'image_url', image_url: { url: 'https://x/y.png' } },
        { type: 'text', text: 'doc' },
        {
          type: 'text',
          text: '[A file of type application/pdf was given here. It cannot be shown to this model.]',
        },
        { type: 'text', text: 'more' },
      ],
    },
  ])
  t.same(
    createConversation([{ role: 'user', content: [{ type: 'text', text: 'hi' }] }]),
    hi,
    'one text is a plain string',
  )
})

t.test('a thinking block may have no signature, or only its signature', async (t) => {
  const sealed = seal('Hm.')
  for (const [block, reasoning] of [
    [{ type: 'thinking', thinking: 'So.', signature: null }, 'So.'],
    [{ type: 'thinking', signature: sealed }, 'Hm.'],
    [{ type: 'thinking', thinking: null, signature: sealed }, 'Hm.'],
    [{ type: 'thinking', thinking: '', signature: null }, undefined],
  ] as const) {
    const content = [block, { type: 'text', text: 'see.' }]
    const [, response] = createConversation([...hi, { role: 'assistant', content }, ...hi]) as {
      reasoning_content?: string
    }[]
    t.equal(response?.reasoning_content, reasoning, JSON.stringify(block))
  }
})

t.test('an assistant message has joined text, reasoning and tool calls', async (t) => {
  const content = [
    { type: 'thinking', thinking: 'Hm. ', signature: 'llm-proxy' },
    { type: 'redacted_thinking', data: 'sealed' },
    { type: 'text', text: 'Let me ', citations: null },
    { type: 'tool_use', id: 'a', name: 'f', input: { x: 1 }, caller: { type: 'direct' } },
    { type: 'thinking', thinking: 'So.', signature: '' },
    { type: 'text', text: 'see.' },
    { type: 'tool_use', id: 'b', name: 'g', input: {} },
  ]
  const results = [{ type: 'tool_result', tool_use_id: 'a', content: '1' }]
  const [, response] = createConversation([
    ...hi,
    { role: 'assistant', content },
    { role: 'user', content: results },
  ]) as unknown[]
  t.same(response, {
    role: 'assistant',
    content: 'Let me see.',
    reasoning_content: 'Hm. So.',
    tool_calls: [
      { id: 'a', type: 'function', function: { name: 'f', arguments: '{"x":1}' } },
      { id: 'b', type: 'function', function: { name: 'g', arguments: '{}' } },
    ],
  })
  const silent = [{ type: 'tool_use', id: 'a', name: 'f', input: {} }]
  t.match(createConversation([...hi, { role: 'assistant', content: silent }, ...hi]), {
    1: { content: null },
  })
})

t.test('arguments that were not a JSON object are restored as the model wrote them', async (t) => {
  const content = [{ type: 'tool_use', id: 'a', name: 'f', input: { INVALID_JSON: '{"x": 1' } }]
  t.match(createConversation([...hi, { role: 'assistant', content }, ...hi]), {
    1: { tool_calls: [{ function: { arguments: '{"x": 1' } }] },
  })
  const valid = [{ type: 'tool_use', id: 'a', name: 'f', input: { INVALID_JSON: 1 } }]
  t.match(createConversation([...hi, { role: 'assistant', content: valid }, ...hi]), {
    1: { tool_calls: [{ function: { arguments: '{"INVALID_JSON":1}' } }] },
  })
})

t.test("tool results come first, each as a message, followed by the user's other content", async (t) => {
  const content = [
    { type: 'text', text: 'go on' },
    { type: 'tool_result', tool_use_id: 'a', content: '1', cache_control: { type: 'ephemeral' } },
    { type: 'tool_result', tool_use_id: 'b', content: [{ type: 'text', text: 'see' }, image] },
    { type: 'tool_result', tool_use_id: 'c' },
  ]
  t.same(createConversation([{ role: 'user', content }]), [
    { role: 'tool', tool_call_id: 'a', content: '1' },
    {
      role: 'tool',
      tool_call_id: 'b',
      content: [
        { type: 'text', text: 'see' },
        { type: 'image_url', image_url: { url: 'data:image/png;base64,AAAA' } },
      ],
    },
    { role: 'tool', tool_call_id: 'c', content: '' },
    { role: 'user', content: 'go on' },
  ])
})

t.test("the model can distinguish a tool's error from its result", async (t) => {
  const result = (content: unknown) => ({ type: 'tool_result', tool_use_id: 'a', is_error: true, content })
  const getContent = (content: unknown) => {
    const messages = createConversation([{ role: 'user', content: [result(content)] }]) as {
      content: unknown
    }[]
    return messages[0]?.content
  }
  t.equal(getContent('no such file'), 'Error: no such file')
  t.equal(getContent([{ type: 'text', text: 'no' }]), 'Error: no')
  t.equal(getContent(undefined), 'Error: ')
  t.match(getContent([image]), [{ type: 'text', text: 'Error: ' }, { type: 'image_url' }])
  const fine = { ...result('1'), is_error: false }
  t.match(createConversation([{ role: 'user', content: [fine] }]), [{ content: '1' }])
})

t.test('consecutive messages of one role are one', async (t) => {
  const use = { type: 'tool_use', id: 'a', name: 'f', input: {} }
  const messages = [
    { role: 'user', content: 'one' },
    { role: 'user', content: 'two' },
    { role: 'assistant', content: 'I ' },
    { role: 'assistant', content: [{ type: 'text', text: 'see' }, use] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: '1' }] },
    { role: 'user', content: 'three' },
  ]
  t.match(createConversation(messages), [
    { role: 'user', content: [{ text: 'one' }, { text: 'two' }] },
    { role: 'assistant', content: 'I see', tool_calls: [{ id: 'a' }] },
    { role: 'tool', content: '1' },
    { role: 'user', content: 'three' },
  ])
})

t.test('tools and tool_choice are converted', async (t) => {
  const tool = {
    name: 'f',
    description: 'does',
    input_schema: { type: 'object', properties: { constructor: {} } },
    cache_control: { type: 'ephemeral' },
    defer_loading: false,
  }
  const { tools } = lower({ tools: [tool, { name: 'g', type: 'custom', input_schema: {}, strict: true }] })
  t.same(tools, [
    { type: 'function', function: { name: 'f', description: 'does', parameters: tool.input_schema } },
    { type: 'function', function: { name: 'g', parameters: {}, strict: true } },
  ])
  t.notOk('tools' in lower({ tools: [] }))
  const choice = (tool_choice: object) => {
    const { tool_choice: chosen, parallel_tool_calls: parallel } = lower({ tools: [tool], tool_choice })
    return [chosen, parallel]
  }
  t.same(choice({ type: 'auto' }), ['auto', undefined])
  t.same(choice({ type: 'any', disable_parallel_tool_use: true }), ['required', false])
  t.same(choice({ type: 'tool', name: 'f' }), [{ type: 'function', function: { name: 'f' } }, undefined])
  t.same(choice({ type: 'none' }), ['none', undefined])
})

t.test('sampling fields keep their meaning', async (t) => {
  const sampling = { temperature: 0.5, top_p: 0.9, top_k: 40 }
  t.same(lower({ ...sampling, stop_sequences: ['END'] }), {
    model: 'm',
    messages: hi,
    max_tokens: 10,
    ...sampling,
    stop: ['END'],
  })
  t.notOk('stop' in lower({ stop_sequences: [] }))
})

t.test('thinking and effort are passed to chat templates that support them', async (t) => {
  const kwargs = (thinking: object | null, fields: object = {}) =>
    lower({ thinking, ...fields }).chat_template_kwargs
  t.same(kwargs({ type: 'enabled', budget_tokens: 1024 }), { enable_thinking: true })
  t.same(kwargs({ type: 'disabled' }), { enable_thinking: false })
  t.equal(kwargs({ type: 'adaptive' }), undefined)
  t.equal(kwargs(null), undefined)
  t.same(kwargs({ type: 'disabled' }, { chat_template_kwargs: null }), { enable_thinking: false })
  const own = { chat_template_kwargs: { thinking: true, enable_thinking: true } }
  t.same(
    kwargs({ type: 'disabled' }, own),
    own.chat_template_kwargs,
    "the agent's own setting has precedence",
  )
  for (const effort of ['low', 'medium', 'high', 'xhigh', 'max'])
    t.equal(lower({ output_config: { effort } }).reasoning_effort, effort)
})

t.test('thinking is sent unless the agent declines it', async (t) => {
  const responseOptions = (thinking?: object) =>
    lowerMessagesRequest({ ...requestBody, messages: hi, thinking }).responseOptions
  const showsThinking = (thinking?: object) => responseOptions(thinking).reasoning
  const sealed = responseOptions({ type: 'adaptive', display: 'omitted' })
  t.match(sealed, { reasoning: false, sealedReasoning: true })
  t.notOk(responseOptions({ type: 'disabled', display: 'omitted' }).sealedReasoning)
  t.equal(showsThinking({ type: 'adaptive' }), true)
  t.equal(showsThinking({ type: 'adaptive', display: 'summarized' }), true)
  t.equal(showsThinking({ type: 'enabled', budget_tokens: 1024, display: 'omitted' }), false)
  t.equal(showsThinking({ type: 'disabled' }), false)
})

t.test('a schema for the output is converted', async (t) => {
  const format = { type: 'json_schema', schema: { type: 'object' } }
  const expected = {
    type: 'json_schema',
    json_schema: { name: 'output', schema: { type: 'object' }, strict: true },
  }
  t.same(lower({ output_config: { format } }).response_format, expected)
  t.same(lower({ output_format: format }).response_format, expected)
})

t.test("Anthropic's own fields are recorded, an engine's own are sent to the engine", async (t) => {
  const anthropicFields = {
    metadata: { user_id: '{"device_id":"d","session_id":"s"}' },
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
    output_config: { effort: 'medium' },
    thinking: { type: 'adaptive' },
    service_tier: 'auto',
    n: 3,
  }
  const { body, annotations } = lowerMessagesRequest({
    ...requestBody,
    messages: hi,
    ...anthropicFields,
    repetition_penalty: 1.1,
    some_future_field: [1],
  })
  t.same(annotations, { request_fields: anthropicFields })
  t.same(body, {
    ...requestBody,
    messages: hi,
    repetition_penalty: 1.1,
    some_future_field: [1],
    reasoning_effort: 'medium',
  })
})

t.test('volatile parts are removed from the system prompt and reported', async (t) => {
  const header = (hash: string) => `x-anthropic-billing-header: cc_version=2.1.329.${hash}; cch=00000;`
  const request = (hash: string) => ({
    ...requestBody,
    messages: hi,
    system: [
      { type: 'text', text: header(hash) },
      { type: 'text', text: 'You are Claude Code.' },
    ],
  })
  const first = lowerMessagesRequest(request('3f1'))
  t.same(first.body, lowerMessagesRequest(request('a07')).body)
  t.match(first.body.messages, [{ role: 'system', content: 'You are Claude Code.' }, ...hi])
  t.same(first.annotations, {
    removed_from_prompt: [{ rule: 'claude_code_billing_header', text: header('3f1') }],
  })
  const untouched = lowerMessagesRequest(request('3f1'), [])
  t.match(untouched.body.messages, [{ content: `${header('3f1')}\nYou are Claude Code.` }, ...hi])
  t.equal(untouched.annotations, undefined)
})

t.test('a thinking block may lack its signature or its text', async (t) => {
  const thinking = (block: object) =>
    createConversation([...hi, { role: 'assistant', content: [{ type: 'thinking', ...block }] }, ...hi])[1]
  t.match(thinking({ thinking: 'Hm', signature: null }), { reasoning_content: 'Hm' })
  t.match(thinking({ signature: seal('Hm') }), { reasoning_content: 'Hm' })
})

t.test('server tools are omitted and listed, and their histories are read', async (t) => {
  const web = { type: 'web_search_20250305', name: 'web_search' }
  const own = { name: 'f', input_schema: { type: 'object' } }
  const { body, annotations } = lowerMessagesRequest({ ...requestBody, messages: hi, tools: [web, own] })
  t.match(body.tools, [{ function: { name: 'f' } }])
  t.equal((body.tools as unknown[]).length, 1)
  t.same(annotations, { dropped_tools: ['web_search_20250305'] })
  t.equal(lower({ tools: [web], tool_choice: { type: 'auto' } }).tool_choice, undefined)
  t.match(getRejection({ tools: [web], tool_choice: { type: 'any' } }), {
    code: 'unsupported',
    param: 'tool_choice',
  })
  const response = [
    { type: 'server_tool_use', id: 's', name: 'web_search', input: {} },
    { type: 'web_search_tool_result', tool_use_id: 's', content: [] },
    { type: 'text', text: 'Found.' },
  ]
  const text = [{ type: 'text', text: 'body' }]
  const result = { type: 'search_result', source: 'https://x', title: 'T', content: text }
  const history = [...hi, { role: 'assistant', content: response }, { role: 'user', content: [result] }]
  t.same(createConversation(history).slice(1), [
    { role: 'assistant', content: 'Found.' },
    { role: 'user', content: 'T\nhttps://x\nbody' },
  ])
})

t.test('a document with a URL or a file id is replaced by a text that names it', async (t) => {
  const content = [
    { type: 'document', source: { type: 'url', url: 'https://x/y.pdf' } },
    { type: 'document', source: { type: 'file', file_id: 'file_1' } },
  ]
  t.match(createConversation([{ role: 'user', content }]), [
    {
      content: [
        { type: 'text', text: /^\[A file of type application\/pdf was given here/ },
        { type: 'text', text: /^\[A file was given here/ },
      ],
    },
  ])
})

t.test('an MCP toolset has no name, and is omitted', async (t) => {
  const toolset = { type: 'mcp_toolset', mcp_server_name: 'm' }
  const own = { name: 'f', input_schema: { type: 'object' } }
  const { body, annotations } = lowerMessagesRequest({ ...requestBody, messages: hi, tools: [toolset, own] })
  t.match(body.tools, [{ function: { name: 'f' } }])
  t.equal((body.tools as unknown[]).length, 1)
  t.same(annotations, { dropped_tools: ['mcp_toolset'] })
  for (const nameless of [
    { name: '', input_schema: {} },
    { type: 'custom', input_schema: {} },
  ])
    t.match(getRejection({ tools: [nameless] }), { code: 'invalid_request', param: 'tools.0.name' })
})

t.test('a result of a server tool keeps the parts that a model can read', async (t) => {
  const show = (type: string, content: unknown) => {
    const result = { type, tool_use_id: 's', content }
    const response = [result, { type: 'text', text: 'Done.' }]
    const [, message] = createConversation([...hi, { role: 'assistant', content: response }, ...hi])
    return (message as { content?: unknown }).content
  }
  const found = { type: 'web_search_result', title: 'T', url: 'https://x', encrypted_content: 'gAAA' }
  t.equal(show('web_search_tool_result', [found, found]), '\nT\nhttps://x\nT\nhttps://x\nDone.')
  const run = { type: 'bash_code_execution_result', stdout: '42', stderr: '', return_code: 0, content: [] }
  t.equal(show('bash_code_execution_tool_result', run), '\n42\nreturn_code: 0\nDone.')
  const error = { type: 'web_search_tool_result_error', error_code: 'max_uses_exceeded' }
  t.equal(show('web_search_tool_result', error), '\nerror_code: max_uses_exceeded\nDone.')
  const page = (source: object) => ({
    type: 'web_fetch_result',
    url: 'https://x',
    content: { type: 'document', title: 'T', source },
  })
  const text = { type: 'text', media_type: 'text/plain', data: 'body' }
  t.equal(show('web_fetch_tool_result', page(text)), '\nhttps://x\nT\nbody\nDone.')
  const pdf = { type: 'base64', media_type: 'application/pdf', data: 'JVBE' }
  t.equal(show('web_fetch_tool_result', page(pdf)), '\nhttps://x\nT\nDone.')
  const tools = { type: 'tool_search_tool_search_result', tool_references: [{ tool_name: 'f' }] }
  t.equal(show('tool_search_tool_result', tools), '\nf\nDone.')
  t.equal(show('mcp_tool_result', [{ type: 'text', text: 'ok' }]), '\nok\nDone.')
  t.equal(show('mcp_tool_result', null), 'Done.')
})

t.test('unsupported fields are rejected with their name', async (t) => {
  const cases: [fields: object, param: string][] = [
    [{ messages: [...hi, { role: 'assistant', content: 'I think' }] }, 'messages.1.role'],
    [{ thread: { type: 'create' } }, 'thread'],
    [{ mcp_servers: [{ type: 'url', url: 'https://x', name: 'x' }] }, 'mcp_servers'],
    [{ container: 'c_1' }, 'container'],
    [{ max_tokens: 0 }, 'max_tokens'],
    [{ compaction: {} }, 'compaction'],
    [{ tools: [{ type: 'bash_20250124', name: 'bash' }] }, 'tools.0.type'],
    [{ tools: [{ name: 'f' }] }, 'tools.0.input_schema'],
    [
      { messages: [{ role: 'user', content: [{ type: 'image', source: { type: 'file', file_id: 'f' } }] }] },
      'messages.0.content.0.source.type',
    ],
    [
      { messages: [{ role: 'user', content: [{ type: 'document', source: { type: 'odd' } }] }] },
      'messages.0.content.0.source.type',
    ],
    [
      { messages: [{ role: 'assistant', content: [{ type: 'unheard_of' }] }, ...hi] },
      'messages.0.content.0.type',
    ],
  ]
  for (const [fields, param] of cases) {
    const rejected = getRejection(fields)
    t.match(rejected, { code: 'unsupported', param }, JSON.stringify(fields))
  }
  t.equal(
    lowerMessagesRequest({ ...requestBody, messages: hi, mcp_servers: [], container: null }).kind,
    'chat',
  )
})

t.test('an invalid body is rejected with the name of the field', async (t) => {
  const cases: [fields: object, param: string][] = [
    [{ model: undefined }, 'model'],
    [{ max_tokens: undefined }, 'max_tokens'],
    [{ max_tokens: -1 }, 'max_tokens'],
    [{ max_tokens: '5' }, 'max_tokens'],
    [{ messages: undefined }, 'messages'],
    [{ messages: [] }, 'messages'],
    [{ messages: [{ role: 'tool', content: 'x' }] }, 'messages.0.role'],
    [{ messages: [{ role: 'user' }] }, 'messages.0.content'],
    [{ messages: [{ role: 'user', content: [{}] }] }, 'messages.0.content.0.type'],
    [{ messages: [{ role: 'user', content: [{ type: 'text' }] }] }, 'messages.0.content.0.text'],
    [{ messages: [{ role: 'user', content: [{ type: 'image' }] }] }, 'messages.0.content.0.source'],
    [
      { messages: [{ role: 'user', content: [{ type: 'tool_result', content: 'x' }] }] },
      'messages.0.content.0.tool_use_id',
    ],
    [
      {
        messages: [
          { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: [{ type: 'text' }] }] },
        ],
      },
      'messages.0.content.0.content.0.text',
    ],
    [{ system: [{ type: 'image' }] }, 'system.0.text'],
    [{ tools: [{ input_schema: {} }] }, 'tools.0.name'],
    [{ tool_choice: { type: 'tool' } }, 'tool_choice.name'],
    [{ temperature: 'hot' }, 'temperature'],
    [{ stop_sequences: [''] }, 'stop_sequences.0'],
    [{ thinking: { type: 1 } }, 'thinking.type'],
    [{ output_config: { format: { type: 'json_schema' } } }, 'output_config.format.schema'],
  ]
  for (const [fields, param] of cases) {
    t.match(getRejection(fields), { code: 'invalid_request', param }, JSON.stringify(fields))
  }
})

t.test('a token count has the same prompt as a request', async (t) => {
  const prompt = { model: 'm', messages: hi, system: 'Be brief.', tools: [{ name: 'f', input_schema: {} }] }
  const { max_tokens: _, ...body } = lower(prompt)
  t.same(lowerCountTokensRequest(prompt), body)
  const withStyle = { ...prompt, chat_template_kwargs: { style: 'short' } }
  t.same(lowerCountTokensRequest(withStyle).chat_template_kwargs, { style: 'short' })
})

t.test('a deferred tool appears with the search that found it, and not before', async (t) => {
  const schema = { type: 'object', properties: { path: { type: 'string' } } }
  const tools = [
    { name: 'ToolSearch', input_schema: { type: 'object' } },
    { name: 'NotebookEdit', description: 'Edits.', input_schema: schema, defer_loading: true },
  ]
  const references = ['NotebookEdit', 'Nowhere'].map((tool_name) => ({ type: 'tool_reference', tool_name }))
  const found = [
    ...hi,
    { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'ToolSearch', input: {} }] },
    { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: references }] },
  ]
  const body = lower({ messages: found, tools })
  t.match(body.tools, [{ function: { name: 'ToolSearch' } }])
  t.equal((body.tools as unknown[]).length, 1, 'the same as before the search')
  const texts = (body.messages as { content: { text: string }[] }[]).at(-1)!.content.map(({ text }) => text)
  t.same(JSON.parse(texts[0]!), {
    type: 'function',
    function: { name: 'NotebookEdit', description: 'Edits.', parameters: schema },
  })
  t.equal(texts[1], 'Tool: Nowhere')
  const second = lower({ messages: [...found, ...found.slice(1)], tools }).messages as typeof body.messages
  t.match(
    (second as { content: unknown }[]).at(-1)!.content,
    [{ text: 'Tool: NotebookEdit' }],
    'it appears once',
  )
})

t.test('a conversation that ends with the assistant can be counted, but not continued', async (t) => {
  const messages = [
    { role: 'user', content: 'Hi' },
    { role: 'assistant', content: 'Hello' },
  ]
  t.match(lowerCountTokensRequest({ model: 'm', messages }).messages, messages)
  t.throws(() => lowerMessagesRequest({ model: 'm', max_tokens: 9, messages }), {
    code: 'unsupported',
    param: 'messages.1.role',
  })
})
