import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from '../parts/agent.ts'
import { installFromNpm } from '../parts/install.ts'
import { createPlaybook, FOLDER_PATTERN } from '../parts/script.ts'
import { callTool, DONE, type HistoryCase } from './case.ts'

const PROGRAMS = join(import.meta.dirname, '../programs')

export async function createClaudeCodeCases(): Promise<HistoryCase[]> {
  const { version, folder } = await installFromNpm('@anthropic-ai/claude-code', 'install.cjs')
  /** @param script a shell script whose arguments are the command, and whose `$0` is the folder */
  const createAgent = (script = '"$@" -p "$TASK"'): Agent => ({
    name: `Claude Code ${version}`,
    dialect: 'messages',
    program: ({ baseUrl, task, home, work }) => {
      const servers = { sums: { command: process.execPath, args: [join(PROGRAMS, 'mcp-server.mjs')] } }
      const mcp = join(home, 'mcp.json')
      writeFileSync(mcp, JSON.stringify({ mcpServers: servers }))
      const program = join(folder, 'node_modules/.bin/claude')
      const allowedTools = 'Write,Edit,Bash,Read,Agent,mcp__sums__sum'
      return {
        command: 'sh',
        args: ['-c', script, work, program, '--mcp-config', mcp, '--allowedTools', allowedTools],
        env: {
          ...SHELL_ENV,
          HOME: home,
          TASK: task,
          ANTHROPIC_BASE_URL: baseUrl,
          ANTHROPIC_AUTH_TOKEN: 'none',
          CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
          ENABLE_TOOL_SEARCH: 'false',
        },
      }
    },
  })
  const agent = createAgent()
  const bash = (command: string) =>
    callTool('Bash', { command: `cd $<folder> && ${command}`, description: 'Run' })
  const fib = '$<folder>/fib.py'
  // After more tool calls than these, Claude Code adds a reminder, which the playbook does not match as a result.
  const task = [
    bash('ls -la'),
    callTool('Write', { file_path: fib, content: 'def fib(n):  \n    return n\t\n' }),
    callTool('Edit', { file_path: fib, old_string: 'return n', new_string: 'return n + 0  ' }),
    bash('cat fib.py'),
    DONE,
  ]
  const sums = [
    callTool('mcp__sums__sum', { a: '1.5', count: '2' }),
    callTool('mcp__sums__sum', { a: 1, names: '["x"]', loud: 'true' }),
    DONE,
  ]
  const second = [bash('ls'), callTool('Write', { file_path: fib, content: 'x = 1  \n' }), DONE]
  const helper = 'Helper, work '
  const delegate = {
    prompt: `${helper}in the folder $<folder> .`,
    description: 'Help',
    run_in_background: false,
  }
  // An agent with the Agent tool may receive the list of agents late, which the playbook does not match as a result.
  const main = [callTool('Agent', { ...delegate, subagent_type: 'Explore' }), DONE]
  const helperSteps = [bash('ls'), DONE]
  return [
    { agent, change: 'edits, writes, `cd … &&`', steps: task, rows: { token: 1, chat: 5 } },
    { agent, change: 'MCP, values as text', steps: sums, rows: { token: 1, chat: 3 } },
    {
      agent: createAgent('"$@" -p "$TASK" && "$@" --continue -p "Go on in the folder $0 ."'),
      change: '`--continue` in a new process',
      steps: [...task, ...second],
      playbook: {
        rules: [
          ...createPlaybook(second, 'tidy', `Go on ${FOLDER_PATTERN}`).rules,
          ...createPlaybook(task, 'tidy').rules,
        ],
      },
      rows: { token: 1, chat: 7 },
    },
    {
      agent,
      change: '`cd … &&` of a sub-agent',
      steps: [main[0]!, ...helperSteps, DONE],
      playbook: {
        rules: [
          ...createPlaybook(helperSteps, 'tidy', helper + FOLDER_PATTERN).rules,
          ...createPlaybook(main, 'tidy').rules,
        ],
      },
      rows: { token: 2, chat: 3 },
    },
  ]
}
