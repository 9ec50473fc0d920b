/** Codex speaks OpenAI Responses. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { ONLY_FULL } from '../helpers/tier.ts'
import { runAgent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testEngineDisconnect, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { createCodexAgent, getCodexCommand } from './parts/known-agents.ts'
import { runProgram } from './parts/programs.ts'
import { OTHER_SETUPS } from './parts/rig.ts'
import { createPlaybook, createTask } from './parts/script.ts'
import { checkOneRow, checkRows, getLastCompletions } from './parts/session-checks.ts'

const installed = await installFromNpm('@openai/codex')
const command = getCodexCommand(installed)
const codex = (model: string, settings?: readonly string[]) => createCodexAgent(installed, model, settings)

const run = (cmd: string) => ({ tool: 'exec_command', arguments: { cmd } })

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [run(`cat > hello.sh <<'END'\n${HELLO}END`)],
  },
  { toolCalls: [run('sh hello.sh > printed.txt')] },
  { reasoning: 'Now I read what it printed.', toolCalls: [run('cat printed.txt')] },
  { content: 'Done: it says 42.' },
]

await testFileTask(codex('embedded'), { steps }, OTHER_SETUPS)
await testEngineDisconnect(codex('embedded'), { steps, isDefault: true })
await testContinuedResponses(codex('embedded'), { steps })

interface CodexModel {
  slug: string
  apply_patch_tool_type: string | null
  tool_mode?: string | null
  multi_agent_version?: string | null
}

/**
 * Returns a model with these features that this version of Codex knows. Codex's behaviour depends on a model's
 * features, and the models change from version to version.
 */
async function findModel(
  home: string,
  hasFeatures: (model: CodexModel) => boolean,
): Promise<string | undefined> {
  const env = { ...SHELL_ENV, HOME: home, CODEX_HOME: home }
  const args = ['-c', '"$0" debug models > models.json', command]
  const { code, output } = await runProgram({ command: 'sh', args, cwd: home, env }, 30_000)
  if (code !== 0) throw new Error(`codex debug models: ${output}`)
  const { models }: { models: CodexModel[] } = JSON.parse(readFileSync(join(home, 'models.json'), 'utf8'))
  return models.find(hasFeatures)?.slug
}

const NO_SUCH_MODEL = 'this version of Codex has no such model'

/** The task for tests in which the agent or its sub-agent creates `printed.txt` in this folder. */
const createDelegation = (work: string) => `Delegate in ${work} : it is too much for one.`

await t.test('a freeform tool of Codex gets its input as the model generated it', async (t) => {
  const model = await findModel(
    t.testdir({}),
    (model) => model.apply_patch_tool_type === 'freeform' && !model.tool_mode,
  )
  if (model === undefined) {
    t.pass('a patch is applied', { skip: NO_SUCH_MODEL })
    return
  }
  const input = '*** Begin Patch\n*** Add File: printed.txt\n+hello from 42\n*** End Patch\n'
  const patch = { name: 'apply_patch', arguments: { input } }
  const rules = [
    { name: 'patch', when: { role: 'user' }, answer: { content: 'I patch.', tool_calls: [patch] } },
    { name: 'report', when: { role: 'tool' }, answer: { content: 'Done.' } },
  ]
  const setup = { mode: 'local', prompts: 'token', playbook: { rules } } as const
  const { code, output, work, turns, rows } = await runAgent(t, codex(model), setup, createDelegation)
  t.equal(code, 0, 'it exits with 0', { output })
  t.equal(readFileSync(join(work, 'printed.txt'), 'utf8'), 'hello from 42\n')
  checkRows(t, turns, rows)
  t.strictSame(getLastCompletions(turns, rows), { main: 'Done.' })
})

