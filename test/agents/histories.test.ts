/**
 * How agents change the tool calls that they echo: they fill in defaults, strip white space, parse numbers, rename
 * tools and truncate old ones. In token mode a task is still one row, unless the agent truncates on purpose; in chat
 * mode, where the engine reads the agent's text, a row ends at each changed call. This test generates the table of
 * docs/agents.md (FULL=1 UPDATE=1).
 */
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { generatedSection } from '../helpers/generated-text.ts'
import { IS_FULL } from '../helpers/tier.ts'
import type { HistoryCase } from './histories/case.ts'
import { claudeCode } from './histories/claude-code.ts'
import { aiSdk, codex, geminiCli, kimiCode, opencode, pi, qwenCode } from './histories/npm-agents.ts'
import { deepagents, miniSweAgent, openHands } from './histories/python-agents.ts'
import { type AgentRun, runAgent } from './parts/agent.ts'
import { getPlaybook, taskIn } from './parts/script.ts'
import { checkRows } from './parts/session-checks.ts'

interface Measured {
  rows: number
  tokens: number
}

/** Measures main rows only: requests without tools, such as for a title, are side requests. */
function measured({ turns, rows }: AgentRun): Measured {
  const sides = new Set(turns.filter(({ tools }) => !tools?.length).map(({ index }) => index))
  const main = rows.filter((row) => !row.turns.every(({ index }) => sides.has(index)))
  const lengths = main.map((row) => row.prompt_ids.length + row.response_ids.length)
  return { rows: main.length, tokens: lengths.reduce((sum, length) => sum + length, 0) }
}

const AGENTS = [
  ...[claudeCode, codex, geminiCli, qwenCode, opencode, kimiCode, pi],
  ...[aiSdk, miniSweAgent, openHands, deepagents],
]
/** Without `FULL=1`: the others change nothing, or what these change, and have tests of their own. */
const DAILY_AGENTS = [claudeCode, codex, kimiCode, aiSdk, openHands, deepagents]
const installed = await Promise.all((IS_FULL ? AGENTS : DAILY_AGENTS).map((getCases) => getCases()))
/** All cases of an agent run only in the full gate: they differ in the agent's tools, and not in the proxy's work. */
const cases = installed.flatMap((all) => (IS_FULL ? all : all.slice(0, 1)))
const lines: string[] = []

/** Chat mode runs only in the full gate, since each agent's own tests cover it in every gate. */
const PROMPTS = IS_FULL ? (['token', 'chat'] as const) : (['token'] as const)

// Agents spend most of their time waiting for their own start.
t.jobs = 2

async function measure(t: Test, position: number, measuredCase: HistoryCase) {
  const { agent, does, steps, playbook = getPlaybook(steps, 'tidy'), flags = [], rows } = measuredCase
  const found: Partial<Record<'token' | 'chat', Measured>> = {}
  for (const prompts of PROMPTS) {
    const run = await runAgent(t, agent, { mode: 'local', prompts, playbook, flags }, taskIn)
    t.equal(run.code, 0, 'it ends well', { output: run.output })
    const main = run.turns.filter(({ tools }) => tools?.length)
    const toolNames = main.map((turn) => turn.tool_calls.map((one) => one.function.name))
    const script = steps.map(({ calls = [] }) => calls.map(({ tool }) => tool))
    t.strictSame(toolNames, script, 'each step is a request')
    for (const turn of main) t.match(turn, { status: 'completed', dialect: agent.dialect })
    const own = run.rows.filter((row) =>
      row.turns.some(({ index }) => main.some((turn) => turn.index === index)),
    )
    checkRows(t, main, own)
    found[prompts] = measured(run)
    if (prompts === 'token' && rows.token === 1) {
      const last = main.at(-1)!
      const length = last.prompt_token_ids.length + last.completion_token_ids.length
      t.equal(found.token?.tokens, length, 'no token is in two rows')
    }
  }
  t.strictSame(
    { ...rows, ...Object.fromEntries(PROMPTS.map((prompts) => [prompts, found[prompts]?.rows])) },
    rows,
  )
  if (found.chat === undefined) return
  const ratio = (found.chat.tokens / found.token!.tokens).toFixed(1)
  lines[position] =
    `| ${agent.name} | ${agent.dialect} | ${does} | ${steps.length} | ${found.token!.rows} | ${found.chat.rows} | ${ratio} times |`
}

await Promise.all(
  cases.map((one, index) => {
    const title = `${one.agent.name}, ${one.agent.dialect}: ${one.does}`
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
  const table = [...head, ...lines].join('\n')
  t.equal(withoutTokens(generatedSection(path, 'histories', table)), withoutTokens(table))
})
