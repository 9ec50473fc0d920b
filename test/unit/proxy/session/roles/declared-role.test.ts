/** The headers and texts are those of real agents: Claude Code 2.1.330, Codex 0.169.0, opencode. */
import t from 'tap'
import { findDeclaredRole, type Headers } from '../../../../../src/proxy/session/roles/declared-role.ts'
import { assistant, type RecordedRequest, system, user } from './recorded-requests.ts'

function describeRole({ messages, tools = [], headers = {}, body }: RecordedRequest): string | undefined {
  const functions = tools.map((name) => ({ type: 'function' as const, function: { name } }))
  const found = findDeclaredRole({
    headers,
    request: { kind: 'chat', body: { ...body, messages, tools: functions } },
  })
  return found && `${found.told} by ${found.rule}`
}

const messages = [system('You work.'), user('task')]
const describeHeaders = (headers: Headers) => describeRole({ messages, headers })

t.test('an agent may declare the role of a request, as may the program that starts it', async (t) => {
  for (const agentRole of ['main', 'compaction', 'side', 'subagent', 'subagent:critic/1']) {
    t.equal(describeHeaders({ 'x-llm-proxy-agent-role': agentRole }), `${agentRole} by header`)
    t.equal(
      describeHeaders({ 'x-llm-proxy-line': agentRole }),
      `${agentRole} by header`,
      'the former name of the header',
    )
  }
  const subagent = { 'x-claude-code-agent-id': 'a1' }
  t.equal(describeHeaders({ ...subagent, 'x-llm-proxy-agent-role': 'main' }), 'main by header')
  t.equal(describeHeaders({ 'x-llm-proxy-agent-role': 'main', 'x-llm-proxy-line': 'side' }), 'main by header')
})

t.test('an unknown role is rejected with the name of the header', async (t) => {
  for (const agentRole of [
    'Main',
    'subagent:',
    'subagent:a b',
    `subagent:${'x'.repeat(201)}`,
    'main, side',
  ]) {
    for (const param of ['x-llm-proxy-agent-role', 'x-llm-proxy-line'])
      t.throws(() => describeHeaders({ [param]: agentRole }), { code: 'invalid_request', param })
  }
})

t.test('an agent without metadata declares nothing', async (t) => {
  t.equal(describeHeaders({}), undefined)
  t.equal(describeHeaders({ 'user-agent': 'OpenAI/Python 2.1', 'x-stainless-retry-count': '0' }), undefined)
  t.equal(
    findDeclaredRole({ headers: {}, request: { kind: 'completion', body: { prompt: 'x' } } }),
    undefined,
  )
})

const CLAUDE = { 'user-agent': 'claude-cli/2.1.330 (external, sdk-cli)', 'x-app': 'cli' }

t.test("Claude Code's subagents have an id", async (t) => {
  t.equal(describeHeaders(CLAUDE), undefined, 'the main agent has none')
  const subagent = { ...CLAUDE, 'x-claude-code-agent-id': 'afd963e5d45844384' }
  t.equal(describeHeaders(subagent), 'subagent:afd963e5d45844384 by claude_code_agent_id')
  t.equal(
    describeHeaders({ ...CLAUDE, 'x-claude-code-agent-id': 'ä'.repeat(300) }),
    'subagent by claude_code_agent_id',
  )
})

t.test("Claude Code's classes of requests are roles", async (t) => {
  const agentRoles = {
    main: 'main',
    subagent: 'subagent',
    workflow: 'subagent',
    compaction: 'compaction',
    auxiliary: 'side',
    side_reply: 'side',
  }
  for (const [name, agentRole] of Object.entries(agentRoles)) {
    const headers = { ...CLAUDE, 'x-claude-code-request-class': name }
    t.equal(describeHeaders(headers), `${agentRole} by claude_code_request_class`)
  }
  t.equal(
    describeHeaders({ ...CLAUDE, 'x-claude-code-request-class': 'constructor' }),
    undefined,
    'and no other texts are',
  )
})

t.test(
  "a compaction by a subagent of Claude Code has that subagent's role; its side requests are side requests",
  async (t) => {
    const describeClass = (name: string) =>
      describeHeaders({ ...CLAUDE, 'x-claude-code-agent-id': 'a1', 'x-claude-code-request-class': name })
    t.match(describeClass('compaction'), 'subagent:a1 ')
    t.match(describeClass('auxiliary'), 'side ')
  },
)

