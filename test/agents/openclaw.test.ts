/** OpenClaw speaks each of several dialects, and ends requests with snapshots of its sessions. */
import { mkdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { IS_FULL, ONLY_FULL } from '../helpers/tier.ts'
import { type Agent, runAgent, SHELL_ENV } from './parts/agent.ts'
import { HELLO, testFileTask } from './parts/file-task.ts'
import { installFromNpm } from './parts/install.ts'
import { TWO_SETUPS } from './parts/rig.ts'
import { createPlaybook, createTask } from './parts/script.ts'
import { checkOneRow } from './parts/session-checks.ts'

const APIS = { chat: 'openai-completions', responses: 'openai-responses', messages: 'anthropic-messages' }

async function installOpenClaw(): Promise<(dialect: keyof typeof APIS) => Agent> {
  const { version, folder } = await installFromNpm('openclaw')
  return (dialect) => ({
    name: `OpenClaw ${version}`,
    dialect,
    program: ({ baseUrl, task, key, home, work }) => {
      const models = [{ id: 'embedded', name: 'embedded', reasoning: true, contextWindow: 200_000 }]
      const url = dialect === 'messages' ? baseUrl : `${baseUrl}/v1`
      const proxy = { baseUrl: url, apiKey: key, api: APIS[dialect], models }
      const agents = { defaults: { workspace: work, model: { primary: 'proxy/embedded' } } }
      mkdirSync(join(home, '.openclaw'))
      const config = { agents, models: { providers: { proxy } } }
      writeFileSync(join(home, '.openclaw/openclaw.json'), JSON.stringify(config))
      return {
        command: join(folder, 'node_modules/.bin/openclaw'),
        args: ['agent', '--local', '--agent', 'main', '--message', task],
        env: { ...SHELL_ENV, HOME: home, OPENCLAW_STATE_DIR: join(home, '.openclaw') },
      }
    },
  })
}

const steps = [
  {
    reasoning: 'The file comes first.',
    content: 'I write the script.',
    toolCalls: [{ tool: 'write', arguments: { path: '$<folder>/hello.sh', content: HELLO } }],
  },
  { toolCalls: [{ tool: 'exec', arguments: { command: 'sh hello.sh > printed.txt' } }] },
  {
    reasoning: 'Now I read what it printed.',
    toolCalls: [{ tool: 'read', arguments: { path: '$<folder>/printed.txt' } }],
  },
  { content: 'Done: it says 42.' },
]

// The package has 650 MB, and OpenClaw takes half a minute to start.
if (IS_FULL) {
  const createAgent = await installOpenClaw()
  await testFileTask(createAgent('chat'), { steps }, TWO_SETUPS)
  for (const dialect of ['responses', 'messages'] as const) {
    await t.test(`OpenClaw, ${dialect}: its session is one row`, async (t) => {
      const setup = { mode: 'local', prompts: 'token', playbook: createPlaybook(steps, 'untidy') } as const
      checkOneRow(t, await runAgent(t, createAgent(dialect), setup, createTask), steps.length)
    })
  }
} else t.pass('OpenClaw does its task', { skip: ONLY_FULL })
