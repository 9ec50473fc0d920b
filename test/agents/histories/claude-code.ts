import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from '../parts/agent.ts'
import { installFromNpm } from '../parts/install.ts'
import { FOLDER_OF_TASK, getPlaybook } from '../parts/script.ts'
import { call, DONE, type HistoryCase } from './case.ts'

const PROGRAMS = join(import.meta.dirname, '../programs')

export async function claudeCode(): Promise<HistoryCase[]> {
  const { version, folder } = await installFromNpm('@anthropic-ai/claude-code', 'install.cjs')
  /** @param script a shell script that gets the command as its arguments and the folder as its name */
  const agentBy = (script = '"$@" -p "$TASK"'): Agent => ({
    name: `Claude Code ${version}`,
    dialect: 'messages',
    program: ({ baseUrl, task, home, work }) => {
      const servers = { sums: { command: process.execPath, args: [join(PROGRAMS, 'mcp-server.mjs')] } }
      const mcp = join(home, 'mcp.json')
      writeFileSync(mcp, JSON.stringify({ mcpServers: servers }))
      const claude = join(folder, 'node_modules/.bin/claude')
      const allowed = 'Write,Edit,Bash,Read,Agent,mcp__sums__sum'
      return {
        command: 'sh',
        args: ['-c', script, work, claude, '--mcp-config', mcp, '--allowedTools', allowed],
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
  const agent = agentBy()
  const bash = (command: string) =>
    call('Bash', { command: `cd $<folder> && ${command}`, description: 'Run' })
  const fib = '$<folder>/fib.py'
  // After more tool calls than these, Claude Code adds a reminder, which the script would not recognize as a result.
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
  const second = [bash('ls'), call('Write', { file_path: fib, content: 'x = 1  \n' }), DONE]
  const helper = 'Helper, work '
  const delegate = {
    prompt: `${helper}in the folder $<folder> .`,
    description: 'Help',
    run_in_background: false,
  }
  // An agent with the Agent tool may receive the list of agents late, which the script would not recognize as a result.
  const main = [call('Agent', { ...delegate, subagent_type: 'Explore' }), DONE]
  const helped = [bash('ls'), DONE]
  return [
    { agent, does: 'edits, writes, `cd … &&`', steps: task, rows: { token: 1, chat: 5 } },
    { agent, does: 'MCP, values as text', steps: sums, rows: { token: 1, chat: 3 } },
    {
      agent: agentBy('"$@" -p "$TASK" && "$@" --continue -p "Go on in the folder $0 ."'),
      does: '`--continue` in a new process',
      steps: [...task, ...second],
      playbook: {
        rules: [
          ...getPlaybook(second, 'tidy', `Go on ${FOLDER_OF_TASK}`).rules,
          ...getPlaybook(task, 'tidy').rules,
        ],
      },
      rows: { token: 1, chat: 7 },
    },
    {
      agent,
      does: '`cd … &&` of a sub-agent',
      steps: [main[0]!, ...helped, DONE],
      playbook: {
        rules: [
          ...getPlaybook(helped, 'tidy', helper + FOLDER_OF_TASK).rules,
          ...getPlaybook(main, 'tidy').rules,
        ],
      },
      rows: { token: 2, chat: 3 },
    },
  ]
}
