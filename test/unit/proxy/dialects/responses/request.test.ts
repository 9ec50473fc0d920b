import t from 'tap'
import { ProxyError } from '../../../../../src/base/errors.ts'
import { REASONING_EFFORTS } from '../../../../../src/protocol/canonical/reasoning-effort.ts'
import { seal, unseal } from '../../../../../src/proxy/dialects/common/sealed-reasoning.ts'
import { lowerItems } from '../../../../../src/proxy/dialects/responses/items.ts'
import { lowerResponsesRequest } from '../../../../../src/proxy/dialects/responses/request.ts'
import { checkResponsesRequest, type InputItem } from '../../../../../src/proxy/dialects/responses/schema.ts'

const hi: InputItem[] = [{ type: 'message', role: 'user', content: 'hi' }]

function lower(fields: object, items: unknown[] = hi) {
  const request = checkResponsesRequest({ input: items, ...fields })
  return lowerResponsesRequest(request, [], items as InputItem[])
}

const getBody = (fields: object, items?: unknown[]) => lower(fields, items).lowered.body
const getMessages = (...items: unknown[]) => lowerItems(items as InputItem[]).messages

function getRejection(fields: object, items?: unknown[]) {
  try {
    lower(fields, items)
  } catch (error) {
    if (error instanceof ProxyError) return { code: error.code, param: error.param, message: error.message }
    throw error
  }
  throw new Error('the request was accepted')
}

t.test(
  'a tool search that the client runs is a function, and its output contains the found tools',
  async (t) => {
    const parameters = { type: 'object', properties: { query: { type: 'string' } } }
    const search = { type: 'tool_search', execution: 'client', description: 'Finds tools', parameters }
    const found = {
      type: 'namespace',
      name: 'mcp__git__',
      tools: [{ type: 'function', name: 'log', defer_loading: true }],
    }
    const { lowered, wireTools, annotation } = lower({ tools: [search, { type: 'tool_search' }] }, [
      ...hi,
      { type: 'tool_search_call', call_id: 'c', execution: 'client', arguments: { query: 'git' } },
      { type: 'tool_search_output', call_id: 'c', execution: 'client', status: 'completed', tools: [found] },
      { type: 'function_call', call_id: 'd', name: 'log', namespace: 'mcp__git__', arguments: '{}' },
      { type: 'function_call_output', call_id: 'd', output: 'x' },
    ])
    t.same(lowered.body.tools, [
      { type: 'function', function: { name: 'tool_search', description: 'Finds tools', parameters } },
    ])
    const call = (id: string, name: string, written: string) => ({
      role: 'assistant',
      content: null,
      tool_calls: [{ id, type: 'function', function: { name, arguments: written } }],
    })
    t.same(lowered.body.messages.slice(1), [
      call('c', 'tool_search', '{"query":"git"}'),
      {
        role: 'tool',
        tool_call_id: 'c',
        content: '{"type":"function","function":{"name":"mcp__git__log"}}',
      },
      call('d', 'mcp__git__log', '{}'),
      { role: 'tool', tool_call_id: 'd', content: 'x' },
    ])
    t.match(wireTools.get('mcp__git__log'), { type: 'function', name: 'log', namespace: 'mcp__git__' })
    t.same(annotation.dropped_tools, ['tool_search'], 'one that the service would run is omitted')
  },
)

t.test('a tool_choice that requires a call needs a tool', async (t) => {
  const rejected = getRejection({ tools: [{ type: 'web_search' }], tool_choice: 'required' })
  t.match(rejected, { code: 'unsupported', param: 'tool_choice' })
})

t.test('fields become those of Chat Completions, and unknown ones pass through', async (t) => {
  const body = getBody({
    model: 'm',
    instructions: 'be brief',
    max_output_tokens: 7,
    temperature: 0.5,
    top_p: null,
    parallel_tool_calls: false,
    reasoning: { effort: 'low', summary: 'auto' },
    text: {
      verbosity: 'low',
      format: { type: 'json_schema', name: 's', schema: { type: 'object' }, strict: true },
    },
    include: ['message.output_text.logprobs'],
    top_logprobs: 2,
    store: false,
    metadata: { a: 'b' },
    truncation: 'auto',
    stream: true,
    stream_options: { include_obfuscation: false },
    max_tool_calls: 3,
    top_k: 5,
    chat_template_kwargs: { enable_thinking: false },
  })
  t.same(body, {
    model: 'm',
    messages: [
      { role: 'system', content: 'be brief' },
      { role: 'user', content: 'hi' },
    ],
    max_completion_tokens: 7,
    temperature: 0.5,
    top_p: null,
    parallel_tool_calls: false,
    reasoning_effort: 'low',
    verbosity: 'low',
    response_format: {
      type: 'json_schema',
      json_schema: { name: 's', schema: { type: 'object' }, strict: true },
    },
    logprobs: true,
    top_logprobs: 2,
    store: false,
    metadata: { a: 'b' },
    top_k: 5,
    chat_template_kwargs: { enable_thinking: false },
  })
  t.same(getBody({ text: { format: { type: 'json_object' } } }).response_format, { type: 'json_object' })
  t.notOk('response_format' in getBody({ text: { format: { type: 'text' } } }))
})

