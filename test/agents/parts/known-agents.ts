/** Agents that several tests run, each with its configuration for the proxy. */
import { cpSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from './agent.ts'
import type { Installation } from './install.ts'

export const getCodexCommand = ({ folder }: Pick<Installation, 'folder'>) =>
  join(folder, 'node_modules/.bin/codex')

/** @param model Codex chooses its prompt and its tools by this name; it gives an unknown model plain functions */
export const createCodexAgent = (
  { version, folder }: Installation,
  model = 'embedded',
  settings: readonly string[] = [],
): Agent => ({
  name: `Codex ${version}`,
  dialect: 'responses',
  program: ({ baseUrl, task, key, home }) => {
    const provider = `{ name = "llm-proxy", base_url = "${baseUrl}/v1", wire_api = "responses", env_key = "PROXY_KEY" }`
    const config = [
      `model = "${model}"`,
      'model_provider = "proxy"',
      `model_providers.proxy = ${provider}`,
      ...settings,
    ]
    writeFileSync(join(home, 'config.toml'), config.join('\n'))
    return {
      command: getCodexCommand({ folder }),
      // Codex's sandbox needs privileges that a container seldom has.
      args: ['exec', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', task],
      env: { ...SHELL_ENV, HOME: home, CODEX_HOME: home, PROXY_KEY: key },
    }
  },
})

export const createGeminiCliAgent = ({ version, folder }: Installation): Agent => ({
  name: `Gemini CLI ${version}`,
  dialect: 'gemini',
  program: ({ baseUrl, task, key, home }) => {
    // Without this, the base URL alone makes the agent choose a login method that it then rejects.
    mkdirSync(join(home, '.gemini'), { recursive: true })
    const settings = { security: { auth: { selectedType: 'gemini-api-key' } } }
    writeFileSync(join(home, '.gemini/settings.json'), JSON.stringify(settings))
    return {
      command: join(folder, 'node_modules/.bin/gemini'),
      args: ['--yolo', '--skip-trust', '--model', 'embedded', '--prompt', task],
      env: { ...SHELL_ENV, HOME: home, GOOGLE_GEMINI_BASE_URL: baseUrl, GEMINI_API_KEY: key },
    }
  },
})

export const createOpenaiSdkAgent = (
  { version, folder }: Installation,
  api: 'responses' | 'chat_completions',
): Agent => ({
  name: `OpenAI Agents SDK ${version} (${api})`,
  dialect: api === 'responses' ? 'responses' : 'chat',
  program: ({ baseUrl, task, key, home }) => {
    const program = join(home, 'agent.mjs')
    cpSync(join(import.meta.dirname, '../programs/openai-agents.mjs'), program)
    symlinkSync(join(folder, 'node_modules'), join(home, 'node_modules'))
    return {
      command: process.execPath,
      args: [program, api, task],
      env: { ...SHELL_ENV, HOME: home, OPENAI_BASE_URL: `${baseUrl}/v1`, OPENAI_API_KEY: key },
    }
  },
})

export const createQwenCodeAgent = ({ version, folder }: Installation): Agent => ({
  name: `Qwen Code ${version}`,
  dialect: 'chat',
  program: ({ baseUrl, task, key, home }) => ({
    command: join(folder, 'node_modules/.bin/qwen'),
    args: ['--auth-type', 'openai', '--yolo', '--prompt', task],
    env: {
      ...SHELL_ENV,
      HOME: home,
      OPENAI_BASE_URL: `${baseUrl}/v1`,
      OPENAI_API_KEY: key,
      OPENAI_MODEL: 'embedded',
    },
  }),
})

const COPILOT_VARIABLES = {
  chat: { COPILOT_PROVIDER_WIRE_API: 'completions' },
  responses: { COPILOT_PROVIDER_WIRE_API: 'responses' },
  messages: { COPILOT_PROVIDER_TYPE: 'anthropic' },
}

export const createCopilotAgent = (
  { version, folder }: Installation,
  dialect: keyof typeof COPILOT_VARIABLES = 'chat',
): Agent => ({
  name: `Copilot CLI ${version}`,
  dialect,
  program: ({ baseUrl, task, key, home }) => ({
    command: join(folder, 'node_modules/.bin/copilot'),
    args: ['--allow-all-tools', '-p', task],
    env: {
      ...SHELL_ENV,
      HOME: home,
      // Without it, Copilot CLI contacts GitHub.
      COPILOT_OFFLINE: 'true',
      COPILOT_MODEL: 'embedded',
      COPILOT_PROVIDER_BASE_URL: dialect === 'messages' ? baseUrl : `${baseUrl}/v1`,
      COPILOT_PROVIDER_API_KEY: key,
      ...COPILOT_VARIABLES[dialect],
    },
  }),
})

const PI_APIS = { chat: 'openai-completions', responses: 'openai-responses', messages: 'anthropic-messages' }

export const createPiAgent = (
  { version, folder }: Installation,
  dialect: keyof typeof PI_APIS = 'chat',
): Agent => ({
  name: `pi ${version}`,
  dialect,
  program: ({ baseUrl, task, key, home }) => {
    const model = { id: 'embedded', name: 'embedded', reasoning: true, contextWindow: 200_000 }
    const url = dialect === 'messages' ? baseUrl : `${baseUrl}/v1`
    const proxy = { baseUrl: url, api: PI_APIS[dialect], apiKey: key, models: [model] }
    mkdirSync(join(home, '.pi/agent'), { recursive: true })
    writeFileSync(join(home, '.pi/agent/models.json'), JSON.stringify({ providers: { proxy } }))
    return {
      command: join(folder, 'node_modules/.bin/pi'),
      args: ['-p', '--provider', 'proxy', '--model', 'embedded', task],
      // Disables the update check.
      env: { ...SHELL_ENV, HOME: home, PI_OFFLINE: '1' },
    }
  },
})

/** LiteLLM imports mcp for every request with tools, and does not declare the dependency. */
export const MINI_SWE_AGENT = ['mini-swe-agent', ['mcp']] as const

export const createMiniSweAgent = ({ version, folder }: Installation): Agent => ({
  name: `mini-swe-agent ${version}`,
  dialect: 'chat',
  program: ({ baseUrl, task, key, home }) => ({
    command: join(folder, 'bin/python'),
    args: [
      '-m',
      'minisweagent',
      '--model',
      'openai/embedded',
      '--task',
      task,
      '--yolo',
      '--exit-immediately',
    ],
    env: {
      ...SHELL_ENV,
      HOME: home,
      OPENAI_API_BASE: `${baseUrl}/v1`,
      OPENAI_API_KEY: key,
      MSWEA_CONFIGURED: 'true',
      // LiteLLM has no price for the model, and would fetch its price list.
      MSWEA_COST_TRACKING: 'ignore_errors',
      LITELLM_LOCAL_MODEL_COST_MAP: 'True',
    },
  }),
})
