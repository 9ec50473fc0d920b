/** GitHub Copilot CLI speaks each of three dialects to a custom provider. */
import t from 'tap'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'
import { createResumingAgent, runAgent } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testEngineDisconnect, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { createCopilotAgent } from './parts/known-agents.ts'
import { ONE_SETUP, TWO_SETUPS } from './parts/rig.ts'
import { createPlaybook, createTask } from './parts/script.ts'
import { checkOneRow } from './parts/session-checks.ts'

const installed = await installFromNpm('@github/copilot')

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'create', arguments: { path: '$<folder>/hello.sh', file_text: HELLO } }],
  },
  {
    toolCalls: [{ tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' } }],
  },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'view', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

await testFileTask(createCopilotAgent(installed), { steps }, ONE_SETUP)
await testEngineDisconnect(createCopilotAgent(installed), { steps })
await testContinuedResponses(createCopilotAgent(installed), { steps })

if (IS_FULL) {
  // In chat mode its history over Responses repeats reasoning as text where the model generated no text.
  for (const dialect of ['messages', 'responses'] as const)
    await testFileTask(createCopilotAgent(installed, dialect), { steps }, TWO_SETUPS.slice(1))
}

for (const dialect of ['chat', 'responses', 'messages'] as const) {
  await t.test(`Copilot CLI --continue extends its row, ${dialect}`, { skip: ONLY_FULL }, async (t) => {
    const agent = createResumingAgent(createCopilotAgent(installed, dialect), '--continue')
    const setup = { mode: 'local', prompts: 'token', playbook: createPlaybook(steps, 'untidy') } as const
    checkOneRow(t, await runAgent(t, agent, setup, createTask), 2 * steps.length)
  })
}
