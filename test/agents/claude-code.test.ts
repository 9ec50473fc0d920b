/** Claude Code speaks Anthropic Messages. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'
import { type Agent, runAgent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testEngineDisconnect, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { ONE_SETUP, SETUPS } from './parts/rig.ts'
import { createPlaybook, createTask } from './parts/script.ts'
import { checkOneRow, checkRows, getLastCompletions } from './parts/session-checks.ts'

const { version, folder } = await installFromNpm('@anthropic-ai/claude-code', 'install.cjs')

const claudeCode: Agent = {
  name: `Claude Code ${version}`,
  dialect: 'messages',
  program: ({ baseUrl, task, key, home }) => ({
    command: join(folder, 'node_modules/.bin/claude'),
    args: ['-p', task, '--allowedTools', 'Write', 'Bash', 'Read', 'Agent'],
    env: {
      ...SHELL_ENV,
      HOME: home,
      ANTHROPIC_BASE_URL: baseUrl,
      ANTHROPIC_AUTH_TOKEN: key,
      CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    },
  }),
}

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'Write', arguments: { file_path: '$<folder>/hello.sh', content: HELLO } }],
  },
  {
    toolCalls: [{ tool: 'Bash', arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' } }],
  },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'Read', arguments: { file_path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

await testFileTask(claudeCode, { steps })
await testEngineDisconnect(claudeCode, { steps })
await testContinuedResponses(claudeCode, { steps })

/** For an unknown model Claude Code's default effort is high, for its own default model medium. */
const claudeCodeWithOtherModel: Agent = {
  ...claudeCode,
  program: (job) => {
    const { env, ...program } = claudeCode.program(job)
    return { ...program, env: { ...env, ANTHROPIC_MODEL: 'qwen3.8' } }
  },
}

for (const setup of IS_FULL ? SETUPS : ONE_SETUP) {
  const title = `${setup.mode} mode, ${setup.prompts} mode`
  await t.test(`${title}: a model that rejects Claude Code's effort gets the nearest one`, async (t) => {
    const playbook = createPlaybook(steps, 'tidy')
    const run = await runAgent(
      t,
      claudeCodeWithOtherModel,
      { ...setup, playbook, checksEfforts: true },
      createTask,
    )
    const { code, output, turns, rows } = run
    t.equal(code, 0, 'it exits with 0', { output })
    t.equal(turns.length, steps.length)
    for (const { status, annotations } of turns) {
      t.equal(status, 'completed')
      t.strictSame(annotations.reasoning_effort, { requested: 'high', sent: 'xhigh' })
    }
    t.equal(rows.length, 1)
    checkRows(t, turns, rows)
  })
}

await t.test('Claude Code reads a PDF, which the model cannot see', { skip: ONLY_FULL }, async (t) => {
  const pdf = '%PDF-1.1\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n'
  const command = `echo ${Buffer.from(pdf).toString('base64')} | base64 -d > paper.pdf`
  const reading = [
    { toolCalls: [{ tool: 'Bash', arguments: { command, description: 'Make it' } }] },
    { toolCalls: [{ tool: 'Read', arguments: { file_path: '$<folder>/paper.pdf' } }] },
    steps[3]!,
  ]
  const setup = { mode: 'local', prompts: 'token', playbook: createPlaybook(reading, 'untidy') } as const
  const run = await runAgent(t, claudeCode, setup, createTask)
  checkOneRow(t, run, reading.length)
  t.match(
    JSON.stringify(run.turns.at(-1)?.request_messages.at(-1)),
    'A file of type application/pdf was given',
  )
})

await t.test('a request that exceeds the context of an engine is retried with a lower limit', async (t) => {
  const playbook = createPlaybook(steps, 'tidy')
  const setup = { mode: 'local', prompts: 'chat', playbook, contextLength: 40_000 } as const
  const { code, output, turns, rows } = await runAgent(t, claudeCode, setup, createTask)
  t.equal(code, 0, 'it exits with 0', { output })
  const completed = turns.filter(({ status }) => status === 'completed')
  t.equal(completed.length, steps.length)
  t.ok(completed.length < turns.length, 'requests that exceeded the context are recorded as failed')
  t.equal(rows.length, 1)
  checkRows(t, completed, rows)
})

