/**
 * mini-swe-agent sends Chat Completions through LiteLLM, as SWE-agent does. It has one tool, and ends without a last
 * message.
 */
import t from 'tap'
import { HELLO, testFileTask } from './parts/file-task.ts'
import { hasPython, installFromPyPI } from './parts/install.ts'
import { MINI_SWE_AGENT, miniSweAgent } from './parts/known-agents.ts'
import { ONE_SETUP } from './parts/rig.ts'

const run = (command: string) => ({ tool: 'bash', arguments: { command } })

const steps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [run(`cat > hello.sh <<'END'\n${HELLO}END`)],
  },
  { says: 'I run it.', calls: [run('sh hello.sh > printed.txt'), run('cat printed.txt')] },
  { thinks: 'It says 42.', says: 'I am done.', calls: [run('echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT')] },
]

if (await hasPython()) {
  const installed = await installFromPyPI(...MINI_SWE_AGENT)
  await testFileTask(miniSweAgent(installed), { steps }, ONE_SETUP)
} else {
  t.pass('mini-swe-agent does its task', { skip: 'there is no python3 with venv' })
}
