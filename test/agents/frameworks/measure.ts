/**
 * node test/agents/frameworks/measure.ts [NAME...]
 *
 * Measures how frameworks change their history and how many rows result: installs each from its registry, runs it on
 * one small task with a tool in three requests, in chat and in token mode, and prints the table of docs/agents.md. The
 * model is the embedded one and follows a script. Needs the network.
 */
import type { Turn } from '../parts/session-checks.ts'
import { NAMES, runFramework } from './run-framework.ts'

/** Environment variables that configure the endpoint of each framework. */
const getEnvironment = (url: string) => ({
  ...{ OPENAI_API_KEY: 'none', ANTHROPIC_API_KEY: 'none' },
  ...{ OPENAI_BASE_URL: `${url}/s/v1`, OPENAI_API_BASE: `${url}/s/v1` },
  ...{ ANTHROPIC_BASE_URL: `${url}/s`, LITELLM_LOCAL_MODEL_COST_MAP: 'True' },
  ...{ OTEL_SDK_DISABLED: 'true', CREWAI_DISABLE_TELEMETRY: 'true' },
})

interface Message {
  role: string
  content?: unknown
  reasoning_content?: string | null
  tool_calls?: { function: { arguments: string } }[] | null
}

/** Describes how the last request's history differs from the recorded turns. */
function describeChanges(turns: readonly Turn[]): string {
  const messages = (turns.at(-1)?.request_messages ?? []) as readonly Message[]
  const assistantMessages = messages.filter(({ role }) => role === 'assistant')
  const completions = turns.slice(0, -1)
  const changes = new Set<string>()
  if (assistantMessages.length < completions.length) changes.add('merges or leaves out steps')
  for (const [index, { completion_text, reasoning_content, tool_calls }] of completions.entries()) {
    const echo = assistantMessages[index]
    if (echo === undefined) continue
    if (reasoning_content && !echo.reasoning_content) changes.add('drops reasoning')
    const text = typeof echo.content === 'string' ? echo.content : ''
    if (text !== completion_text)
      changes.add(text.trim() === completion_text.trim() ? 'trims text' : 'rewrites text')
    const serialize = (calls: readonly { function: { arguments: string } }[] | null | undefined) =>
      calls?.map((one) => one.function.arguments).join('\n') ?? ''
    if (serialize(echo.tool_calls) !== serialize(tool_calls))
      changes.add(echo.tool_calls?.length ? 'rewrites arguments' : 'writes calls as text')
  }
  return [...changes].join(', ') || 'nothing'
}

async function measure(name: string, mode: 'chat' | 'token') {
  const { version, turns, rows } = await runFramework(name, mode, getEnvironment)
  return { version, turns: turns.length, rows: rows.length, history: describeChanges(turns) }
}

const names = process.argv.length > 2 ? process.argv.slice(2) : NAMES
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
