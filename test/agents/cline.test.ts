/** Cline CLI speaks Chat Completions. */
import { join } from 'node:path'
import t from 'tap'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'
import { type Agent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testContinuedResponses, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { TWO_SETUPS } from './parts/rig.ts'

async function installCline(): Promise<Agent> {
  const { version, folder } = await installFromNpm('cline')
  return {
    name: `Cline CLI ${version}`,
    dialect: 'chat',
    program: ({ baseUrl, task, key, home }) => {
      const provider = ['openai-compatible', '-k', key, '-m', 'embedded', '-b', `${baseUrl}/v1`]
      const script = 'cline=$1 task=$2; shift 2; "$cline" auth "$@" && "$cline" "$task"'
      const command = join(folder, 'node_modules/.bin/cline')
      return {
        command: 'sh',
        args: ['-c', script, 'sh', command, task, ...provider],
        env: {
          ...SHELL_ENV,
          HOME: home,
          CLINE_DIR: join(home, 'cline'),
          // Otherwise the first Cline starts a daemon that outlives it and serves all others on the machine.
          CLINE_SESSION_BACKEND_MODE: 'local',
        },
      }
    },
  }
}

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'editor', arguments: { path: '$<folder>/hello.sh', new_text: HELLO } }],
  },
  { toolCalls: [{ tool: 'run_commands', arguments: { commands: ['sh hello.sh > printed.txt'] } }] },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read_files', arguments: { files: [{ path: '$<folder>/printed.txt' }] } }],
  },
  { content: 'Done: it says 42.' },
]

// The package has 430 MB.
if (IS_FULL) {
  const cline = await installCline()
  await testFileTask(cline, { steps }, TWO_SETUPS)
  await testContinuedResponses(cline, { steps })
} else t.pass('Cline CLI does its task', { skip: ONLY_FULL })
