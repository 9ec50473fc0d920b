/** Agents that send requests in several roles, as a trainer sees them. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import t from 'tap'
import { startProxy } from '../helpers/proxy.ts'

const HELLO = { model: 'x', max_tokens: 6 }
const user = (content: string): Anthropic.MessageParam => ({ role: 'user', content })

/** Creates a conversation with a fixed system prompt, tools and header. */
function conversation(
  anthropic: Anthropic,
  system: string,
  tool: string,
  headers: Record<string, string> = {},
) {
  const messages: Anthropic.MessageParam[] = []
  const tools = [{ name: tool, input_schema: { type: 'object' as const } }]
  return async (content: string) => {
    messages.push(user(content))
    const response = await anthropic.messages.create({ ...HELLO, system, tools, messages }, { headers })
    messages.push({ role: 'assistant', content: response.content })
  }
}

interface Row {
  line: string
  num_turns: number
  response_mask: number[]
  turns: { line: string }[]
}

const countTrained = (rows: Row[]) =>
  rows.flatMap(({ response_mask }) => response_mask).filter((mask) => mask === 1).length

for (const tokenizer of [undefined, 'embedded']) {
  t.test(
    `Claude Code's requests become separate rows by agent role (${tokenizer ? 'token' : 'chat'} mode)`,
    async (t) => {
      const proxy = await startProxy(t, tokenizer === undefined ? {} : { tokenizer })
      const defaultHeaders = { 'user-agent': 'claude-cli/2.1.330 (external, cli)' }
      const anthropic = new Anthropic({
        baseURL: `${proxy.url}/s`,
        apiKey: 'none',
        maxRetries: 0,
        defaultHeaders,
      })
      const main = conversation(anthropic, 'You are Claude Code.', 'Agent')
      const helper = conversation(anthropic, 'You help.', 'Bash', { 'x-claude-code-agent-id': 'a77' })
      await main('Mend it.')
      await helper('Look at it.')
      await anthropic.messages.create({
        ...HELLO,
        system: 'Make a title. Return JSON.',
        messages: [user('<session>\nMend it.\n</session>\n')],
        output_config: { format: { type: 'json_schema', schema: { type: 'object' } } },
      })
      await helper('Look closer.')
      await main('What did it say?')
      await main('CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.\n\nYour task is to sum up.')
      const after = conversation(anthropic, 'You are Claude Code.', 'Agent')
      await after('This session is being continued. Summary: it was looked at.')
      await after('Go on.')

      const { turns } = await proxy.get('/sessions/s')
      t.same(
        turns.map(({ line, line_rule }: Record<string, string>) => `${line} by ${line_rule}`),
        [
          'main by first',
          'subagent:a77 by claude_code_agent_id',
          'side by claude_code_session_title',
          'subagent:a77 by claude_code_agent_id',
          'main by continues',
          'compaction by claude_code_compaction_prompt',
          'main by opens_alike',
          'main by continues',
        ],
      )
      const getRows = async (
        query = '',
      ): Promise<{ trajectories: Row[]; excluded_turns: { side: number } }> =>
        proxy.get(`/sessions/s/trajectories${query}`)
      const all = await getRows()
      t.same(
        all.trajectories.map((row) => [row.line, row.turns.map(({ line }) => line)]),
        [
          ['subagent:a77', ['subagent:a77', 'subagent:a77']],
          ['main', ['main', 'main', 'compaction']],
          ['main', ['main', 'main']],
        ],
      )
      t.equal(all.excluded_turns.side, 1)
      const sampled = turns.map(
        (turn: { completion_token_ids: number[] }) => turn.completion_token_ids.length,
      )
      const sum = (counts: number[]) => counts.reduce((left, right) => left + right, 0)
      t.equal(countTrained(all.trajectories), sum(sampled) - sampled[2])
      t.equal(countTrained((await getRows('?side_calls=true')).trajectories), sum(sampled))
      t.same(
        (await getRows('?select=main')).trajectories.map(({ line, num_turns }) => [line, num_turns]),
        [
          ['main', 3],
          ['main', 2],
        ],
      )
      t.equal(
        countTrained((await getRows('?select=main')).trajectories),
        sum(sampled) - sum(sampled.slice(1, 4)),
      )
    },
  )
}

t.test("Codex's compaction has no tools, and is a separate row of the main role", async (t) => {
  const proxy = await startProxy(t)
  const openai = new OpenAI({ baseURL: proxy.baseUrl('s'), apiKey: 'none', maxRetries: 0 })
  const tools = [{ type: 'function' as const, name: 'exec_command', parameters: {}, strict: null }]
  const sendRequest = (content: string, kind: string, thread: Record<string, string> = {}) =>
    openai.responses.create(
      {
        model: 'x',
        max_output_tokens: 6,
        input: [
          { role: 'developer', content: 'You are Codex.' },
          { role: 'user', content },
        ],
        ...(kind === 'turn' && { tools }),
      },
      {
        headers: {
          'thread-id': 't0',
          'x-codex-turn-metadata': JSON.stringify({ request_kind: kind }),
          ...thread,
        },
      },
    )
  await sendRequest('mend it', 'turn')
  await sendRequest('look at it', 'turn', { 'thread-id': 't1', 'x-openai-subagent': 'collab_spawn' })
  await sendRequest('mend it, and: you are performing a compaction', 'compaction')
  await sendRequest('summary: mend it', 'turn')
  const rows = async (query: string) =>
    (await proxy.get(`/sessions/s/trajectories${query}`)).trajectories.map(({ line }: Row) => line)
  t.same(await rows(''), ['main', 'subagent:t1', 'compaction', 'main'])
  t.same(await rows('?select=main'), ['main', 'compaction', 'main'])
})

t.test('an agent may declare its role with a header; an unknown role is rejected', async (t) => {
  const proxy = await startProxy(t)
  const openai = new OpenAI({
    baseURL: proxy.baseUrl('s'),
    apiKey: 'none',
    maxRetries: 0,
    defaultHeaders: { 'x-llm-proxy-line': 'subagent:critic' },
  })
  const messages = [{ role: 'user' as const, content: 'hi' }]
  await openai.chat.completions.create({ ...HELLO, messages })
  await openai.completions.create({ ...HELLO, prompt: 'Once' }, { headers: { 'x-llm-proxy-line': 'side' } })
  t.match((await proxy.get('/sessions/s')).turns, [
    { line: 'subagent:critic', line_rule: 'header', annotations: { line: { told: 'subagent:critic' } } },
    { line: 'side', line_rule: 'header' },
  ])
  const wrong = { headers: { 'x-llm-proxy-line': 'Main' } }
  const rejected = await openai.chat.completions
    .create({ ...HELLO, messages }, wrong)
    .catch((error: unknown) => error)
  t.ok(rejected instanceof OpenAI.BadRequestError)
  t.match(rejected, { param: 'x-llm-proxy-line', code: 'invalid_request' })
  const anthropic = new Anthropic({ baseURL: `${proxy.url}/s`, apiKey: 'none', maxRetries: 0 })
  const anthropicError = await anthropic.messages
    .create({ ...HELLO, messages }, wrong)
    .catch((error: unknown) => error)
  t.match(anthropicError, { status: 400, type: 'invalid_request_error' })
  t.equal((await proxy.get('/sessions/s')).turns.length, 2, 'nothing was recorded')
})
