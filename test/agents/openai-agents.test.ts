/** The OpenAI Agents SDK speaks OpenAI Responses or Chat Completions. */
import { HELLO, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { openaiAgentsSdk } from './parts/known-agents.ts'
import { ONE_SETUP, TWO_SETUPS } from './parts/rig.ts'

const installed = await installFromNpm('@openai/agents')

const steps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [{ tool: 'write_file', arguments: { path: '$<folder>/hello.sh', content: HELLO } }],
  },
  // Two tool calls in one response, and their results in one request.
  {
    calls: [
      { tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt' } },
      { tool: 'bash', arguments: { command: 'cat hello.sh' } },
    ],
  },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'read_file', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]

await testFileTask(openaiAgentsSdk(installed, 'responses'), { steps }, TWO_SETUPS)
await testFileTask(
  openaiAgentsSdk(installed, 'chat_completions'),
  { steps, forgetsReasoning: true },
  ONE_SETUP,
)
