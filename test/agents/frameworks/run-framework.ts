/** Runs a framework from its registry on one small task, through a proxy with an engine that follows a script. */
import { execFile } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { startServer } from '../../../src/main.ts'
import { loadConfig } from '../../../src/proxy/config/load.ts'
import { SERVE } from '../../../src/proxy/config/options/serve.ts'
import { silentLogger } from '../../helpers/silent-logger.ts'
import { installFromNpm, installFromPyPI } from '../parts/install.ts'
import type { Row, Turn } from '../parts/session-checks.ts'
import { getPlaybook } from './playbooks.ts'

const LIMIT_MS = 180_000

/** The packages of a framework, by its name in `frameworks.py`. The first package determines the version. */
const PACKAGES: Record<string, readonly [string, ...string[]]> = {
  openai: ['openai'],
  anthropic: ['anthropic'],
  langchain: ['langchain', 'langchain-openai'],
  pydantic_ai: ['pydantic-ai-slim', 'openai'],
  litellm: ['litellm'],
  instructor: ['instructor'],
  smolagents: ['smolagents', 'openai'],
  autogen: ['autogen-agentchat', 'autogen-ext[openai]'],
  llama_index: ['llama-index-core', 'llama-index-llms-openai-like'],
  crewai: ['crewai'],
  dspy: ['dspy'],
  aider: ['aider-chat'],
}

/** npm frameworks: their program and packages. The first package determines the version. */
const NPM_PACKAGES: Record<string, { program: string; packages: readonly [string, ...string[]] }> = {
  ai_sdk: { program: 'ai-sdk.mjs', packages: ['ai', '@ai-sdk/openai-compatible'] },
  mastra: { program: 'mastra.mjs', packages: ['@mastra/core'] },
}

export const NAMES = [...Object.keys(PACKAGES), ...Object.keys(NPM_PACKAGES)]

async function installProgram(name: string, folder: string): Promise<{ version: string; command: string[] }> {
  const npmFramework = NPM_PACKAGES[name]
  if (npmFramework) {
    let version: string | undefined
    // Each package has its own dependencies.
    for (const one of npmFramework.packages) {
      const installed = await installFromNpm(one)
      version ??= installed.version
      cpSync(join(installed.folder, 'node_modules'), join(folder, 'node_modules'), { recursive: true })
    }
    const program = join(folder, npmFramework.program)
    cpSync(join(import.meta.dirname, npmFramework.program), program)
    return { version: version!, command: [process.execPath, program] }
  }
  const packages = PACKAGES[name]
  if (packages === undefined) {
    throw new Error(`there is no ${name}; known are ${NAMES.join(', ')}`)
  }
  const [first, ...others] = packages
  const { version, folder: environment } = await installFromPyPI(first, others)
  const program = join(import.meta.dirname, 'frameworks.py')
  return { version, command: [join(environment, 'bin/python'), program, name] }
}

export interface FrameworkRun {
  version: string
  turns: Turn[]
  rows: Row[]
}

/**
 * @param name one of {@link NAMES}
 * @param getEnvironment returns the variables that point the framework to the proxy at this URL
 * @throws Error if the program fails
 */
export async function runFramework(
  name: string,
  mode: 'chat' | 'token',
  getEnvironment: (url: string) => Record<string, string>,
): Promise<FrameworkRun> {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-framework-'))
  const { version, command } = await installProgram(name, folder)
  const playbook = join(folder, 'playbook.json')
  writeFileSync(playbook, JSON.stringify(getPlaybook(name)))
  const config = { ...loadConfig(SERVE, {}, {}), port: 0, db: 'memory', playbook }
  const server = await startServer(mode === 'token' ? { ...config, tokenizer: 'embedded' } : config, {
    logger: silentLogger,
  })
  const env = { PATH: process.env.PATH, HOME: folder, ...getEnvironment(server.url) }
  try {
    const [program, ...args] = command
    await promisify(execFile)(program!, args, { cwd: folder, env, timeout: LIMIT_MS })
    const read = async (path: string) => (await fetch(`${server.url}/sessions/s${path}`)).json()
    const { turns } = (await read('')) as { turns: Turn[] }
    const { trajectories: rows } = (await read('/trajectories')) as { trajectories: Row[] }
    return { version, turns, rows }
  } finally {
    await server.stop(0)
    rmSync(folder, { recursive: true, force: true })
  }
}
