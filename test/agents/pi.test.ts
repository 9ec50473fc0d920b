/** pi speaks each of several dialects; `histories.test.ts` runs all of them. */
import { HELLO, testContinuedResponses, testFileTask, testLostEngine } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { piAgent } from './parts/known-agents.ts'
import { ONE_SETUP } from './parts/rig.ts'

const installed = await installFromNpm('@earendil-works/pi-coding-agent')

const steps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [{ tool: 'write', arguments: { path: '$<folder>/hello.sh', content: HELLO } }],
  },
  { calls: [{ tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt' } }] },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'read', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]

await testFileTask(piAgent(installed), { steps }, ONE_SETUP)
for (const dialect of ['chat', 'responses', 'messages'] as const) {
  await testLostEngine(piAgent(installed, dialect), { steps })
  await testContinuedResponses(piAgent(installed, dialect), { steps })
}
