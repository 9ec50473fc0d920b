/** pi speaks each of several dialects; `histories.test.ts` runs all of them. */
import { HELLO, testContinuedResponses, testEngineDisconnect, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { createPiAgent } from './parts/known-agents.ts'
import { ONE_SETUP } from './parts/rig.ts'

const installed = await installFromNpm('@earendil-works/pi-coding-agent')

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'write', arguments: { path: '$<folder>/hello.sh', content: HELLO } }],
  },
  { toolCalls: [{ tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt' } }] },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

await testFileTask(createPiAgent(installed), { steps }, ONE_SETUP)
for (const dialect of ['chat', 'responses', 'messages'] as const) {
  await testEngineDisconnect(createPiAgent(installed, dialect), { steps })
  await testContinuedResponses(createPiAgent(installed, dialect), { steps })
}