t.test('the request selects the outputs that its agent receives', async (t) => {
  t.match(lower({}).lowered, {
    stream: false,
    responseOptions: { logprobs: false, tokenIds: false, reasoning: true },
  })
  const all = { stream: true, include: ['message.output_text.logprobs'], return_token_ids: true }
  t.match(lower({ ...all, include_reasoning: false }).lowered, {
    stream: true,
    responseOptions: { logprobs: true, tokenIds: true, reasoning: false },
  })
})

t.test('messages keep their content and lose their metadata', async (t) => {
  const developer = { type: 'message', role: 'developer', content: [{ type: 'input_text', text: 'rules' }] }
  const parts = [
    { type: 'input_text', text: 'look' },
    { type: 'input_image', image_url: 'data:image/png;base64,AA', detail: 'low' },
    { type: 'input_file', filename: 'a.txt', file_data: 'data:text/plain;base64,QQ==' },
    { type: 'input_audio', input_audio: { data: 'AA', format: 'wav' } },
  ]
  t.same(getMessages(developer, { role: 'user', content: parts, id: 'msg_1', status: 'completed', odd: 1 }), [
    { role: 'system', content: 'rules' },
    {
      role: 'user',
      odd: 1,
      content: [
        { type: 'text', text: 'look' },
        { type: 'image_url', image_url: { url: 'data:image/png;base64,AA', detail: 'low' } },
        { type: 'file', file: { filename: 'a.txt', file_data: 'data:text/plain;base64,QQ==' } },
        { type: 'input_audio', input_audio: { data: 'AA', format: 'wav' } },
      ],
    },
  ])
  const marked = [{ type: 'input_text', text: 'x', cache_control: { type: 'ephemeral' } }]
  t.match(getMessages({ role: 'user', content: marked }), [
    { content: [{ type: 'text', text: 'x', cache_control: { type: 'ephemeral' } }] },
  ])
})

t.test('the items of one response are one message', async (t) => {
  const messages = getMessages(
    { role: 'user', content: 'fix it' },
    { type: 'reasoning', id: 'rs_1', summary: [], content: [{ type: 'reasoning_text', text: 'hm' }] },
    {
      type: 'message',
      role: 'assistant',
      content: [
        { type: 'output_text', text: 'I look', annotations: [] },
        { type: 'output_text', text: ' first' },
      ],
    },
    { type: 'function_call', call_id: 'c1', name: 'read', arguments: '{"path": "a"}' },
    { type: 'function_call', call_id: 'c2', name: 'read', arguments: '{' },
    { type: 'function_call_output', call_id: 'c1', output: 'text' },
    { type: 'function_call_output', call_id: 'c2', output: [{ type: 'input_text', text: 'more' }] },
    { type: 'reasoning', summary: [{ type: 'summary_text', text: 'done' }] },
    { role: 'assistant', content: 'It is fixed' },
  )
  const call = (id: string, written: string) => ({
    id,
    type: 'function',
    function: { name: 'read', arguments: written },
  })
  t.same(messages, [
    { role: 'user', content: 'fix it' },
    {
      role: 'assistant',
      content: 'I look first',
      reasoning_content: 'hm',
      tool_calls: [call('c1', '{"path": "a"}'), call('c2', '{')],
    },
    { role: 'tool', tool_call_id: 'c1', content: 'text' },
    { role: 'tool', tool_call_id: 'c2', content: 'more' },
    { role: 'assistant', content: 'It is fixed', reasoning_content: 'done' },
  ])
})

