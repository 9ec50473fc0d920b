/** The AI SDK, a library of agents, validates every response and event with its own schemas. */
import { type AnthropicProvider, createAnthropic } from '@ai-sdk/anthropic'
import { createOpenAI, type OpenAIProvider } from '@ai-sdk/openai'
import { generateText, jsonSchema, type LanguageModel, streamText, type ToolSet } from 'ai'
import t from 'tap'
import type { ToolCallDelta } from '../../src/protocol/canonical/messages.ts'
import { SAMPLE_RESPONSES } from '../helpers/sample-responses.ts'
import { respond } from '../helpers/scripted-backend.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

Object.assign(globalThis, { AI_SDK_LOG_WARNINGS: false })

const getCity = (call: ToolCallDelta) => JSON.parse(call.function?.arguments ?? '{}')

const inputSchema = jsonSchema<unknown>({
  type: 'object',
  properties: { city: { type: 'string' } },
  required: ['city'],
})
const tools: ToolSet = { weather: { description: 'Tells the weather', inputSchema } }

const DIALECTS: Record<string, (url: string) => LanguageModel> = {
  chat: (url) => openAi(url).chat('scripted'),
  completions: (url) => openAi(url).completion('scripted'),
  responses: (url) => openAi(url).responses('scripted'),
  messages: (url) => anthropic(url)('scripted'),
}

function openAi(url: string): OpenAIProvider {
  return createOpenAI({ baseURL: `${url}/s/v1`, apiKey: 'none' })
}

function anthropic(url: string): AnthropicProvider {
  return createAnthropic({ baseURL: `${url}/s/v1`, apiKey: 'none' })
}

for (const [dialect, model] of Object.entries(DIALECTS)) {
  for (const [what, events] of Object.entries(SAMPLE_RESPONSES)) {
    if (dialect === 'completions' && /tool|reasoning/.test(what)) continue
    t.test(`the AI SDK accepts ${what} in ${dialect}, complete and streamed`, async (t) => {
      const { url, backend } = await startSessionsApi(t)
      backend.script = () => respond(events)
      const request = {
        model: model(url),
        prompt: 'Hi',
        maxRetries: 0,
        maxOutputTokens: 100,
        tools: dialect === 'completions' ? {} : tools,
      }
      const text = events.map((event) => (event.type === 'delta' ? (event.content ?? '') : '')).join('')
      const cities = events
        .flatMap((event) => (event.type === 'delta' ? (event.toolCalls ?? []) : []))
        .map(getCity)
      const full = await generateText(request)
      t.equal(full.text, text)
      t.same(
        full.toolCalls.map(({ input }) => input),
        cities,
      )
      const errors: unknown[] = []
      const streamed = streamText({ ...request, onError: ({ error }) => void errors.push(error) })
      await streamed.consumeStream()
      t.same(errors, [])
      t.equal(await streamed.text, text)
      t.same(
        (await streamed.toolCalls).map(({ input }) => input),
        cities,
      )
    })
  }
}
