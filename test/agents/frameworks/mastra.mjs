/** The task of `frameworks.py` with Mastra: an agent with a tool and its own loop. */
import { Agent } from '@mastra/core/agent'
import { createTool } from '@mastra/core/tools'
import { z } from 'zod'

const add = createTool({
  id: 'add',
  description: 'Adds two numbers.',
  inputSchema: z.object({ a: z.number().int(), b: z.number().int() }),
  execute: async ({ a, b }) => String(a + b),
})
const agent = new Agent({
  id: 'worker',
  name: 'worker',
  instructions: 'You add.',
  model: { id: 'proxy/m', url: process.env.OPENAI_BASE_URL, apiKey: 'none' },
  tools: { add },
})
const { text } = await agent.generate('What is 2 + 3, and 4 more than that? Use the tool.', { maxSteps: 4 })
console.log('answer:', text)
