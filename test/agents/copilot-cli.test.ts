/** GitHub Copilot CLI speaks each of three dialects to a custom provider. */
import t from 'tap'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'
import { resumingAgent, runAgent } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testFileTask, testLostEngine } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { copilotAgent } from './parts/known-agents.ts'
import { ONE_SETUP, TWO_SETUPS } from './parts/rig.ts'
import { getPlaybook, taskIn } from './parts/script.ts'
import { checkOneRow } from './parts/session-checks.ts'

const installed = await installFromNpm('@github/copilot')

const steps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [{ tool: 'create', arguments: { path: '$<folder>/hello.sh', file_text: HELLO } }],
  },
  {
    calls: [{ tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' } }],
  },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'view', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]

await testFileTask(copilotAgent(installed), { steps }, ONE_SETUP)
await testLostEngine(copilotAgent(installed), { steps })
await testContinuedResponses(copilotAgent(installed), { steps })

if (IS_FULL) {
  // In chat mode its history over Responses repeats reasoning as text where the model generated no text.
  for (const dialect of ['messages', 'responses'] as const)
    await testFileTask(copilotAgent(installed, dialect), { steps }, TWO_SETUPS.slice(1))
}

for (const dialect of ['chat', 'responses', 'messages'] as const) {
  await t.test(`Copilot CLI --continue extends its row, ${dialect}`, { skip: ONLY_FULL }, async (t) => {
    const agent = resumingAgent(copilotAgent(installed, dialect), '--continue')
    const setup = { mode: 'local', prompts: 'token', playbook: getPlaybook(steps, 'untidy') } as const
    checkOneRow(t, await runAgent(t, agent, setup, taskIn), 2 * steps.length)
  })
}
