/** Requests as agents send them, with as many parts as a dialect has. */

const PIXEL =
  'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='
const parameters = {
  type: 'object',
  properties: { command: { type: 'string', enum: ['ls', 'cat'] }, depth: { type: 'integer', minimum: 0 } },
  required: ['command'],
  additionalProperties: false,
}

const chatTool = {
  type: 'function',
  function: { name: 'run', description: 'Runs a command', parameters, strict: true },
}
const chatToolCall = {
  id: 'call_1',
  type: 'function',
  function: { name: 'run', arguments: '{"command": "ls"}' },
}

export const CHAT: object[] = [
  {
    model: 'x',
    messages: [
      { role: 'system', content: 'Be brief.' },
      {
        role: 'user',
        name: 'Ann',
        content: [
          { type: 'text', text: 'What is this?' },
          { type: 'image_url', image_url: { url: `data:image/png;base64,${PIXEL}`, detail: 'low' } },
        ],
      },
      { role: 'assistant', content: null, reasoning_content: 'hm', tool_calls: [chatToolCall] },
      { role: 'tool', tool_call_id: 'call_1', content: 'a.txt' },
      { role: 'assistant', content: 'One file.', refusal: null },
      { role: 'user', content: 'And now?' },
    ],
    tools: [chatTool],
    tool_choice: { type: 'function', function: { name: 'run' } },
    parallel_tool_calls: false,
    temperature: 0.7,
    top_p: 0.9,
    max_completion_tokens: 16,
    n: 1,
    stop: ['END', '\n\n'],
    seed: 7,
    logprobs: true,
    top_logprobs: 2,
    logit_bias: { '50256': -100 },
    response_format: { type: 'json_schema', json_schema: { name: 'r', schema: parameters, strict: true } },
    stream_options: { include_usage: true },
    metadata: { task: 't' },
    user: 'u',
  },
  {
    messages: [
      {
        role: 'developer',
        content: [{ type: 'text', text: 'Be brief.', cache_control: { type: 'ephemeral' } }],
      },
      { role: 'user', content: 'hi' },
    ],
    max_tokens: 5,
    stream: true,
    return_token_ids: true,
    repetition_penalty: 1.1,
    chat_template_kwargs: { enable_thinking: false },
  },
]

export const COMPLETIONS: object[] = [
  {
    model: 'x',
    prompt: 'Once upon',
    max_tokens: 4,
    temperature: 1,
    top_p: 1,
    n: 1,
    stop: ['.'],
    logprobs: 2,
    echo: false,
    suffix: null,
    seed: 1,
    stream_options: { include_usage: true },
    user: 'u',
  },
  { prompt: [1, 2, 3], max_tokens: 4, stream: true, return_token_ids: true },
]

const ephemeral = { type: 'ephemeral' }

export const MESSAGES: object[] = [
  {
    model: 'x',
    max_tokens: 6,
    system: [
      { type: 'text', text: 'x-anthropic-billing-header: cc_version=2.1.330.d08; cc_entrypoint=sdk-cli;' },
      { type: 'text', text: 'You are Claude Code.', cache_control: ephemeral },
    ],
    messages: [
      {
        role: 'user',
        content: [
          { type: 'text', text: '<system-reminder>\nx\n</system-reminder>' },
          { type: 'image', source: { type: 'base64', media_type: 'image/png', data: PIXEL } },
          { type: 'document', title: 't', source: { type: 'text', media_type: 'text/plain', data: 'd' } },
        ],
      },
      { role: 'system', content: [{ type: 'text', text: '# Environment', cache_control: ephemeral }] },
      {
        role: 'assistant',
        content: [
          { type: 'thinking', thinking: 'hm', signature: 'llm-proxy:aG0=' },
          { type: 'redacted_thinking', data: 'xyz' },
          { type: 'text', text: 'I look.', citations: null },
          {
            type: 'tool_use',
            id: 'toolu_1',
            name: 'run',
            input: { command: 'ls' },
            cache_control: ephemeral,
          },
          { type: 'tool_use', id: 'toolu_2', name: 'run', input: { INVALID_JSON: '{"co' } },
        ],
      },
      {
        role: 'user',
        content: [
          {
            type: 'tool_result',
            tool_use_id: 'toolu_1',
            is_error: false,
            content: [
              { type: 'text', text: 'a.txt' },
              { type: 'image', source: { type: 'url', url: 'https://example.org/a.png' } },
            ],
          },
          { type: 'tool_result', tool_use_id: 'toolu_2', is_error: true, content: 'no' },
          { type: 'text', text: 'And now?' },
        ],
      },
    ],
    tools: [
      { name: 'run', description: 'Runs a command', input_schema: parameters, cache_control: ephemeral },
    ],
    tool_choice: { type: 'tool', name: 'run', disable_parallel_tool_use: true },
    stop_sequences: ['END'],
    temperature: 1,
    top_p: 0.9,
    top_k: 5,
    metadata: { user_id: '{"device_id":"d","session_id":"s"}' },
    thinking: { type: 'enabled', budget_tokens: 1024, display: 'omitted' },
    output_config: { effort: 'high', format: { type: 'json_schema', schema: parameters } },
    context_management: { edits: [{ type: 'clear_thinking_20251015', keep: 'all' }] },
    service_tier: 'auto',
    chat_template_kwargs: { a: 1 },
  },
  {
    model: 'x',
    max_tokens: 6,
    stream: true,
    system: 'Be brief.',
    messages: [{ role: 'user', content: 'hi' }],
  },
]

