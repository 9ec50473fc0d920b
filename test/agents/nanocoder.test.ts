/** nanocoder speaks Chat Completions. */
import { join } from 'node:path'
import t from 'tap'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'
import { type Agent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { TWO_SETUPS } from './parts/rig.ts'

const FLAGS = ['--provider', 'proxy', '--model', 'embedded', '--mode', 'yolo', '--trust-directory', '--plain']

async function installNanocoder(): Promise<Agent> {
  const { version, folder } = await installFromNpm('@nanocollective/nanocoder')
  return {
    name: `nanocoder ${version}`,
    dialect: 'chat',
    program: ({ baseUrl, task, key, home }) => {
      const provider = { name: 'proxy', baseUrl: `${baseUrl}/v1`, apiKey: key, models: ['embedded'] }
      return {
        command: join(folder, 'node_modules/.bin/nanocoder'),
        args: [...FLAGS, 'run', task],
        env: { ...SHELL_ENV, HOME: home, NANOCODER_PROVIDERS: JSON.stringify([provider]) },
      }
    },
  }
}

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'write_file', arguments: { path: '$<folder>/hello.sh', content: HELLO } }],
  },
  { toolCalls: [{ tool: 'execute_bash', arguments: { command: 'sh hello.sh > printed.txt' } }] },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read_file', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

// The package has 300 MB.
if (IS_FULL) {
  const nanocoder = await installNanocoder()
  await testFileTask(nanocoder, { steps, omitsReasoning: true }, TWO_SETUPS)
  await testContinuedResponses(nanocoder, { steps })
} else t.pass('nanocoder does its task', { skip: ONLY_FULL })