t.test('requests that Claude Code does not declare are detected by their texts', async (t) => {
  const describeRequest = (content: string, overrides: Partial<RecordedRequest> = {}) =>
    describeRole({ messages: [system('You are …'), user(content)], headers: CLAUDE, ...overrides })
  const compact = 'CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\n- Do NOT use Read …'
  t.equal(describeRequest(compact, { tools: ['Bash'] }), 'compaction by claude_code_compaction_prompt')
  const title = { body: { response_format: { type: 'json_schema' } } }
  t.equal(describeRequest('<session>\nfix the bug\n</session>', title), 'side by claude_code_session_title')
  t.equal(describeRequest('\nWeb page content:\n---\n# Hi\n---\n\nSum it up'), 'side by claude_code_web_page')
  const probe = { messages: [user('quota')], headers: CLAUDE, body: { max_tokens: 1 } }
  t.equal(describeRole(probe), 'side by claude_code_quota_probe')
  t.equal(describeRole({ ...probe, headers: {} }), undefined, "other agents' texts are not significant")
  t.equal(describeRequest(compact, { headers: {} }), undefined)
})

const CODEX = {
  originator: 'codex_exec',
  'user-agent': 'codex_exec/0.169.0 (Debian 12; x86_64)',
  'thread-id': 't1',
}
const createTurnMetadata = (request_kind: string) => ({
  'x-codex-turn-metadata': JSON.stringify({ request_kind }),
})

t.test("Codex's turns declare their purpose", async (t) => {
  t.equal(describeHeaders({ ...CODEX, ...createTurnMetadata('turn') }), 'main by codex_request_kind')
  t.equal(
    describeHeaders({ ...CODEX, ...createTurnMetadata('compaction') }),
    'compaction by codex_request_kind',
  )
  t.equal(describeHeaders({ ...CODEX, ...createTurnMetadata('memory') }), 'side by codex_memory')
  t.equal(
    describeHeaders({ ...CODEX, ...createTurnMetadata('turn'), 'x-openai-memgen-request': 'true' }),
    'side by codex_memory',
  )
  for (const metadata of ['', '{', 'null', '[]', '"turn"', '{"request_kind":["turn"]}']) {
    t.equal(describeHeaders({ ...CODEX, 'x-codex-turn-metadata': metadata }), undefined, metadata)
  }
})

t.test("Codex's subagents are the threads that they run in", async (t) => {
  const subagent = (name: string) =>
    describeHeaders({ ...CODEX, ...createTurnMetadata('turn'), 'x-openai-subagent': name })
  t.equal(subagent('collab_spawn'), 'subagent:t1 by codex_subagent')
  t.equal(subagent('review'), 'subagent:t1 by codex_subagent')
  t.equal(subagent('compact'), 'compaction by codex_subagent')
  t.equal(subagent('memory_consolidation'), 'side by codex_subagent')
  t.equal(subagent('guardian'), 'side by codex_subagent')
  const compacting = { ...CODEX, ...createTurnMetadata('compaction'), 'x-openai-subagent': 'collab_spawn' }
  t.equal(describeHeaders(compacting), 'subagent:t1 by codex_subagent', 'its compaction is part of its work')
})

const OPENCODE = { 'user-agent': 'opencode/1.3.0 ai-sdk/openai-compatible', 'x-session-id': 'ses_b' }

t.test("opencode's subagents run in sessions that have a parent", async (t) => {
  t.equal(describeHeaders(OPENCODE), undefined)
  t.equal(
    describeHeaders({ ...OPENCODE, 'x-parent-session-id': 'ses_a' }),
    'subagent:ses_b by opencode_parent_session',
  )
  const zen = {
    'user-agent': 'opencode/1.3.0',
    'x-opencode-session': 'ses_c',
    'x-parent-session-id': 'ses_a',
  }
  t.equal(describeHeaders(zen), 'subagent:ses_c by opencode_parent_session')
})

