/** Agents and frameworks from npm. */
import { cpSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from '../parts/agent.ts'
import { installFromNpm } from '../parts/install.ts'
import { codexAgent, geminiCliAgent, piAgent, qwenCodeAgent } from '../parts/known-agents.ts'
import { getPlaybook } from '../parts/script.ts'
import { call, DONE, type HistoryCase } from './case.ts'

const PROGRAMS = join(import.meta.dirname, '../programs')

export async function aiSdk(): Promise<HistoryCase[]> {
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

export async function opencode(): Promise<HistoryCase[]> {
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

export async function kimiCode(): Promise<HistoryCase[]> {
  const { version, folder } = await installFromNpm('@moonshot-ai/kimi-code')
  const agentOn = (dialect: 'chat' | 'messages'): Agent => ({
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
    { calls: [bash('ls')] },
    { calls: [bash('echo 1'), { tool: 'no_such_tool', arguments: { x: 1 } }] },
    { calls: [bash('pwd')] },
    DONE,
  ]
  return (['chat', 'messages'] as const).map((dialect) => ({
    ...{ agent: agentOn(dialect), does: 'the order of calls, one of them of no tool', steps },
    // Reminders follow the task as separate user messages.
    playbook: getPlaybook(steps, 'tidy', ''),
    rows: { token: 1, chat: 2 },
  }))
}

export async function pi(): Promise<HistoryCase[]> {
  const installed = await installFromNpm('@earendil-works/pi-coding-agent')
  const edits = (oldText: string, newText: string) => JSON.stringify([{ oldText, newText }])
  const steps = [
    call('write', { path: 'a.txt', content: 'alpha  \n' }),
    call('edit', { path: 'a.txt', edits: edits('alpha', 'beta') }),
    call('edit', { path: 'a.txt', edits: edits('beta', 'gamma') }),
    DONE,
  ]
  return (['chat', 'responses', 'messages'] as const).map((dialect) => ({
    ...{ agent: piAgent(installed, dialect), does: '`edits` as text', steps },
    rows: { token: 1, chat: 3 },
  }))
}

/** Codex sends its goals as the output of a call that the model did not make. */
export async function codex(): Promise<HistoryCase[]> {
  const agent = codexAgent(await installFromNpm('@openai/codex'))
  const OBJECTIVE = 'The file is there'
  const run = (cmd: string) => call('exec_command', { cmd, unknown: '1' })
  const steps = [
    run('ls  '),
    call('create_goal', { objective: OBJECTIVE }),
    run('echo 1 > a.txt'),
    call('update_goal', { status: 'complete' }),
    DONE,
  ]
  // A goal is sent like a user message, and steps are counted from there.
  const [before, after] = [steps.slice(0, 2), steps.slice(2)]
  const playbook = {
    rules: [...getPlaybook(before, 'tidy').rules, ...getPlaybook(after, 'tidy', OBJECTIVE).rules],
  }
  const does = 'nothing; goals of its own come between'
  return [{ agent, does, steps, playbook, rows: { token: 1, chat: 1 } }]
}

export async function geminiCli(): Promise<HistoryCase[]> {
  const agent = geminiCliAgent(await installFromNpm('@google/gemini-cli'))
  return [findUntouched(agent, { description: ' Run ' })]
}

export async function qwenCode(): Promise<HistoryCase[]> {
  const agent = qwenCodeAgent(await installFromNpm('@qwen-code/qwen-code'))
  return [findUntouched(agent, { is_background: false })]
}

/** Gemini CLI and its forks echo what was sampled. @param run further options of the run */
function findUntouched(agent: Agent, run: Record<string, unknown>): HistoryCase {
  const steps = [
    call('run_shell_command', { command: 'ls  ', ...run }),
    call('write_file', { file_path: '$<folder>/a.txt', content: 'x  \n', unknown: 1 }),
    call('no_such_tool', { x: '1' }),
    DONE,
  ]
  return { agent, does: 'nothing', steps, rows: { token: 1, chat: 1 } }
}
