/** Agents and frameworks from npm. */
import { cpSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from '../parts/agent.ts'
import { installFromNpm } from '../parts/install.ts'
import {
  createCodexAgent,
  createGeminiCliAgent,
  createPiAgent,
  createQwenCodeAgent,
} from '../parts/known-agents.ts'
import { createPlaybook } from '../parts/script.ts'
import { callTool, DONE, type HistoryCase } from './case.ts'

const PROGRAMS = join(import.meta.dirname, '../programs')

export async function createAiSdkCases(): Promise<HistoryCase[]> {
  const others = ['zod', '@ai-sdk/openai-compatible', '@ai-sdk/openai', '@ai-sdk/anthropic']
  const { version, folder } = await installFromNpm('ai', undefined, others)
  const createAgent = (dialect: Agent['dialect']): Agent => ({
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
    callTool('bash', { command: 'ls' }),
    callTool('bash', { command: ' ls  ', timeout: '7' }),
    callTool('write', { path: 'a.txt', content: 'x  \n', unknown: 1 }),
    {
      toolCalls: [
        { tool: 'bash', arguments: { command: 'a' } },
        { tool: 'bash', arguments: { command: 'b' } },
      ],
    },
    DONE,
  ]
  return (['chat', 'responses', 'messages'] as const).map((dialect) => ({
    ...{ agent: createAgent(dialect), change: 'defaults, `trim`, `coerce`', steps },
    rows: { token: 1, chat: 5 },
  }))
}

export async function createOpencodeCases(): Promise<HistoryCase[]> {
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
    callTool('bash', { command: 'ls', description: 'List' }),
    callTool('no_such_tool', { x: 1 }),
    callTool('BASH', { command: 'ls', description: 'List' }),
    DONE,
  ]
  return [{ agent, change: 'calls of tools that are not there', steps, rows: { token: 1, chat: 3 } }]
}

export async function createKimiCodeCases(): Promise<HistoryCase[]> {
  const { version, folder } = await installFromNpm('@moonshot-ai/kimi-code')
  const createAgent = (dialect: 'chat' | 'messages'): Agent => ({
    name: `Kimi Code ${version}`,
    dialect,
    program: ({ baseUrl, task, home }) => {
      const [type, base] = dialect === 'chat' ? ['openai', `${baseUrl}/v1`] : ['anthropic', baseUrl]
      const config = [
        'default_model = "p/embedded"',
        'telemetry = false',
        '[providers.p]',
        `type = "${type}"`,
        `base_url = "${base}"`,
        'api_key = "none"',
        '[models."p/embedded"]',
        'provider = "p"',
        'model = "embedded"',
        'max_context_size = 200000',
        'capabilities = ["tool_use"]',
      ]
      writeFileSync(join(home, 'config.toml'), config.join('\n'))
      const env = { ...SHELL_ENV, HOME: home, KIMI_CODE_HOME: home, KIMI_CODE_NO_AUTO_UPDATE: '1' }
      return { command: join(folder, 'node_modules/.bin/kimi'), args: ['-p', task], env }
    },
  })
  const bash = (command: string) => ({ tool: 'Bash', arguments: { command } })
  const steps = [
    { toolCalls: [bash('ls')] },
    { toolCalls: [bash('echo 1'), { tool: 'no_such_tool', arguments: { x: 1 } }] },
    { toolCalls: [bash('pwd')] },
    DONE,
  ]
  return (['chat', 'messages'] as const).map((dialect) => ({
    ...{ agent: createAgent(dialect), change: 'the order of calls, one of them of no tool', steps },
    // Reminders follow the task as separate user messages.
    playbook: createPlaybook(steps, 'tidy', ''),
    rows: { token: 1, chat: 2 },
  }))
}

export async function createPiCases(): Promise<HistoryCase[]> {
  const installed = await installFromNpm('@earendil-works/pi-coding-agent')
  const edits = (oldText: string, newText: string) => JSON.stringify([{ oldText, newText }])
  const steps = [
    callTool('write', { path: 'a.txt', content: 'alpha  \n' }),
    callTool('edit', { path: 'a.txt', edits: edits('alpha', 'beta') }),
    callTool('edit', { path: 'a.txt', edits: edits('beta', 'gamma') }),
    DONE,
  ]
  return (['chat', 'responses', 'messages'] as const).map((dialect) => ({
    ...{ agent: createPiAgent(installed, dialect), change: '`edits` as text', steps },
    rows: { token: 1, chat: 3 },
  }))
}

/** Codex sends its goals as the output of a tool call that the model did not make. */
export async function createCodexCases(): Promise<HistoryCase[]> {
  const agent = createCodexAgent(await installFromNpm('@openai/codex'))
  const objective = 'The file is there'
  const run = (cmd: string) => callTool('exec_command', { cmd, unknown: '1' })
  const steps = [
    run('ls  '),
    callTool('create_goal', { objective }),
    run('echo 1 > a.txt'),
    callTool('update_goal', { status: 'complete' }),
    DONE,
  ]
  // Codex sends a goal like a user message, from which the playbook counts steps.
  const [before, after] = [steps.slice(0, 2), steps.slice(2)]
  const playbook = {
    rules: [...createPlaybook(before, 'tidy').rules, ...createPlaybook(after, 'tidy', objective).rules],
  }
  const change = 'nothing; goals of its own come between'
  return [{ agent, change, steps, playbook, rows: { token: 1, chat: 1 } }]
}

export async function createGeminiCliCases(): Promise<HistoryCase[]> {
  const agent = createGeminiCliAgent(await installFromNpm('@google/gemini-cli'))
  return [createUnchangedCase(agent, { description: ' Run ' })]
}

export async function createQwenCodeCases(): Promise<HistoryCase[]> {
  const agent = createQwenCodeAgent(await installFromNpm('@qwen-code/qwen-code'))
  return [createUnchangedCase(agent, { is_background: false })]
}

/** Gemini CLI and its forks echo tool calls as sampled. @param run further arguments of the shell tool */
function createUnchangedCase(agent: Agent, run: Record<string, unknown>): HistoryCase {
  const steps = [
    callTool('run_shell_command', { command: 'ls  ', ...run }),
    callTool('write_file', { file_path: '$<folder>/a.txt', content: 'x  \n', unknown: 1 }),
    callTool('no_such_tool', { x: '1' }),
    DONE,
  ]
  return { agent, change: 'nothing', steps, rows: { token: 1, chat: 1 } }
}