await t.test('a sub-agent of Claude Code has a separate row', async (t) => {
  // A general-purpose sub-agent can delegate too: Claude Code sends it the list of agents at an unpredictable time, in
  // a user message that no rule matches. Explore cannot delegate and receives no such message.
  const delegate = {
    description: 'Make the file',
    prompt: 'Helper: make the file in $<folder> please.',
    subagent_type: 'Explore',
  }
  const make = { command: 'echo hello from 42 > printed.txt; cat printed.txt', description: 'Make it' }
  const rules = [
    {
      name: 'ask a sub-agent',
      when: { role: 'user', step: 0, user: 'Delegate in (?<folder>\\S+)' },
      answer: { content: 'A helper can do that.', tool_calls: [{ name: 'Agent', arguments: delegate }] },
    },
    // Before the next rule: a fast sub-agent's report may arrive with the tool result that contains its id.
    {
      name: 'it has reported',
      when: { text: 'Helper says (\\d+)' },
      answer: { content: 'Done: it says $1.' },
    },
    {
      name: 'it works in the background',
      when: { role: 'tool', text: 'agentId' },
      answer: { content: 'I wait for the helper.' },
    },
    {
      name: 'the sub-agent works',
      when: { role: 'user', step: 0, user: 'Helper: make the file' },
      answer: { tool_calls: [{ name: 'Bash', arguments: make }] },
    },
    { name: 'the sub-agent reports', when: {}, answer: { content: 'Helper says 42.' } },
  ]
  const setup = { mode: 'relay', prompts: 'token', playbook: { rules } } as const
  const { code, output, work, turns, rows } = await runAgent(
    t,
    claudeCode,
    setup,
    (folder) => `Delegate in ${folder} : it is too much for one.`,
  )
  t.equal(code, 0, 'it exits with 0', { output })
  t.equal(readFileSync(join(work, 'printed.txt'), 'utf8'), 'hello from 42\n')
  checkRows(t, turns, rows)
  t.strictSame(getLastCompletions(turns, rows), { main: 'Done: it says 42.', subagent: 'Helper says 42.' })
})

await t.test('Claude Code compacts a conversation that has filled the context, and continues', async (t) => {
  const read = { command: 'head -c 12000 /dev/urandom | base64 -w 0 | head -c 12000', description: 'Read on' }
  const rules = [
    {
      name: 'compact',
      when: { role: 'user', text: 'summary of (the|our) conversation' },
      answer: { content: '<summary>I read a lot.</summary>' },
    },
    { name: 'go on', when: { user: 'continued from a previous conversation' }, answer: { content: 'Done.' } },
    {
      name: 'read on',
      when: { user: 'Read in' },
      answer: { tool_calls: [{ name: 'Bash', arguments: read }] },
    },
    { name: 'anything else', when: {}, answer: { content: 'Done.' } },
  ]
  const setup = { mode: 'local', prompts: 'token', playbook: { rules }, contextLength: 60_000 } as const
  const taskIn = (folder: string) => `Read in ${folder} until you know it all.`
  const { code, output, turns, rows } = await runAgent(t, claudeCode, setup, taskIn)
  t.equal(code, 0, 'it exits with 0', { output })
  const completed = turns.filter(({ status }) => status === 'completed')
  const failed = turns.filter(({ status }) => status !== 'completed')
  t.match(failed, [{ line: 'main', error: { code: 'context_length_exceeded' } }])
  t.equal(completed.filter(({ line }) => line === 'compaction').length, 1)
  checkRows(t, completed, rows)
  t.strictSame(new Set(rows.map(({ line }) => line)), new Set(['main']))
  t.equal(turns.at(-1)?.completion_text, 'Done.')
})