t.test('two consecutive messages are two responses, and a refusal is not text', async (t) => {
  t.same(
    getMessages(
      { role: 'assistant', content: 'one' },
      { role: 'assistant', content: [{ type: 'refusal', refusal: 'no' }] },
    ),
    [
      { role: 'assistant', content: 'one' },
      { role: 'assistant', content: null, refusal: 'no' },
    ],
  )
})

t.test('reasoning is restored from encrypted_content in preference to its visible form', async (t) => {
  const sealed = seal('the real thing, é\n')
  t.equal(unseal(sealed), 'the real thing, é\n')
  const item = { type: 'reasoning', summary: [{ text: 'shown' }], encrypted_content: sealed }
  t.match(getMessages(item), [{ reasoning_content: 'the real thing, é\n' }])
  t.match(getMessages({ ...item, encrypted_content: 'gAAAAB' }), [{ reasoning_content: 'shown' }])
  t.same(getMessages({ type: 'reasoning', summary: [], encrypted_content: null }), [
    { role: 'assistant', content: null },
  ])
})

t.test(
  'messages between Codex agents become user messages, whether marked as encrypted or not',
  async (t) => {
    const envelope = { type: 'input_text', text: 'Message Type: NEW_TASK\nPayload:\n' }
    const item = { type: 'agent_message', author: '/root', recipient: '/root/helper' }
    const call = { type: 'function_call', call_id: 'c1', name: 'wait_agent', arguments: '{}' }
    t.same(
      getMessages(
        { ...item, content: [envelope, { type: 'encrypted_content', encrypted_content: 'Run the tests.' }] },
        call,
        { ...item, content: [{ type: 'input_text', text: 'They pass.' }] },
        { type: 'message', role: 'assistant', content: 'Done.' },
      ),
      [
        { role: 'user', content: 'Message Type: NEW_TASK\nPayload:\nRun the tests.' },
        {
          role: 'assistant',
          content: null,
          tool_calls: [{ id: 'c1', type: 'function', function: { name: 'wait_agent', arguments: '{}' } }],
        },
        { role: 'user', content: 'They pass.' },
        { role: 'assistant', content: 'Done.' },
      ],
    )
  },
)

t.test('custom tools and the local shell become functions for the model', async (t) => {
  const { lowered, wireTools, annotation } = lower(
    {
      tools: [
        {
          type: 'function',
          name: 'plain',
          parameters: { type: 'object' },
          strict: false,
          defer_loading: true,
        },
        { type: 'function', name: 'strict', description: null, parameters: null, strict: true },
        {
          type: 'custom',
          name: 'apply_patch',
          description: 'Edits files',
          format: { type: 'grammar', syntax: 'lark', definition: 'start: "x"' },
        },
        { type: 'local_shell' },
        {
          type: 'namespace',
          name: 'mcp__git__',
          description: 'd',
          tools: [{ type: 'function', name: 'log' }],
        },
        { type: 'namespace', name: 'web', tools: [{ type: 'custom', name: 'run' }] },
        { type: 'web_search', external_web_access: true },
        { type: 'image_generation', output_format: 'png' },
      ],
    },
    [...hi, { type: 'additional_tools', role: 'developer', tools: [{ type: 'function', name: 'late' }] }],
  )
  const functions = (lowered.body.tools ?? []).map((tool) => 'function' in tool && tool.function)
  t.match(functions, [
    { name: 'plain', parameters: { type: 'object' } },
    { name: 'strict', strict: true },
    { name: 'apply_patch', parameters: { required: ['input'] } },
    { name: 'local_shell', parameters: { required: ['command'] } },
    { name: 'mcp__git__log' },
    { name: 'web__run' },
    { name: 'late' },
  ])
  t.same(functions[0], { name: 'plain', parameters: { type: 'object' } }, 'only fields that a model reads')
  t.match(functions[2], {
    description: 'Edits files\n\nThe input must match this grammar (lark):\nstart: "x"',
  })
  t.same(Object.fromEntries(wireTools), {
    apply_patch: { type: 'custom', name: 'apply_patch' },
    local_shell: { type: 'local_shell', name: 'local_shell' },
    mcp__git__log: { type: 'function', name: 'log', namespace: 'mcp__git__' },
    web__run: { type: 'custom', name: 'run', namespace: 'web' },
  })
  t.same(annotation.dropped_tools, ['web_search', 'image_generation'])
})

