/** opencode speaks Chat Completions, and sends a side request for a title of the conversation. */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { type Agent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { ONE_SETUP } from './parts/rig.ts'

const { version, folder } = await installFromNpm('opencode-ai', 'postinstall.mjs')

const opencode: Agent = {
  name: `opencode ${version}`,
  dialect: 'chat',
  program: ({ baseUrl, task, key, home }) => {
    const config = join(home, 'opencode.json')
    const options = { baseURL: `${baseUrl}/v1`, apiKey: key }
    const provider = { npm: '@ai-sdk/openai-compatible', options, models: { embedded: {} } }
    writeFileSync(config, JSON.stringify({ provider: { proxy: provider }, model: 'proxy/embedded' }))
    return {
      command: join(folder, 'node_modules/.bin/opencode'),
      args: ['run', task],
      env: {
        ...SHELL_ENV,
        HOME: home,
        OPENCODE_CONFIG: config,
        OPENCODE_DISABLE_AUTOUPDATE: '1',
        OPENCODE_DISABLE_MODELS_FETCH: '1',
      },
    }
  },
}

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'write', arguments: { filePath: '$<folder>/hello.sh', content: HELLO } }],
  },
  {
    toolCalls: [{ tool: 'bash', arguments: { command: 'sh hello.sh > printed.txt', description: 'Run it' } }],
  },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read', arguments: { filePath: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

await testFileTask(opencode, { steps }, ONE_SETUP)
