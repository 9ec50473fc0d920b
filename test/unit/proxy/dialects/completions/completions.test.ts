import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { lowerCompletionRequest } from '../../../../../src/proxy/dialects/completions/request.ts'
import {
  buildTextCompletion,
  CompletionStreamWriter,
} from '../../../../../src/proxy/dialects/completions/response.ts'

const identity = { turnId: 'T', createdS: 5, model: 'requested' }
const entry = (token: string, logprob: number) => ({
  token,
  logprob,
  bytes: null,
  top_logprobs: [{ token, logprob, bytes: null }],
})
const events: GenerationEvent[] = [
  { type: 'start', engine: 'e', model: 'm', promptTokenIds: PromptIds.of(1, 2) },
  { type: 'delta', content: 'ab', tokenIds: [3], logprobs: [-1], logprobsContent: [entry('ab', -1)] },
  { type: 'delta', content: 'c', tokenIds: [4], logprobs: [-2], logprobsContent: [entry('c', -2)] },
  { type: 'end', finishReason: 'stop', usage: { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4 } },
]

t.test('a prompt is one text or one list of token ids', async (t) => {
  const prompt = (value: unknown) => lowerCompletionRequest({ prompt: value }).body.prompt
  t.equal(prompt('x'), 'x')
  t.equal(prompt(['x']), 'x')
  t.same(prompt([1, 2]), [1, 2])
  t.same(prompt([[1, 2]]), [1, 2])
  t.throws(() => prompt(['x', 'y']), { code: 'unsupported', param: 'prompt' })
  t.throws(() => prompt([[1], [2]]), { code: 'unsupported', param: 'prompt' })
  t.throws(() => prompt([1.5]), { code: 'invalid_request' })
  t.throws(() => prompt([-1]), { code: 'invalid_request' })
  t.throws(() => lowerCompletionRequest({}), { code: 'invalid_request', param: 'prompt' })
})

t.test('fields that turns cannot represent are rejected', async (t) => {
  t.throws(() => lowerCompletionRequest({ prompt: 'x', echo: true }), { code: 'unsupported', param: 'echo' })
  for (const n of [undefined, 2])
    t.throws(() => lowerCompletionRequest({ prompt: 'x', best_of: 3, n }), {
      code: 'unsupported',
      param: 'best_of',
    })
  const { body, choices } = lowerCompletionRequest({ prompt: 'x', best_of: 2, n: 2 })
  t.equal(choices, 2)
  t.notOk('best_of' in body, 'n is sufficient')
})

t.test('logprobs are arranged as parallel lists with offsets into the text', async (t) => {
  const builder = new CompletionBuilder()
  for (const event of events) builder.add(event)
  const responseOptions = { logprobs: true, tokenIds: true, reasoning: false, streamUsage: false }
  t.same(JSON.parse(JSON.stringify(buildTextCompletion(identity, responseOptions, builder))), {
    id: 'cmpl-T',
    object: 'text_completion',
    created: 5,
    model: 'm',
    choices: [
      {
        index: 0,
        text: 'abc',
        logprobs: {
          tokens: ['ab', 'c'],
          token_logprobs: [-1, -2],
          top_logprobs: [{ ab: -1 }, { c: -2 }],
          text_offset: [0, 2],
        },
        finish_reason: 'stop',
        token_ids: [3, 4],
        prompt_token_ids: [1, 2],
      },
    ],
    usage: { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4 },
  })
})

t.test('a stream adds up to the complete response, with prompt ids on its first chunk only', async (t) => {
  const writer = new CompletionStreamWriter(identity, {
    logprobs: true,
    tokenIds: true,
    reasoning: false,
    streamUsage: true,
  })
  const lines = events
    .map((event) => writer.write([event]))
    .join('')
    .split('\n\n')
    .slice(0, -1)
  t.equal(lines.pop(), 'data: [DONE]')
  const chunks = lines.map((line) => JSON.parse(line.slice('data: '.length)))
  t.equal(
    chunks
      .flatMap((chunk) => chunk.choices)
      .map((choice) => choice.text)
      .join(''),
    'abc',
  )
  t.same(
    chunks.flatMap((chunk) => chunk.choices.flatMap((c: { token_ids?: number[] }) => c.token_ids ?? [])),
    [3, 4],
  )
  t.same(chunks[0].choices[0].prompt_token_ids, [1, 2])
  t.notOk('prompt_token_ids' in chunks[1].choices[0])
  t.same(chunks[1].choices[0].logprobs.text_offset, [2], 'offsets continue from chunk to chunk')
  t.same(chunks.at(-1), {
    ...chunks.at(-1),
    choices: [],
    usage: { prompt_tokens: 2, completion_tokens: 2, total_tokens: 4 },
  })
  t.equal(chunks.at(-2).choices[0].finish_reason, 'stop')
})
