import fc from 'fast-check'
import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { buildChatCompletion, ChatStreamWriter } from '../../../../../src/proxy/dialects/chat/response.ts'
import { ChoicesWriter, sumUsage } from '../../../../../src/proxy/dialects/common/choices.ts'
import {
  buildTextCompletion,
  CompletionStreamWriter,
} from '../../../../../src/proxy/dialects/completions/response.ts'

const identity = { turnId: 'T', createdS: 5, model: 'requested' }
const responseOptions = { logprobs: false, tokenIds: true, reasoning: true, streamUsage: true }

const usage = (completion_tokens: number, reasoning_tokens?: number) => ({
  prompt_tokens: 2,
  completion_tokens,
  total_tokens: 2 + completion_tokens,
  prompt_tokens_details: { cached_tokens: 1 },
  ...(reasoning_tokens !== undefined && { completion_tokens_details: { reasoning_tokens } }),
})

function createEvents(words: readonly string[], choice: number): GenerationEvent[] {
  return [
    { type: 'start', engine: 'e', model: 'm', promptTokenIds: PromptIds.of(7, 8) },
    ...words.map(
      (content, index): GenerationEvent => ({ type: 'delta', content, tokenIds: [choice, index] }),
    ),
    { type: 'end', finishReason: 'stop', usage: usage(2 * words.length, 1) },
  ]
}

t.test('the usage of several choices counts the prompt once and every sampled token', async (t) => {
  const end = (of?: ReturnType<typeof usage>) => ({
    end: { type: 'end', finishReason: 'stop', ...(of && { usage: of }) } as const,
  })
  t.same(sumUsage([end(usage(3, 1)), end(usage(4)), end(usage(5, 2))]), {
    prompt_tokens: 2,
    completion_tokens: 12,
    total_tokens: 14,
    prompt_tokens_details: { cached_tokens: 1 },
    completion_tokens_details: { reasoning_tokens: 3 },
  })
  t.equal(sumUsage([end(usage(3)), end()]), undefined, 'partial usage would be wrong')
})

const KINDS = {
  chat: {
    createWriter: (choice: number) => new ChatStreamWriter({ ...identity, choice }, responseOptions),
    build: buildChatCompletion,
    // biome-ignore lint/suspicious/noExplicitAny: a choice of either dialect
    getText: (choice: any) => choice.delta?.content ?? choice.message?.content ?? '',
  },
  completions: {
    createWriter: (choice: number) => new CompletionStreamWriter({ ...identity, choice }, responseOptions),
    build: buildTextCompletion,
    getText: (choice: { text?: string }) => choice.text ?? '',
  },
}

for (const [kind, { createWriter, build, getText }] of Object.entries(KINDS)) {
  t.test(`${kind}: a stream of choices in any order adds up to the complete response`, async (t) => {
    const words = fc.array(fc.string({ minLength: 1 }), { minLength: 1, maxLength: 4 })
    const responses = fc.array(words, { minLength: 2, maxLength: 4 })
    await fc.assert(
      fc.asyncProperty(responses, fc.infiniteStream(fc.nat()), async (texts, picks) => {
        const left = texts.map(createEvents)
        const builders = texts.map(() => new CompletionBuilder())
        const writer = new ChoicesWriter(texts.length, createWriter)
        let stream = ''
        while (left.some((events) => events.length > 0)) {
          const choice = picks.next().value % texts.length
          const event = left[choice]!.shift()
          if (event === undefined) continue
          builders[choice]!.add(event)
          stream += writer.write({ choice, events: [event] })
        }
        const chunks = stream.split('\n\n').slice(0, -1)
        t.equal(chunks.pop(), 'data: [DONE]')
        const read = chunks.map((chunk) => JSON.parse(chunk.slice('data: '.length)))
        const response = JSON.parse(
          JSON.stringify(
            build(identity, responseOptions, ...(builders as [CompletionBuilder, ...CompletionBuilder[]])),
          ),
        )
        t.same(read.at(-1).usage, response.usage)
        t.same(read.at(-1).choices, [])
        for (const [index, choice] of response.choices.entries()) {
          const chunks = read.flatMap(({ choices }) => choices).filter((chunk) => chunk.index === index)
          t.equal(chunks.map(getText).join(''), getText(choice))
          t.same(
            chunks.flatMap(({ token_ids: ids }) => ids ?? []),
            choice.token_ids,
          )
          t.equal(chunks.filter((chunk) => chunk.finish_reason === 'stop').length, 1)
          t.equal(choice.index, index)
        }
        t.equal(new Set(read.map(({ id }) => id)).size, 1)
      }),
      { numRuns: 30 },
    )
  })
}