t.test("opencode's titles, summaries and compaction are detected by their system prompts", async (t) => {
  const describeRequest = (prompt: string, headers: Headers = OPENCODE) =>
    describeRole({ messages: [system(prompt), user('task'), assistant('a'), user('go')], headers })
  const title = 'You are a title generator. You output ONLY a thread title. Nothing else.'
  t.equal(describeRequest(title), 'side by opencode_title')
  t.equal(describeRequest(title, {}), undefined, "other agents' texts are not significant")
  t.equal(
    describeRequest('Summarize what was done in this conversation. Write like …'),
    'side by opencode_summary',
  )
  const compaction = 'You are an anchored context summarization assistant for coding sessions.\n'
  t.equal(describeRequest(compaction), 'compaction by opencode_compaction')
  const ofSubagent = { ...OPENCODE, 'x-parent-session-id': 'ses_a' }
  t.equal(describeRequest(compaction, ofSubagent), 'subagent:ses_b by opencode_parent_session')
})

t.test(
  'side requests that repeat the conversation of the main agent are detected by their texts',
  async (t) => {
    const [QWEN, GEMINI] = [
      { 'user-agent': 'QwenCode/0.24.4 (linux; x64)' },
      { 'user-agent': 'GeminiCLI/0.61.0/embedded (linux; x64; terminal)' },
    ]
    const history = [user('task'), assistant('done')]
    const nextSpeaker =
      'Analyze *only* the content and structure of your immediately preceding response (your last turn)'
    const rows: [Headers, string, string, string | undefined][] = [
      [
        QWEN,
        'You are now acting as the managed memory extraction subagent for an AI',
        'x',
        'side by qwen_code_memory',
      ],
      [QWEN, 'You are performing a managed memory dream — a', 'x', 'side by qwen_code_memory'],
      [
        QWEN,
        'You are reviewing this conversation to extract reusable skills.',
        'x',
        'side by qwen_code_memory',
      ],
      [QWEN, 'Generate a concise, sentence-case title (3-7 words)', 'x', 'side by qwen_code_side_query'],
      [
        QWEN,
        '\nYou are the component that summarizes a conversation when its context window is about to overflow.',
        'x',
        'compaction by qwen_code_compaction',
      ],
      [QWEN, 'You work.', '[SUGGESTION MODE: Suggest what the user might', 'side by qwen_code_next_words'],
      [QWEN, 'You work.', nextSpeaker, 'side by qwen_code_next_words'],
      [GEMINI, 'You work.', nextSpeaker, 'side by gemini_cli_next_words'],
      [
        GEMINI,
        '\nYou are a specialized system component responsible for distilling chat history into',
        'x',
        'compaction by gemini_cli_compaction',
      ],
      [CLAUDE, 'You work.', '[SUGGESTION MODE: Suggest what the user', 'side by claude_code_side_question'],
      [
        CLAUDE,
        'You work.',
        '<system-reminder>This is a side question from the user. You must answer',
        'side by claude_code_side_question',
      ],
      [
        {},
        'You are a context summarization assistant. Your task is to read a conversation between a user and an AI coding',
        'x',
        'compaction by pi_compaction',
      ],
      [
        {},
        'Summarize the provided coding session into a concise continuation note with detailed next steps.',
        'Summarize this session for continuation. Be concise and factual.',
        'compaction by cline_compaction',
      ],
      [
        {},
        'You compact coding-agent conversations without losing information that future turns will need.\n\nOutput a',
        'Summarise the following conversation segment.',
        'compaction by nanocoder_compaction',
      ],
      [{}, 'You work.', 'Summarize the provided coding session into a concise continuation note', undefined],
      [
        {},
        'You work.',
        '<role>\nContext Extraction Assistant\n</role>\n',
        'compaction by langchain_compaction',
      ],
      [{}, 'You work.', '[SUGGESTION MODE: Suggest what the user might', undefined],
      [GEMINI, 'You are now acting as the managed memory extraction subagent', 'x', undefined],
      [QWEN, 'You work.', 'What does [SUGGESTION MODE: mean?', undefined],
    ]
    for (const [headers, prompt, last, expected] of rows)
      t.equal(
        describeRole({ messages: [system(prompt), ...history, user(last)], headers }),
        expected,
        `${prompt} ${last}`,
      )
  },
)
