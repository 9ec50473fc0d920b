/**
 * A typical agent with `@google/genai`, without code for the proxy. Its endpoint is in GOOGLE_GEMINI_BASE_URL. `node
 * google-genai.mjs complete|streamed TASK`, next to a `node_modules` with the SDK.
 */
import { execFile } from 'node:child_process'
import { readFile, writeFile } from 'node:fs/promises'
import { promisify } from 'node:util'
import { GoogleGenAI } from '@google/genai'

const [delivery, task] = process.argv.slice(2)
const stringParameters = (...names) => ({
  type: 'OBJECT',
  properties: Object.fromEntries(names.map((name) => [name, { type: 'STRING' }])),
  required: names,
})
const functionDeclarations = [
  { name: 'write_file', description: 'Write a file.', parameters: stringParameters('path', 'content') },
  { name: 'bash', description: 'Run a command.', parameters: stringParameters('command') },
  { name: 'read_file', description: 'Read a file.', parameters: stringParameters('path') },
]
const run = {
  write_file: async ({ path, content }) => {
    await writeFile(path, content)
    return 'written'
  },
  bash: async ({ command }) => {
    const { stdout, stderr } = await promisify(execFile)('sh', ['-c', command])
    return stdout + stderr
  },
  read_file: ({ path }) => readFile(path, 'utf8'),
}

const ai = new GoogleGenAI({})
const chat = ai.chats.create({
  model: 'gemini-3-pro',
  config: {
    systemInstruction: 'You are a careful agent.',
    tools: [{ functionDeclarations }],
    thinkingConfig: { includeThoughts: delivery === 'streamed' },
  },
})
let message = task
for (;;) {
  const calls = []
  if (delivery === 'streamed') {
    for await (const chunk of await chat.sendMessageStream({ message })) {
      calls.push(...(chunk.functionCalls ?? []))
      process.stdout.write(chunk.text ?? '')
    }
  } else {
    const response = await chat.sendMessage({ message })
    calls.push(...(response.functionCalls ?? []))
    process.stdout.write(response.text ?? '')
  }
  if (calls.length === 0) break
  message = await Promise.all(
    calls.map(async ({ id, name, args }) => ({
      functionResponse: { id, name, response: { output: await run[name](args) } },
    })),
  )
}
