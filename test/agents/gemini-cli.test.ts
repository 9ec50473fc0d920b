/** Gemini CLI speaks Gemini's generateContent. */
import t from 'tap'
import { ONLY_FULL } from '../helpers/tier.ts'
import { createResumingAgent, runAgent } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testEngineDisconnect, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { createGeminiCliAgent } from './parts/known-agents.ts'
import { ONE_SETUP } from './parts/rig.ts'
import { createPlaybook, createTask } from './parts/script.ts'
import { checkOneRow } from './parts/session-checks.ts'

const geminiCli = createGeminiCliAgent(await installFromNpm('@google/gemini-cli'))

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
        arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' },
      },
    ],
  },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read_file', arguments: { file_path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

await testFileTask(geminiCli, { steps }, ONE_SETUP)
await testEngineDisconnect(geminiCli, { steps, isDefault: true })
await testContinuedResponses(geminiCli, { steps, isDefault: true })

await t.test('Gemini CLI --resume extends its row', { skip: ONLY_FULL }, async (t) => {
  // Its first message lists the files of the folder, so the folder must not change.
  const look = { tool: 'run_shell_command', arguments: { command: 'echo 42', description: 'Look' } }
  const lookSteps = [
    { reasoning: 'I look.', content: 'I look.', toolCalls: [look] },
    { toolCalls: [look] },
    { content: 'Done.' },
  ]
  const agent = createResumingAgent(geminiCli, '--resume latest')
  const setup = { mode: 'local', prompts: 'token', playbook: createPlaybook(lookSteps, 'untidy') } as const
  checkOneRow(t, await runAgent(t, agent, setup, createTask), 2 * lookSteps.length)
})
