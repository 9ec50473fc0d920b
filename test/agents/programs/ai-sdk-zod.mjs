/**
 * An agent written as in the documentation of Vercel's AI SDK, with zod schemas that have defaults, trim and convert:
 * the SDK echoes the values that zod returns for a tool call. `node ai-sdk-zod.mjs chat|responses|messages TASK`,
 * next to a `node_modules` with the SDK.
 */
import { createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI } from '@ai-sdk/openai'
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { stepCountIs, ToolLoopAgent, tool } from 'ai'
import { z } from 'zod'

const [dialect, task] = process.argv.slice(2)
const baseURL = process.env.OPENAI_BASE_URL
const apiKey = 'none'
const MODELS = {
  chat: () => createOpenAICompatible({ name: 'proxy', baseURL, apiKey })('m'),
  responses: () => createOpenAI({ baseURL, apiKey }).responses('m'),
  messages: () => createAnthropic({ baseURL, apiKey })('m'),
}

const tools = {
  bash: tool({
    description: 'Run a command.',
    inputSchema: z.object({
      command: z.string().trim(),
      timeout: z.coerce.number().default(5),
      background: z.boolean().default(false),
    }),
    execute: async ({ command }) => `ran ${command}`,
  }),
  write: tool({
    description: 'Write a file.',
    inputSchema: z.object({ path: z.string(), content: z.string(), mode: z.string().default('0644') }),
    execute: async ({ path }) => `written ${path}`,
  }),
}

const agent = new ToolLoopAgent({ model: MODELS[dialect](), tools, stopWhen: stepCountIs(20) })
const { text } = await agent.generate({ prompt: task })
console.log(text)
