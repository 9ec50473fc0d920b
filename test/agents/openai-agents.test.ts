/** The OpenAI Agents SDK speaks OpenAI Responses or Chat Completions. */
import { HELLO, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { createOpenaiSdkAgent } from './parts/known-agents.ts'
import { ONE_SETUP, TWO_SETUPS } from './parts/rig.ts'

const installed = await installFromNpm('@openai/agents')

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'write_file', arguments: { path: '$<folder>/hello.sh', content: HELLO } }],
  },
  // Two tool calls in one response, and their results in one request.
  {
    toolCalls: [
      { tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt' } },
      { tool: 'bash', arguments: { command: 'cat hello.sh' } },
    ],
  },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read_file', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

await testFileTask(createOpenaiSdkAgent(installed, 'responses'), { steps }, TWO_SETUPS)
await testFileTask(
  createOpenaiSdkAgent(installed, 'chat_completions'),
  { steps, omitsReasoning: true },
  ONE_SETUP,
)