t.test("tool calls of such tools are restored as the model's function calls", async (t) => {
  const action = { type: 'exec', command: ['ls', '-l'], env: {}, timeout_ms: 5, working_directory: null }
  const [assistantMessage, ...outputs] = getMessages(
    { type: 'custom_tool_call', call_id: 'c1', name: 'apply_patch', input: 'a\n"b"' },
    { type: 'custom_tool_call', call_id: 'c2:raw', name: 'run', namespace: 'web', input: '{"code": 1}' },
    { type: 'local_shell_call', id: 'lsh_1', call_id: 'c3', status: 'completed', action },
    { type: 'function_call', call_id: 'c4', name: 'log', namespace: 'mcp__git__', arguments: '{}' },
    { type: 'custom_tool_call_output', call_id: 'c1', output: 'ok' },
    { type: 'custom_tool_call_output', call_id: 'c2:raw', output: 'no' },
    { type: 'local_shell_call_output', id: 'c3', output: 'total 0' },
  )
  const calls = (assistantMessage as { tool_calls: { id: string; function: object }[] }).tool_calls
  t.same(
    calls.map((call) => ({ id: call.id, ...call.function })),
    [
      { id: 'c1', name: 'apply_patch', arguments: '{"input":"a\\n\\"b\\""}' },
      { id: 'c2', name: 'web__run', arguments: '{"code": 1}' },
      { id: 'c3', name: 'local_shell', arguments: '{"command":["ls","-l"],"timeout_ms":5}' },
      { id: 'c4', name: 'mcp__git__log', arguments: '{}' },
    ],
  )
  t.match(outputs, [
    { tool_call_id: 'c1' },
    { tool_call_id: 'c2' },
    { tool_call_id: 'c3', content: 'total 0' },
  ])
})

t.test('tool_choice is converted to a form that engines accept', async (t) => {
  const tools = [
    { type: 'function', name: 'f' },
    { type: 'custom', name: 'g' },
  ]
  const choose = (tool_choice: unknown) => getBody({ tools, tool_choice }).tool_choice
  t.equal(choose('required'), 'required')
  t.same(choose({ type: 'function', name: 'f' }), { type: 'function', function: { name: 'f' } })
  t.same(choose({ type: 'custom', name: 'g' }), { type: 'function', function: { name: 'g' } })
  const allowed = { type: 'allowed_tools', mode: 'required', tools: [{ type: 'custom', name: 'g' }] }
  t.match(getBody({ tools, tool_choice: allowed }), {
    tool_choice: 'required',
    tools: [{ function: { name: 'g' } }],
  })
  const codex = getBody({ tools: [{ type: 'web_search' }], tool_choice: 'auto' })
  t.notOk('tools' in codex || 'tool_choice' in codex, 'engines reject a tool_choice without tools')
})

t.test('an invalid body is rejected with the name of the field', async (t) => {
  const cases: [fields: object, items: unknown[] | undefined, param: string | undefined, code?: string][] = [
    [{ input: 3 }, undefined, 'input'],
    [{ input: undefined }, [], 'input'],
    [{}, ['hi'], 'input.0'],
    [{}, [{ role: 'wizard', content: 'x' }], 'input.0.role'],
    [{}, [{ role: 'user' }], 'input.0.content'],
    [{}, [{ role: 'user', content: [{ type: 'input_text' }] }], 'input.0.content.0.text'],
    [{}, [...hi, { type: 'function_call', name: 'f', arguments: '{}' }], 'input.1.call_id'],
    [{}, [{ type: 'function_call', call_id: 'c', name: 'f', arguments: {} }], 'input.0.arguments'],
    [{}, [{ type: 'function_call_output', call_id: 'c' }], 'input.0.output'],
    [{}, [{ type: 'reasoning', summary: 'x' }], 'input.0.summary'],
    [{}, [{ type: 'agent_message', content: [{ type: 'input_image' }] }], 'input.0.content.0'],
    [{}, [{ type: 'compaction', encrypted_content: 'x' }], 'input.0.type', 'unsupported'],
    [
      {},
      [{ role: 'user', content: [{ type: 'input_image', file_id: 'f' }] }],
      'input.0.content.0',
      'unsupported',
    ],
    [
      {},
      [{ role: 'user', content: [{ type: 'input_file', file_id: 'f' }] }],
      'input.0.content.0',
      'unsupported',
    ],
    [{}, [{ role: 'assistant', content: [{ type: 'input_image' }] }], 'input.0.content.0', 'unsupported'],
    [{ tools: [{}] }, hi, 'tools.0.type'],
    [{ tools: [{ type: 'function' }] }, hi, 'tools.0.name'],
    [{ tools: [{ type: 'custom', name: 'x', format: { type: 'grammar' } }] }, hi, 'tools.0.format.syntax'],
    [{ tools: [{ type: 'shell' }] }, hi, 'tools.0.type', 'unsupported'],
    [
      { tools: [{ type: 'namespace', name: 'n', tools: [{ type: 'shell' }] }] },
      hi,
      'tools.0.tools.0.type',
      'unsupported',
    ],
    [{ tool_choice: 'maybe' }, hi, 'tool_choice'],
    [{ tool_choice: { type: 'web_search_preview' } }, hi, 'tool_choice.type', 'unsupported'],
    [{ text: { format: { type: 'json_schema', schema: {} } } }, hi, 'text.format.name'],
    [{ background: true }, hi, 'background', 'unsupported'],
    [{ conversation: 'conv_1' }, hi, 'conversation', 'unsupported'],
    [{ prompt: { id: 'pmpt_1' } }, hi, 'prompt', 'unsupported'],
    [{ max_output_tokens: -1 }, hi, 'max_output_tokens'],
  ]
  for (const [fields, items, param, code = 'invalid_request'] of cases) {
    const rejected = getRejection(fields, items)
    t.match(rejected, { code, param }, JSON.stringify([fields, items]))
  }
})

