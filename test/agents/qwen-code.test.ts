/** Qwen Code speaks Chat Completions. */
import t from 'tap'
import { ONLY_FULL } from '../helpers/tier.ts'
import { runAgent } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testEngineDisconnect, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { createQwenCodeAgent } from './parts/known-agents.ts'
import { ONE_SETUP } from './parts/rig.ts'
import { createTask } from './parts/script.ts'
import { checkOneRow } from './parts/session-checks.ts'

const qwenCode = createQwenCodeAgent(await installFromNpm('@qwen-code/qwen-code'))

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'write_file', arguments: { file_path: '$<folder>/hello.sh', content: HELLO } }],
  },
  {
    toolCalls: [
      {
        tool: 'run_shell_command',
        arguments: { command: 'sh hello.sh > printed.txt', is_background: false, description: 'Run it' },
      },
    ],
  },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read_file', arguments: { file_path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

await testFileTask(qwenCode, { steps }, ONE_SETUP)
await testEngineDisconnect(qwenCode, { steps })
await testContinuedResponses(qwenCode, { steps })

await t.test("Qwen Code's memory extraction is in no row", { skip: ONLY_FULL }, async (t) => {
  // The extraction follows a response without tool calls, and repeats the whole conversation under another system
  // prompt.
  const rules = [{ name: 'answer', when: {}, answer: { content: 'It is 42.' } }]
  const setup = { mode: 'local', prompts: 'token', playbook: { rules } } as const
  const run = await runAgent(t, qwenCode, setup, createTask)
  checkOneRow(t, run, 1)
  t.match(run.turns.slice(1), [{ line: 'side', line_rule: 'qwen_code_memory' }])
})
