/**
 * Agents change the tool calls that they echo: they fill in defaults, strip white space, parse numbers, rename tools
 * and truncate old calls. In token mode a task is still one row, unless the agent truncates on purpose; in chat mode,
 * where the engine receives the agent's text, a row ends at each changed tool call. This test generates the table of
 * docs/agents.md (FULL=1 UPDATE=1).
 */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { generatedSection } from '../helpers/generated-text.ts'
import { IS_FULL } from '../helpers/tier.ts'
import type { HistoryCase } from './histories/case.ts'
import { createClaudeCodeCases } from './histories/claude-code.ts'
import {
  createAiSdkCases,
  createCodexCases,
  createGeminiCliCases,
  createKimiCodeCases,
  createOpencodeCases,
  createPiCases,
  createQwenCodeCases,
} from './histories/npm-agents.ts'
import {
  createDeepagentsCases,
  createMiniSweAgentCases,
  createOpenHandsCases,
} from './histories/python-agents.ts'
import { type AgentRun, runAgent } from './parts/agent.ts'
import { createPlaybook, createTask } from './parts/script.ts'
import { checkRows } from './parts/session-checks.ts'

interface RowSize {
  rows: number
  tokens: number
}

/** Measures main rows only: requests without tools, such as for a title, are side requests. */
function measureRows({ turns, rows }: AgentRun): RowSize {
  const sides = new Set(turns.filter(({ tools }) => !tools?.length).map(({ index }) => index))
  const main = rows.filter((row) => !row.turns.every(({ index }) => sides.has(index)))
  const lengths = main.map((row) => row.prompt_ids.length + row.response_ids.length)
  return { rows: main.length, tokens: lengths.reduce((sum, length) => sum + length, 0) }
}

const AGENTS = [
  ...[
    createClaudeCodeCases,
    createCodexCases,
    createGeminiCliCases,
    createQwenCodeCases,
    createOpencodeCases,
    createKimiCodeCases,
    createPiCases,
  ],
  ...[createAiSdkCases, createMiniSweAgentCases, createOpenHandsCases, createDeepagentsCases],
]
/** The agents that run without `FULL=1`. The others change nothing, or the same as these, and have separate tests. */
const DAILY_AGENTS = [
  createClaudeCodeCases,
  createCodexCases,
  createKimiCodeCases,
  createAiSdkCases,
  createOpenHandsCases,
  createDeepagentsCases,
]
const installed = await Promise.all((IS_FULL ? AGENTS : DAILY_AGENTS).map((getCases) => getCases()))
/** Only the full gate runs all cases of an agent, because they differ in the agent's tools and not in the proxy. */
const cases = installed.flatMap((all) => (IS_FULL ? all : all.slice(0, 1)))
const tableRows: string[] = []

/** Chat mode runs only in the full gate, since each agent's own tests cover it in every gate. */
const PROMPTS = IS_FULL ? (['token', 'chat'] as const) : (['token'] as const)

// Agents spend most of their time starting.
t.jobs = 2

async function measure(t: Test, position: number, historyCase: HistoryCase) {
  const { agent, change, steps, playbook = createPlaybook(steps, 'tidy'), flags = [], rows } = historyCase
  const sizes: Partial<Record<'token' | 'chat', RowSize>> = {}
  for (const prompts of PROMPTS) {
    const run = await runAgent(t, agent, { mode: 'local', prompts, playbook, flags }, createTask)
    t.equal(run.code, 0, 'it exits with 0', { output: run.output })
    const main = run.turns.filter(({ tools }) => tools?.length)
    const toolNames = main.map((turn) => turn.tool_calls.map((one) => one.function.name))
    const script = steps.map(({ toolCalls = [] }) => toolCalls.map(({ tool }) => tool))
    t.strictSame(toolNames, script, 'each step is a request')
    for (const turn of main) t.match(turn, { status: 'completed', dialect: agent.dialect })
    const mainRows = run.rows.filter((row) =>
      row.turns.some(({ index }) => main.some((turn) => turn.index === index)),
    )
    checkRows(t, main, mainRows)
    sizes[prompts] = measureRows(run)
    if (prompts === 'token' && rows.token === 1) {
      const last = main.at(-1)!
      const length = last.prompt_token_ids.length + last.completion_token_ids.length
      t.equal(sizes.token?.tokens, length, 'no token is in two rows')
    }
  }
  t.strictSame(
    { ...rows, ...Object.fromEntries(PROMPTS.map((prompts) => [prompts, sizes[prompts]?.rows])) },
    rows,
  )
  if (sizes.chat === undefined) return
  const ratio = (sizes.chat.tokens / sizes.token!.tokens).toFixed(1)
  tableRows[position] =
    `| ${agent.name} | ${agent.dialect} | ${change} | ${steps.length} | ${sizes.token!.rows} | ${sizes.chat.rows} | ${ratio} times |`
}

await Promise.all(
  cases.map((one, index) => {
    const title = `${one.agent.name}, ${one.agent.dialect}: ${one.change}`
    return t.test(title, { buffered: true }, (t) => measure(t, index, one))
  }),
)

const isComplete = IS_FULL && installed.every((all) => all.length > 0)
const skip = isComplete ? false : 'needs FULL=1, and each agent installed'
t.test('docs/agents.md has the measured table (UPDATE=1 writes it)', { skip }, async (t) => {
  const path = join(import.meta.dirname, '../../docs/agents.md')
  const withoutTokens = (table: string) => table.replaceAll(/\| [\d.]+ times \|$/gm, '|')
  const head = [
    '| agent | dialect | what it sends back changed | calls | rows in token mode | rows in chat mode | tokens of rows in chat mode |',
    '|---|---|---|---|---|---|---|',
  ]
  const table = [...head, ...tableRows].join('\n')
  t.equal(withoutTokens(generatedSection(path, 'histories', table)), withoutTokens(table))
})
