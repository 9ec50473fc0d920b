/** Qwen Code speaks Chat Completions. */
import { HELLO, testFileTask, testLostEngine } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { qwenCodeAgent } from './parts/known-agents.ts'
import { TWO_SETUPS } from './parts/rig.ts'

const qwenCode = qwenCodeAgent(await installFromNpm('@qwen-code/qwen-code'))

const steps = [
  {
    thinks: 'The file comes first.',
    says: 'I write the script.',
    calls: [{ tool: 'write_file', arguments: { file_path: '$<folder>/hello.sh', content: HELLO } }],
  },
  {
    calls: [
      {
        tool: 'run_shell_command',
        arguments: { command: 'sh hello.sh > printed.txt', is_background: false, description: 'Run it' },
      },
    ],
  },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'read_file', arguments: { file_path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]

await testFileTask(qwenCode, { steps }, TWO_SETUPS)
await testLostEngine(qwenCode, { steps })
