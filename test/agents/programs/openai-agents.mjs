/**
 * A typical agent with the OpenAI Agents SDK, without code for the proxy. Its endpoint is in OPENAI_BASE_URL. `node
 * openai-agents.mjs responses|chat_completions TASK`, next to a `node_modules` with the SDK.
 */
import { execFile } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import { Agent, run, setOpenAIAPI, setTracingDisabled, tool } from '@openai/agents'

const [api, task] = process.argv.slice(2)
setOpenAIAPI(api)
setTracingDisabled(true)

const stringParameters = (...names) => ({
  type: 'object',
  properties: Object.fromEntries(names.map((name) => [name, { type: 'string' }])),
  required: names,
  additionalProperties: false,
})

const tools = [
  tool({
    name: 'write_file',
    description: 'Write a file.',
    parameters: stringParameters('path', 'content'),
    execute: async ({ path, content }) => {
      await writeFile(path, content)
      return 'written'
    },
  }),
  tool({
    name: 'bash',
    description: 'Run a command.',
    parameters: stringParameters('command'),
    execute: async ({ command }) => {
      const { stdout, stderr } = await promisify(execFile)('sh', ['-c', command])
      return stdout + stderr
    },
  }),
  tool({
    name: 'read_file',
    description: 'Read a file.',
    parameters: stringParameters('path'),
    execute: ({ path }) => readFile(path, 'utf8'),
  }),
]

const agent = new Agent({ name: 'Worker', instructions: 'Use your tools.', model: 'gpt-5.5', tools })
const result = await run(agent, task, { stream: true })
for await (const text of result.toTextStream()) process.stdout.write(text)
await result.completed
