/**
 * The AI SDK as its documentation uses it: tools with zod schemas. It echoes what zod made of a tool call (defaults
 * filled in, unknown members dropped, texts trimmed, numbers converted) in place of what was sampled.
 */
import { writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { generateText, type LanguageModel, type ModelMessage, stepCountIs, tool } from 'ai'
import t, { type Test } from 'tap'
import { z } from 'zod'
import { startProxy } from '../helpers/proxy.ts'

/** The arguments of each sampled tool call; the result of the previous one selects it. */
const ARGUMENTS = [
  { command: 'ls' },
  { command: 'ls', timeout: 9 },
  { command: 'ls -l', unknown_member: 1 },
  { command: ' ls  ' },
  { command: 'ls', timeout: '7' },
  { command: 'ls', flag: true },
  { flag: false, command: 'ls' },
  { command: 'x'.repeat(300) },
  { command: 'é "\\ \n' },
  { unknown_member: { deep: [1, 2.5] }, command: 'a' },
  { command: 5 },
]
const TOOL_CALLS = [...ARGUMENTS, ...ARGUMENTS, ...ARGUMENTS].slice(0, 25)

const rules = [
  ...TOOL_CALLS.map((args, index) => ({
    name: `call ${index}`,
    when: { tool: 'bash', text: index === 0 ? 'begin' : `next ${index}\\b` },
    answer: {
      content: `<tool_call>\n${JSON.stringify({ name: 'bash', arguments: args })}\n</tool_call>`,
    },
  })),
  { name: 'end', when: { text: '' }, answer: { content: 'Done.' } },
]

const MODELS: Record<string, (url: string) => LanguageModel> = {
  chat: (url) => createOpenAI({ baseURL: `${url}/s/v1`, apiKey: 'none' }).chat('embedded'),
  responses: (url) => createOpenAI({ baseURL: `${url}/s/v1`, apiKey: 'none' }).responses('embedded'),
  messages: (url) => createAnthropic({ baseURL: `${url}/s/v1`, apiKey: 'none' })('embedded'),
}

/** Runs the task. @returns its rows and turns */
async function runTask(t: Test, getModel: (url: string) => LanguageModel, editedCalls: 'auto' | 'branch') {
  const playbook = join(t.testdir({}), 'playbook.json')
  writeFileSync(playbook, JSON.stringify({ rules }))
  const proxy = await startProxy(t, { playbook, tokenizer: 'embedded', db: 'memory', editedCalls })
  let toolCallCount = 0
  const bash = tool({
    inputSchema: z.object({
      command: z.coerce.string().trim(),
      timeout: z.coerce.number().default(5),
      flag: z.boolean().default(false),
    }),
    execute: async () => {
      toolCallCount += 1
      return `next ${toolCallCount}`
    },
  })
  const { text } = await generateText({
    model: getModel(proxy.url),
    prompt: 'begin',
    tools: { bash },
    stopWhen: stepCountIs(30),
    maxRetries: 0,
  })
  t.equal(text.trim(), 'Done.')
  t.equal(toolCallCount, TOOL_CALLS.length)
  const { trajectories } = await proxy.get('/sessions/s/trajectories')
  const { turns: tree } = await proxy.get('/sessions/s/tree')
  const { turns } = await proxy.get('/sessions/s')
  return { rows: trajectories, tree, turns }
}

for (const [dialect, getModel] of Object.entries(MODELS)) {
  t.test(`${dialect}: a task of 26 requests with zod's defaults is one row`, async (t) => {
    const { rows, tree, turns } = await runTask(t, getModel, 'auto')
    t.equal(rows.length, 1)
    t.match(rows[0], { num_turns: 26, exact: true })
    const changed = tree.map(({ changed_calls: kinds }: { changed_calls: string[] }) => kinds.join())
    t.equal(changed.filter((kinds: string) => kinds === 'arguments').length, 25)
    t.match(turns[1].annotations.echo.changes, [
      { path: 'flag', sampled: null, echoed: 'false' },
      { path: 'timeout', sampled: null, echoed: '5' },
    ])
  })
}

t.test('under branch each tool call that zod has changed starts a row', async (t) => {
  const { rows, tree } = await runTask(t, MODELS.chat!, 'branch')
  t.equal(rows.length, 26)
  t.match(tree[1].changed_calls, ['edited', 'arguments'])
})

t.test('responses: a conversation whose base URL has no session is one session', async (t) => {
  const proxy = await startProxy(t, { db: 'memory' })
  const model = createOpenAI({ baseURL: `${proxy.url}/v1`, apiKey: 'none' }).responses('m')
  const messages: ModelMessage[] = [{ role: 'user', content: 'hello' }]
  for (let turn = 0; turn < 3; turn += 1) {
    const { response } = await generateText({ model, messages, maxOutputTokens: 8, maxRetries: 0 })
    messages.push(...response.messages, { role: 'user', content: 'go on' })
  }
  const { sessions } = await proxy.get('/sessions')
  t.match(sessions, [{ num_turns: 3 }])
  t.equal(sessions.length, 1)
})