t.test('a file that is not in the request is rejected with the field to send it in', async (t) => {
  for (const where of [{ file_id: 'f' }, { file_url: 'https://example.org/a.pdf' }]) {
    const content = [{ type: 'input_file', ...where }]
    t.match(getRejection({}, [{ role: 'user', content }]), { code: 'unsupported', message: /'file_data'/ })
  }
})

t.test('nesting that JSON cannot represent is rejected before recording', async (t) => {
  let deep: unknown = {}
  for (let depth = 0; depth < 100_000; depth++) deep = { deep }
  t.match(getRejection({ tools: [{ type: 'web_search', deep }] }), {
    code: 'invalid_request',
    message: /deeply/,
  })
})

t.test('an output without its function call becomes a text that names the function', async (t) => {
  const item = { type: 'function_call_output', id: 'fco_1', name: 'goal_objective', namespace: 'agent' }
  const image = { type: 'input_image', image_url: 'data:image/png;base64,AAAA' }
  t.same(getMessages({ ...item, output: 'Mend it.' }, { ...item, output: [image] }), [
    { role: 'user', content: 'goal_objective: Mend it.' },
    {
      role: 'user',
      content: [
        { type: 'text', text: 'goal_objective:' },
        { type: 'image_url', image_url: { url: image.image_url } },
      ],
    },
  ])
  t.match(getRejection({}, [{ type: 'function_call_output', output: 'x' }]), { param: 'input.0.call_id' })
})

t.test('every reasoning effort is forwarded unchanged', async (t) => {
  for (const effort of [...REASONING_EFFORTS, 'no_think'])
    t.equal(getBody({ model: 'm', reasoning: { effort } }).reasoning_effort, effort)
})

t.test('items that name another turn belong to another response', async (t) => {
  const [earlier, later] = ['11111111-2222-4333-8444-555555555555', '11111111-2222-4333-8444-666666666666']
  const reasoning = (id: string, text: string) => ({
    type: 'reasoning',
    id,
    summary: [{ type: 'summary_text', text }],
  })
  const call = { type: 'function_call', call_id: 'c', name: 'f', arguments: '{}' }
  const expected = [
    { role: 'assistant', content: null, reasoning_content: 'earlier' },
    { role: 'assistant', content: null, reasoning_content: 'later', tool_calls: [{ id: 'c' }] },
  ]
  t.match(
    getMessages(reasoning(`rs_${earlier}_0`, 'earlier'), reasoning(`rs_${later}_0`, 'later'), call),
    expected,
  )
  const one = [{ role: 'assistant', reasoning_content: 'earlierlater', tool_calls: [{ id: 'c' }] }]
  for (const [a, b] of [
    [`rs_${earlier}_0`, `rs_${earlier}_1`],
    ['rs_68a1', 'rs_68a2'],
    ['rs_a_0', 'rs_b_0'],
  ])
    t.match(getMessages(reasoning(a!, 'earlier'), reasoning(b!, 'later'), call), one, `${a} and ${b}`)
})
