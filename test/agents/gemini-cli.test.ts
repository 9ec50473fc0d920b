/** Gemini CLI speaks Gemini's generateContent. */
import { HELLO, testFileTask, testLostEngine } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { geminiCliAgent } from './parts/known-agents.ts'
import { TWO_SETUPS } from './parts/rig.ts'

const geminiCli = geminiCliAgent(await installFromNpm('@google/gemini-cli'))

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
        arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' },
      },
    ],
  },
  {
    thinks: 'Now I read what it printed.',
    calls: [{ tool: 'read_file', arguments: { file_path: '$<folder>/printed.txt' } }],
  },
  { says: 'Done: it says 42.' },
]

await testFileTask(geminiCli, { steps }, TWO_SETUPS)
await testLostEngine(geminiCli, { steps, isDefault: true })
