/** The task of `frameworks.py` with Vercel's AI SDK: `generateText` with a tool and its own loop. */
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateText, jsonSchema, stepCountIs, tool } from 'ai'

const provider = createOpenAICompatible({
  name: 'proxy',
  baseURL: process.env.OPENAI_BASE_URL,
  apiKey: 'none',
})
const number = { type: 'integer' }
const inputSchema = jsonSchema({ type: 'object', properties: { a: number, b: number }, required: ['a', 'b'] })
const add = tool({
  description: 'Adds two numbers.',
  inputSchema,
  execute: async ({ a, b }) => String(a + b),
})
const prompt = 'What is 2 + 3, and 4 more than that? Use the tool.'
const { text } = await generateText({
  model: provider('m'),
  prompt,
  tools: { add },
  stopWhen: stepCountIs(4),
})
console.log('answer:', text)
