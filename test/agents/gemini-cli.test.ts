/** Gemini CLI speaks Gemini's generateContent. */
import t from 'tap'
import { ONLY_FULL } from '../helpers/tier.ts'
import { resumingAgent, runAgent } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testFileTask, testLostEngine } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { geminiCliAgent } from './parts/known-agents.ts'
import { ONE_SETUP } from './parts/rig.ts'
import { getPlaybook, taskIn } from './parts/script.ts'
import { checkOneRow } from './parts/session-checks.ts'

const geminiCli = geminiCliAgent(await installFromNpm('@google/gemini-cli'))

const steps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [{ tool: 'write_file', arguments: { file_path: '$<folder>/hello.sh', content: HELLO } }],
  },
  {
    calls: [
      {
        tool: 'run_shell_command',
        arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' },
      },
    ],
  },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'read_file', arguments: { file_path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]

await testFileTask(geminiCli, { steps }, ONE_SETUP)
await testLostEngine(geminiCli, { steps, isDefault: true })
await testContinuedResponses(geminiCli, { steps, isDefault: true })

await t.test('Gemini CLI --resume extends its row', { skip: ONLY_FULL }, async (t) => {
  // Its first message lists the files of the folder, so the folder must not change.
  const look = { tool: 'run_shell_command', arguments: { command: 'echo 42', description: 'Look' } }
  const talk = [{ thinks: 'I look.', says: 'I look.', calls: [look] }, { calls: [look] }, { says: 'Done.' }]
  const agent = resumingAgent(geminiCli, '--resume latest')
  const setup = { mode: 'local', prompts: 'token', playbook: getPlaybook(talk, 'untidy') } as const
  checkOneRow(t, await runAgent(t, agent, setup, taskIn), 2 * talk.length)
})
