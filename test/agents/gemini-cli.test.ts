/** Gemini CLI speaks Gemini's generateContent. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { TWO_SETUPS } from './parts/rig.ts'

const { version, folder } = await installFromNpm('@google/gemini-cli')

const geminiCli: Agent = {
  name: `Gemini CLI ${version}`,
  dialect: 'gemini',
  program: ({ baseUrl, task, home }) => {
    // Without it, the base URL alone makes the agent choose a way to log in that it then refuses.
    mkdirSync(join(home, '.gemini'), { recursive: true })
    const settings = { security: { auth: { selectedType: 'gemini-api-key' } } }
    writeFileSync(join(home, '.gemini/settings.json'), JSON.stringify(settings))
    return {
      command: join(folder, 'node_modules/.bin/gemini'),
      args: ['--yolo', '--skip-trust', '--model', 'embedded', '--prompt', task],
      env: { ...SHELL_ENV, HOME: home, GOOGLE_GEMINI_BASE_URL: baseUrl, GEMINI_API_KEY: 'none' },
    }
  },
}

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
