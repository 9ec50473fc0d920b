/**
 * What agents do to the calls that they send back: they fill in defaults, strip white space, parse numbers and rename
 * tools. In token mode a task is one row all the same; in chat mode, where the engine reads what the agent wrote, a row
 * ends at each such call. The table of docs/agents.md is made here (UPDATE=1).
 */
import { cpSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { generatedSection } from '../helpers/generated-text.ts'
import { type Agent, type AgentRun, runAgent, SHELL_ENV } from './parts/agent.ts'
import { installFromNpm } from './parts/install.ts'
import { playbookOf, type Step, taskIn } from './parts/script.ts'
import { checkRows } from './parts/session-checks.ts'

const PROGRAMS = join(import.meta.dirname, 'programs')

interface Case {
  agent: Agent
  does: string
  steps: readonly Step[]
  /** Of the main conversation. */
  rows: { token: number; chat: number }
}

const DONE: Step = { says: 'Done.' }
const call = (tool: string, args: Record<string, unknown>): Step => ({ calls: [{ tool, arguments: args }] })

async function claudeCode(): Promise<Case[]> {
  const { version, folder } = await installFromNpm('@anthropic-ai/claude-code', 'install.cjs')
  const agent: Agent = {
    name: `Claude Code ${version}`,
    dialect: 'messages',
    program: ({ baseUrl, task, home }) => {
      const servers = { sums: { command: process.execPath, args: [join(PROGRAMS, 'mcp-server.mjs')] } }
      const mcp = join(home, 'mcp.json')
      writeFileSync(mcp, JSON.stringify({ mcpServers: servers }))
      const allowed = ['Write', 'Edit', 'Bash', 'Read', 'mcp__sums__sum']
      return {
        command: join(folder, 'node_modules/.bin/claude'),
        args: ['-p', task, '--mcp-config', mcp, '--allowedTools', ...allowed],
        env: {
          ...SHELL_ENV,
          HOME: home,
          ANTHROPIC_BASE_URL: baseUrl,
          ANTHROPIC_AUTH_TOKEN: 'none',
          CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
          ENABLE_TOOL_SEARCH: 'false',
        },
      }
    },
  }
  const bash = (command: string) =>
    call('Bash', { command: `cd $<folder> && ${command}`, description: 'Run' })
  const fib = '$<folder>/fib.py'
  // After more calls than these it adds a reminder, which the script would not know as a result.
  const task = [
    bash('ls -la'),
    call('Write', { file_path: fib, content: 'def fib(n):  \n    return n\t\n' }),
    call('Edit', { file_path: fib, old_string: 'return n', new_string: 'return n + 0  ' }),
    bash('cat fib.py'),
    DONE,
  ]
  const sums = [
    call('mcp__sums__sum', { a: '1.5', count: '2' }),
    call('mcp__sums__sum', { a: 1, names: '["x"]', loud: 'true' }),
    DONE,
  ]
  return [
    { agent, does: 'edits, writes, `cd … &&`', steps: task, rows: { token: 1, chat: 5 } },
    { agent, does: 'MCP, values as text', steps: sums, rows: { token: 1, chat: 3 } },
  ]
}

async function aiSdk(): Promise<Case[]> {
  const others = ['zod', '@ai-sdk/openai-compatible', '@ai-sdk/openai', '@ai-sdk/anthropic']
  const { version, folder } = await installFromNpm('ai', undefined, others)
  const agentOn = (dialect: Agent['dialect']): Agent => ({
    name: `AI SDK ${version}, zod`,
    dialect,
    program: ({ baseUrl, task, home }) => {
      const program = join(home, 'agent.mjs')
      cpSync(join(PROGRAMS, 'ai-sdk-zod.mjs'), program)
      symlinkSync(join(folder, 'node_modules'), join(home, 'node_modules'))
      return {
        command: process.execPath,
        args: [program, dialect, task],
        env: { ...SHELL_ENV, HOME: home, OPENAI_BASE_URL: `${baseUrl}/v1` },
      }
    },
  })
  const steps = [
    call('bash', { command: 'ls' }),
    call('bash', { command: ' ls  ', timeout: '7' }),
    call('write', { path: 'a.txt', content: 'x  \n', unknown: 1 }),
    {
      calls: [
        { tool: 'bash', arguments: { command: 'a' } },
        { tool: 'bash', arguments: { command: 'b' } },
      ],
    },
    DONE,
  ]
  return (['chat', 'responses', 'messages'] as const).map((dialect) => ({
    ...{ agent: agentOn(dialect), does: 'defaults, `trim`, `coerce`', steps },
    rows: { token: 1, chat: 5 },
  }))
}

async function opencode(): Promise<Case[]> {
  const { version, folder } = await installFromNpm('opencode-ai', 'postinstall.mjs')
  const agent: Agent = {
    name: `opencode ${version}`,
    dialect: 'chat',
    program: ({ baseUrl, task, home }) => {
      const config = join(home, 'opencode.json')
      const options = { baseURL: `${baseUrl}/v1`, apiKey: 'none' }
      const provider = { npm: '@ai-sdk/openai-compatible', options, models: { embedded: {} } }
      writeFileSync(config, JSON.stringify({ provider: { proxy: provider }, model: 'proxy/embedded' }))
      return {
        command: join(folder, 'node_modules/.bin/opencode'),
        args: ['run', task],
        env: {
          ...SHELL_ENV,
          HOME: home,
          OPENCODE_CONFIG: config,
          OPENCODE_DISABLE_AUTOUPDATE: '1',
          OPENCODE_DISABLE_MODELS_FETCH: '1',
        },
      }
    },
  }
  const steps = [
    call('bash', { command: 'ls', description: 'List' }),
    call('no_such_tool', { x: 1 }),
    call('BASH', { command: 'ls', description: 'List' }),
    DONE,
  ]
  return [{ agent, does: 'calls of tools that are not there', steps, rows: { token: 1, chat: 3 } }]
}

interface Measured {
  rows: number
  tokens: number
}

/** Calls without tools, such as for a title, are on the side. */
function measured({ turns, rows }: AgentRun): Measured {
  const sides = new Set(turns.filter(({ tools }) => !tools?.length).map(({ index }) => index))
  const main = rows.filter((row) => !row.turns.every(({ index }) => sides.has(index)))
  const lengths = main.map((row) => row.prompt_ids.length + row.response_ids.length)
  return { rows: main.length, tokens: lengths.reduce((sum, length) => sum + length, 0) }
}

const lines = [
  '| agent | dialect | what it sends back changed | calls | rows in token mode | rows in chat mode | tokens of rows in chat mode |',
  '|---|---|---|---|---|---|---|',
]
for (const { agent, does, steps, rows } of (await Promise.all([claudeCode(), aiSdk(), opencode()])).flat()) {
  await t.test(`${agent.name}, ${agent.dialect}: ${does}`, async (t) => {
    const found: Partial<Record<'token' | 'chat', Measured>> = {}
    for (const prompts of ['token', 'chat'] as const) {
      const playbook = playbookOf(steps, 'tidy')
      const run = await runAgent(t, agent, { mode: 'local', prompts, playbook }, taskIn)
      t.equal(run.code, 0, 'it ends well', { output: run.output })
      const main = run.turns.filter(({ tools }) => tools?.length)
      const said = main.map((turn) => turn.tool_calls.map((one) => one.function.name))
      const script = steps.map(({ calls = [] }) => calls.map(({ tool }) => tool))
      t.strictSame(said, script, 'each step is a call')
      for (const turn of main) t.match(turn, { status: 'completed', dialect: agent.dialect })
      const own = run.rows.filter((row) =>
        row.turns.some(({ index }) => main.some((turn) => turn.index === index)),
      )
      checkRows(t, main, own)
      found[prompts] = measured(run)
      if (prompts === 'token') {
        const last = main.at(-1)!
        const length = last.prompt_token_ids.length + last.completion_token_ids.length
        t.equal(found.token?.tokens, length, 'no token stands in two rows')
      }
    }
    t.strictSame({ token: found.token?.rows, chat: found.chat?.rows }, rows)
    const ratio = (found.chat!.tokens / found.token!.tokens).toFixed(1)
    lines.push(
      `| ${agent.name} | ${agent.dialect} | ${does} | ${steps.length} | ${found.token!.rows} | ${found.chat!.rows} | ${ratio} times |`,
    )
  })
}

t.test('docs/agents.md has what was measured (UPDATE=1 writes it anew)', async (t) => {
  const path = join(import.meta.dirname, '../../docs/agents.md')
  const withoutTokens = (table: string) => table.replaceAll(/\| [\d.]+ times \|$/gm, '|')
  const table = lines.join('\n')
  t.equal(withoutTokens(generatedSection(path, 'histories', table)), withoutTokens(table))
})
