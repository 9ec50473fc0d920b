/**
 * mini-swe-agent sends Chat Completions through LiteLLM, as SWE-agent does. It has one tool, and ends with a tool call.
 */
import t from 'tap'
import { HELLO, testFileTask } from './parts/file-task.ts'
import { hasPython, installFromPyPI } from './parts/install.ts'
import { createMiniSweAgent, MINI_SWE_AGENT } from './parts/known-agents.ts'
import { ONE_SETUP } from './parts/rig.ts'

const run = (command: string) => ({ tool: 'bash', arguments: { command } })

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [run(`cat > hello.sh <<'END'\n${HELLO}END`)],
  },
  { content: 'I run it.', toolCalls: [run('sh hello.sh > printed.txt'), run('cat printed.txt')] },
  {
    reasoning: 'It says 42.',
    content: 'I am done.',
    toolCalls: [run('echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT')],
  },
]

if (await hasPython()) {
  const installed = await installFromPyPI(...MINI_SWE_AGENT)
  await testFileTask(createMiniSweAgent(installed), { steps }, ONE_SETUP)
} else {
  t.pass('mini-swe-agent does its task', { skip: 'there is no python3 with venv' })
}