export const RESPONSES: object[] = [
  {
    model: 'x',
    instructions: 'You are Codex.',
    input: [
      { type: 'message', role: 'developer', content: [{ type: 'input_text', text: '<permissions/>' }] },
      {
        role: 'user',
        content: [
          { type: 'input_text', text: 'fix the bug' },
          { type: 'input_image', image_url: `data:image/png;base64,${PIXEL}`, detail: 'auto' },
          { type: 'input_file', filename: 'a.txt', file_data: 'data:text/plain;base64,YQ==' },
        ],
      },
      {
        type: 'reasoning',
        id: 'rs_1',
        summary: [{ type: 'summary_text', text: 's' }],
        content: [{ type: 'reasoning_text', text: 'r' }],
        encrypted_content: 'llm-proxy:aG0=',
      },
      { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: 'a', annotations: [] }] },
      { type: 'custom_tool_call', call_id: 'c0', name: 'apply_patch', input: '*** Begin Patch' },
      { type: 'custom_tool_call_output', call_id: 'c0', output: 'ok' },
      {
        type: 'local_shell_call',
        call_id: 'c1',
        action: { type: 'exec', command: ['ls'], env: {}, timeout_ms: 5 },
      },
      { type: 'local_shell_call_output', id: 'c1', call_id: 'c1', output: '{}' },
      {
        type: 'function_call',
        call_id: 'c2',
        name: 'log',
        namespace: 'mcp__git__',
        arguments: '{"command":"ls"}',
      },
      { type: 'function_call_output', call_id: 'c2', output: [{ type: 'input_text', text: 'x' }] },
    ],
    tools: [
      { type: 'function', name: 'run', description: 'Runs a command', parameters, strict: false },
      {
        type: 'custom',
        name: 'apply_patch',
        description: 'Edits files',
        format: { type: 'grammar', syntax: 'lark', definition: 'start: begin end' },
      },
      { type: 'local_shell' },
      { type: 'web_search', external_web_access: false },
      {
        type: 'namespace',
        name: 'mcp__git__',
        description: 'git',
        tools: [{ type: 'function', name: 'log' }],
      },
    ],
    tool_choice: { type: 'allowed_tools', mode: 'auto', tools: [{ type: 'function', name: 'run' }] },
    parallel_tool_calls: true,
    reasoning: { effort: 'medium', summary: 'auto' },
    text: { verbosity: 'low', format: { type: 'json_schema', name: 'r', schema: parameters, strict: true } },
    include: ['reasoning.encrypted_content', 'message.output_text.logprobs'],
    top_logprobs: 2,
    max_output_tokens: 16,
    temperature: 1,
    top_p: 1,
    truncation: 'disabled',
    store: false,
    prompt_cache_key: 'thread-1',
    client_metadata: { originator: 'codex_exec' },
    metadata: { task: 't' },
    user: 'u',
  },
  {
    model: 'x',
    input: 'hi',
    stream: true,
    previous_response_id: null,
    background: false,
    service_tier: 'auto',
  },
]
