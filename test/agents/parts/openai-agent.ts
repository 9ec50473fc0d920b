/** The OpenAI Agents SDK speaks OpenAI Responses or Chat Completions. */
import { cpSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from './agent.ts'
import { HELLO } from './file-task.ts'
import { installFromNpm } from './install.ts'

const PROGRAM = join(import.meta.dirname, '../programs/openai-agents.mjs')

const { version, folder } = await installFromNpm('@openai/agents')

export const openaiAgent = (api: 'responses' | 'chat_completions'): Agent => ({
  name: `OpenAI Agents SDK ${version} (${api})`,
  dialect: api === 'responses' ? 'responses' : 'chat',
  program: ({ baseUrl, task, key, home }) => {
    const program = join(home, 'agent.mjs')
    cpSync(PROGRAM, program)
    symlinkSync(join(folder, 'node_modules'), join(home, 'node_modules'))
    return {
      command: process.execPath,
      args: [program, api, task],
      env: { ...SHELL_ENV, HOME: home, OPENAI_BASE_URL: `${baseUrl}/v1`, OPENAI_API_KEY: key },
    }
  },
})

export const openaiSteps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [{ tool: 'write_file', arguments: { path: '$<folder>/hello.sh', content: HELLO } }],
  },
  // Two tool calls in one response, and their results in one request.
  {
    calls: [
      { tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt' } },
      { tool: 'bash', arguments: { command: 'cat hello.sh' } },
    ],
  },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'read_file', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]
