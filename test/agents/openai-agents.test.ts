import { testFileTask } from './parts/file-task.ts'
import { openaiAgent, openaiSteps } from './parts/openai-agent.ts'
import { TWO_SETUPS } from './parts/rig.ts'

await testFileTask(openaiAgent('responses'), { steps: openaiSteps }, TWO_SETUPS)
await testFileTask(
  openaiAgent('chat_completions'),
  { steps: openaiSteps, forgetsReasoning: true },
  TWO_SETUPS,
)
