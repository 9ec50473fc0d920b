/** Google's SDKs speak Gemini's generateContent. */
import { cpSync, symlinkSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { IS_FULL } from '../helpers/tier.ts'
import { type Agent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testFileTask } from './parts/file-task.ts'
import { hasPython, type Installation, installFromNpm, installFromPyPI } from './parts/install.ts'
import { ONE_SETUP, TWO_SETUPS } from './parts/rig.ts'

const PROGRAMS = join(import.meta.dirname, 'programs')

const { version, folder } = await installFromNpm('@google/genai')

const createAgent = (delivery: 'complete' | 'streamed'): Agent => ({
  name: `@google/genai ${version} (${delivery})`,
  dialect: 'gemini',
  program: ({ baseUrl, task, key, home }) => {
    const program = join(home, 'agent.mjs')
    cpSync(join(PROGRAMS, 'google-genai.mjs'), program)
    symlinkSync(join(folder, 'node_modules'), join(home, 'node_modules'))
    return {
      command: process.execPath,
      args: [program, delivery, task],
      env: { ...SHELL_ENV, HOME: home, GOOGLE_GEMINI_BASE_URL: baseUrl, GEMINI_API_KEY: key },
    }
  },
})

const createPythonAgent = ({ version, folder }: Installation, delivery: 'complete' | 'streamed'): Agent => ({
  name: `google-genai ${version} for Python (${delivery})`,
  dialect: 'gemini',
  program: ({ baseUrl, task, key, home }) => ({
    command: join(folder, 'bin/python'),
    args: [join(PROGRAMS, 'google-genai.py'), delivery, task],
    env: { ...SHELL_ENV, HOME: home, GOOGLE_GEMINI_BASE_URL: baseUrl, GEMINI_API_KEY: key },
  }),
})

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

await testFileTask(createAgent('complete'), { steps }, IS_FULL ? TWO_SETUPS : TWO_SETUPS.slice(0, 1))
await testFileTask(createAgent('streamed'), { steps }, ONE_SETUP)

if (await hasPython()) {
  const installed = await installFromPyPI('google-genai')
  await testFileTask(createPythonAgent(installed, 'complete'), { steps }, ONE_SETUP)
  await testFileTask(createPythonAgent(installed, 'streamed'), { steps }, ONE_SETUP)
} else {
  t.pass('google-genai for Python does its task', { skip: 'there is no python3 with venv' })
}
