/**
 * node test/agents/frameworks/measure.ts [NAME...]
 *
 * What frameworks do to their history, and how many rows that gives: installs each from its registry, has it work out
 * one small task with a tool in three calls, in chat and in token mode, and prints the table of docs/agents.md. The
 * model is the embedded one, follows a script, and writes untidily: white space around its words, JSON in a spacing of
 * its own. It needs the network.
 */
import { execFile } from 'node:child_process'
import { cpSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { loadConfig } from '../../../src/config/load.ts'
import { SERVE } from '../../../src/config/options/serve.ts'
import { startServer } from '../../../src/main.ts'
import { silentLogger } from '../../helpers/silent-logger.ts'
import { installFromNpm, installFromPyPI } from '../parts/install.ts'

const LIMIT_MS = 180_000

/** What is to be installed, by the name in `frameworks.py`. The first package gives the version. */
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
}
const AI_SDK = 'ai_sdk'

const call = (a: number, b: number) =>
  `<tool_call>\n{ "arguments":{"a":${a},"b": ${b}},  "name" : "add" }\n</tool_call>`
const WORDS = [
  `<think>\n First the sum. \n</think>\n\n I add. \n${call(2, 3)}`,
  `<think>\n Then four. \n</think>\n\n${call(5, 4)}`,
  ' It is 9. \n',
]
/** Ends with a tool, too. */
const LAST_WORDS: Record<string, string> = {
  smolagents: '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "9"}}\n</tool_call>',
}

function playbookFor(name: string): object {
  const [first, second, last] = WORDS
  // By what the tool has said, for some tell it in the user's name.
  const rules = [
    { name: 'last', when: { text: '\\b9\\b', tool: 'add' }, answer: { content: LAST_WORDS[name] ?? last } },
    { name: 'second', when: { text: '\\b5\\b', tool: 'add' }, answer: { content: second } },
    { name: 'first', when: { tool: 'add' }, answer: { content: first } },
  ]
  return { rules }
}

async function programOf(name: string, folder: string): Promise<{ version: string; command: string[] }> {
  if (name === AI_SDK) {
    const sdk = await installFromNpm('ai')
    const provider = await installFromNpm('@ai-sdk/openai-compatible')
    // Each has what it needs beside it.
    const modules = join(folder, 'node_modules')
    cpSync(join(provider.folder, 'node_modules'), modules, { recursive: true })
    cpSync(join(sdk.folder, 'node_modules'), modules, { recursive: true })
    const program = join(folder, 'ai-sdk.mjs')
    cpSync(join(import.meta.dirname, 'ai-sdk.mjs'), program)
    return { version: sdk.version, command: [process.execPath, program] }
  }
  const packages = PACKAGES[name]
  if (packages === undefined) {
    throw new Error(`there is no ${name}; known are ${[...Object.keys(PACKAGES), AI_SDK].join(', ')}`)
  }
  const [first, ...others] = packages
  const { version, folder: environment } = await installFromPyPI(first, others)
  const program = join(import.meta.dirname, 'frameworks.py')
  return { version, command: [join(environment, 'bin/python'), program, name] }
}

interface Message {
  role: string
  content?: unknown
  reasoning_content?: string | null
  tool_calls?: { function: { arguments: string } }[] | null
}
interface TurnOnRecord {
  request_messages: Message[]
  completion_text: string
  reasoning_content: string | null
  tool_calls: { function: { arguments: string } }[]
}

/** What became of the turns in the history that the last one was asked with. */
function rewritten(turns: readonly TurnOnRecord[]): string {
  const told = turns.at(-1)?.request_messages.filter(({ role }) => role === 'assistant') ?? []
  const said = turns.slice(0, -1)
  const changes = new Set<string>()
  if (told.length < said.length) changes.add('merges or leaves out steps')
  for (const [at, { completion_text, reasoning_content, tool_calls }] of said.entries()) {
    const echo = told[at]
    if (echo === undefined) continue
    if (reasoning_content && !echo.reasoning_content) changes.add('drops reasoning')
    const text = typeof echo.content === 'string' ? echo.content : ''
    if (text !== completion_text)
      changes.add(text.trim() === completion_text.trim() ? 'trims text' : 'rewrites text')
    const written = (calls: Message['tool_calls']) =>
      calls?.map((one) => one.function.arguments).join('\n') ?? ''
    if (written(echo.tool_calls) !== written(tool_calls))
      changes.add(echo.tool_calls?.length ? 'rewrites arguments' : 'writes calls as text')
  }
  return [...changes].join(', ') || 'nothing'
}

async function measure(name: string, mode: 'chat' | 'token') {
  const folder = mkdtempSync(join(tmpdir(), 'llm-proxy-framework-'))
  const { version, command } = await programOf(name, folder)
  const playbook = join(folder, 'playbook.json')
  writeFileSync(playbook, JSON.stringify(playbookFor(name)))
  const config = { ...loadConfig(SERVE, {}, {}), port: 0, db: 'memory', playbook }
  const server = await startServer(mode === 'token' ? { ...config, tokenizer: 'embedded' } : config, {
    logger: silentLogger,
  })
  const env = {
    ...{ PATH: process.env.PATH, HOME: folder, OPENAI_API_KEY: 'none', ANTHROPIC_API_KEY: 'none' },
    ...{ OPENAI_BASE_URL: `${server.url}/s/v1`, OPENAI_API_BASE: `${server.url}/s/v1` },
    ...{ ANTHROPIC_BASE_URL: `${server.url}/s`, LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
    ...{ OTEL_SDK_DISABLED: 'true', CREWAI_DISABLE_TELEMETRY: 'true' },
  }
  try {
    const [program, ...args] = command
    await promisify(execFile)(program!, args, { cwd: folder, env, timeout: LIMIT_MS })
    const read = async (path: string) => (await fetch(`${server.url}/sessions/s${path}`)).json()
    const { turns } = (await read('')) as { turns: TurnOnRecord[] }
    const { trajectories } = (await read('/trajectories')) as { trajectories: object[] }
    return { version, turns: turns.length, rows: trajectories.length, history: rewritten(turns) }
  } finally {
    await server.stop(0)
    rmSync(folder, { recursive: true, force: true })
  }
}

const names = process.argv.length > 2 ? process.argv.slice(2) : [...Object.keys(PACKAGES), AI_SDK]
console.log('| framework | version | its history | calls | rows in chat mode | rows in token mode |')
console.log('|---|---|---|---|---|---|')
for (const name of names) {
  try {
    const chat = await measure(name, 'chat')
    const token = await measure(name, 'token')
    console.log(
      `| ${name} | ${chat.version} | ${chat.history} | ${chat.turns} | ${chat.rows} | ${token.rows} |`,
    )
  } catch (error) {
    console.log(`| ${name} | failed: ${String(error).split('\n').slice(0, 2).join(' ')} |`)
    process.exitCode = 1
  }
}
process.exit()