await t.test('Codex finds a tool of an MCP server with tool_search', { skip: ONLY_FULL }, async (t) => {
  const model = await findModel(t.testdir({}), ({ slug }) => slug === 'gpt-5.5')
  if (model === undefined) {
    t.pass('an MCP tool is called', { skip: NO_SUCH_MODEL })
    return
  }
  const server = [
    '[mcp_servers.sums]',
    `command = "${process.execPath}"`,
    `args = ["${join(import.meta.dirname, 'programs/mcp-server.mjs')}"]`,
  ]
  const searchSteps = [
    { content: 'I search.', toolCalls: [{ tool: 'tool_search', arguments: { query: 'sum of numbers' } }] },
    { toolCalls: [{ tool: 'mcp__sums__sum', arguments: { a: 1, count: 2 } }] },
    { content: 'Done.' },
  ]
  const setup = { mode: 'local', prompts: 'token', playbook: createPlaybook(searchSteps, 'untidy') } as const
  const run = await runAgent(t, codex(model, server), setup, createTask)
  checkOneRow(t, run, searchSteps.length)
  t.match(JSON.stringify(run.turns.at(-1)?.request_messages.at(-1)), 'got {', 'the tool ran')
})

await t.test("a sub-agent that continues its parent's conversation is a branch of it", async (t) => {
  const model = await findModel(
    t.testdir({}),
    (model) => model.tool_mode === 'code_mode_only' && model.multi_agent_version === 'v2',
  )
  if (model === undefined) {
    t.pass('a sub-agent works', { skip: NO_SUCH_MODEL })
    return
  }
  const script = 'text(await tools.exec_command({ cmd: "echo hello from 42 > printed.txt" }))'
  const exec = { name: 'functions__exec', arguments: { input: script } }
  const spawn = {
    name: 'collaboration__spawn_agent',
    arguments: { task_name: 'helper', message: 'Helper: make the file.' },
  }
  const wait = { name: 'collaboration__wait_agent', arguments: {} }
  const rules = [
    { name: 'the sub-agent works', when: { text: 'NEW_TASK' }, answer: { tool_calls: [exec] } },
    {
      name: 'it has reported',
      when: { text: 'Helper says (\\d+)' },
      answer: { content: 'Done: it says $1.' },
    },
    { name: 'ask a sub-agent', when: { user: 'Delegate', step: 0 }, answer: { tool_calls: [spawn] } },
    { name: 'wait for it', when: { user: 'Delegate', role: 'tool' }, answer: { tool_calls: [wait] } },
    {
      name: 'the sub-agent reports',
      when: { role: 'tool', user: 'NEW_TASK' },
      answer: { content: 'Helper says 42.' },
    },
  ]
  const setup = { mode: 'relay', prompts: 'token', playbook: { rules } } as const
  const { code, output, work, turns, rows } = await runAgent(t, codex(model), setup, createDelegation)
  t.equal(code, 0, 'it exits with 0', { output })
  t.equal(readFileSync(join(work, 'printed.txt'), 'utf8'), 'hello from 42\n')
  checkRows(t, turns, rows)
  t.strictSame(getLastCompletions(turns, rows), { main: 'Done: it says 42.', subagent: 'Helper says 42.' })
})

await t.test('Codex compacts its conversation before it has filled the declared context', async (t) => {
  const read = { cmd: 'head -c 12000 /dev/urandom | base64 -w 0 | head -c 12000' }
  const rules = [
    { name: 'compact', when: { text: 'CONTEXT CHECKPOINT' }, answer: { content: 'I read a lot.' } },
    { name: 'go on', when: { text: 'produced a summary' }, answer: { content: 'Done.' } },
    {
      name: 'read on',
      when: { user: 'Delegate' },
      answer: { tool_calls: [{ name: 'exec_command', arguments: read }] },
    },
  ]
  const setup = { mode: 'local', prompts: 'token', playbook: { rules }, contextLength: 60_000 } as const
  const agent = codex('embedded', ['model_context_window = 40000'])
  const { code, output, turns, rows } = await runAgent(t, agent, setup, createDelegation)
  t.equal(code, 0, 'it exits with 0', { output })
  checkRows(t, turns, rows)
  t.strictSame(getLastCompletions(turns, rows), { main: 'Done.', compaction: 'I read a lot.' })
})
