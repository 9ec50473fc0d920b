/**
 * Token mode against chat mode: the embedded engine renders, samples, decodes and parses a chat by itself, or it gets
 * ids and the proxy does the rest. An agent must not be able to see the difference.
 */
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import { EmbeddedEngine } from '../../../src/embedded/engine/embedded-engine.ts'
import { getEmbeddedModelFolder } from '../../../src/embedded/engine/embedded-model.ts'
import { type Completion, CompletionBuilder } from '../../../src/protocol/canonical/completion.ts'
import type { ChatMessage, Tool } from '../../../src/protocol/canonical/messages.ts'
import type { ChatBody, GenerationRequest } from '../../../src/protocol/canonical/request.ts'
import type { Backend } from '../../../src/proxy/engines/port/backend.ts'
import { TokenPrompts } from '../../../src/proxy/session/prompts/token-prompts.ts'
import { openTokenModel } from '../../../src/proxy/tokens/model/token-model.ts'
import { pull } from '../../helpers/event-stream.ts'
import { generateWithPrompts } from '../../helpers/generate-with-prompts.ts'
import { ScriptedBackend } from '../../helpers/scripted-backend.ts'
import { openMemoryStore } from '../../helpers/store-in-process.ts'

const engine = new EmbeddedEngine({ contextLength: 700 })
const model = await openTokenModel({
  source: getEmbeddedModelFolder(),
  parser: 'auto',
  contextLength: engine.contextLength,
})
t.teardown(() => model.close())
const chatMode = new ScriptedBackend((request, signal) => pull(engine, request, signal))
const prompts = new TokenPrompts(model, await openMemoryStore())
const tokenMode = new ScriptedBackend((request, signal) =>
  generateWithPrompts(prompts, chatMode, request, signal),
)

const calculator: Tool = {
  type: 'function',
  function: {
    name: 'calculator',
    parameters: { type: 'object', properties: { expression: { type: 'string' } } },
  },
}

const text = fc.oneof(
  fc.constantFrom('Hello.', 'What is 2 + 2?', 'Compute (12 + 7) * 3 step by step.', 'é 👩‍👩‍👧 中文', ' \n'),
  fc.string({ unit: 'grapheme', maxLength: 30 }),
)
const message: fc.Arbitrary<ChatMessage> = fc.oneof(
  text.map((content): ChatMessage => ({ role: 'user', content })),
  text.map((content): ChatMessage => ({ role: 'assistant', content })),
  text.map(
    (content): ChatMessage => ({ role: 'assistant', content, reasoning_content: 'Hm.', tool_calls: [] }),
  ),
  text.map((content): ChatMessage => ({ role: 'tool', tool_call_id: 'call_1', content })),
)
const conversation = fc
  .tuple(
    fc.array(message, { maxLength: 5 }),
    fc.constantFrom('What is 2 + 2?', 'Compute (12 + 7) * 3 step by step.', 'Tell me of the sea.'),
  )
  .map(([messages, question]): ChatMessage[] => [...messages, { role: 'user', content: question }])

const endOfTurn = model.tokenizer.eosTokenId!
const stopString = fc.constantFrom('a', 'e', ' t', 'the', '\n', '</tool_call>', '2', '}', 'is', '<|im_end|>')
const stopToken = fc.oneof(
  fc.constant(endOfTurn),
  fc.integer({ min: 0, max: model.tokenizer.vocabSize - 1 }),
  stopString.map((written) => model.tokenizer.encode(written)[0]!),
)
const maybe = <Value>(value: fc.Arbitrary<Value>) => fc.option(value, { nil: undefined, freq: 2 })

const sampling = fc.record({
  seed: fc.nat(),
  temperature: fc.constantFrom(0, 0.7, 1.5),
  max_tokens: fc.constantFrom(1, 3, 40, 90),
  stop: maybe(fc.oneof(stopString, fc.array(stopString, { maxLength: 3 }))),
  stop_token_ids: maybe(fc.array(stopToken, { maxLength: 2 })),
  ignore_eos: maybe(fc.boolean()),
  skip_special_tokens: maybe(fc.boolean()),
  include_stop_str_in_output: maybe(fc.boolean()),
  min_tokens: maybe(fc.integer({ min: 0, max: 12 })),
  tools: maybe(fc.constantFrom<Tool[]>([], [calculator])),
  tool_choice: maybe(fc.constantFrom('auto' as const, 'none' as const)),
})

let requests = 0

async function sendRequest(backend: Backend, body: ChatBody, stream: boolean): Promise<CompletionBuilder> {
  const id = `call-${requests++}`
  const request: GenerationRequest = { kind: 'chat', body, stream, requestId: id, sessionId: id }
  const fold = new CompletionBuilder()
  for await (const batch of pull(backend, request, new AbortController().signal)) {
    for (const event of batch) fold.add(event)
  }
  backend.releaseSession(id)
  return fold
}

/** Returns what an agent or a trainer sees, except for the random ids of tool calls. */
function getVisible({ start, end, content, reasoning, toolCalls, tokenIds, logprobs }: Completion): object {
  const calls = toolCalls.map((call) => call.function)
  const promptTokenIds = Array.from(start!.promptTokenIds!)
  return {
    promptTokenIds,
    // Token mode alone counts the tokens of reasoning: the embedded engine does not, as vLLM before 0.32.
    end: end?.usage ? { ...end, usage: { ...end.usage, completion_tokens_details: undefined } } : end,
    content: content ?? '',
    reasoning: reasoning ?? '',
    calls,
    tokenIds,
    logprobs,
  }
}

t.test('ids, logprobs, text, tool calls and finish reasons are those of chat mode', async (t) => {
  const counts = { toolCalls: 0, stopStrings: 0, stopTokens: 0, lengths: 0 }
  await fc.assert(
    fc.asyncProperty(conversation, sampling, fc.boolean(), async (messages, params, stream) => {
      const body = { messages, ...params } as ChatBody
      const [expected, actual] = [
        await sendRequest(chatMode, body, stream),
        await sendRequest(tokenMode, body, stream),
      ]
      const { finishReason, stopReason } = expected.end!
      counts.toolCalls += expected.toolCalls.length
      counts.stopStrings += Number(typeof stopReason === 'string')
      counts.stopTokens += Number(typeof stopReason === 'number')
      counts.lengths += Number(finishReason === 'length')
      return (
        isDeepStrictEqual(getVisible(actual), getVisible(expected)) ||
        t.same(getVisible(actual), getVisible(expected))
      )
    }),
    { numRuns: 600 },
  )
  // About 13 of the rarest: seldom fewer than 6, and never none.
  for (const [what, count] of Object.entries(counts)) t.ok(count > 0, `${count} ${what}`)
})
