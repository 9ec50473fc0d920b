import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type {
  GenerationDelta,
  GenerationEnd,
  GenerationStart,
} from '../../../../../src/protocol/canonical/events.ts'
import { PromptIds } from '../../../../../src/protocol/token-ids/prompt-ids.ts'
import { findInexactReason, getInexactCode } from '../../../../../src/proxy/session/prompts/exactness.ts'

const usage = (prompt: number, completion: number) => ({
  prompt_tokens: prompt,
  completion_tokens: completion,
  total_tokens: prompt + completion,
})

function findReason(
  delta: Partial<GenerationDelta>,
  end: Partial<GenerationEnd> = {},
  start: Partial<GenerationStart> = { promptTokenIds: PromptIds.of(1, 2) },
): string | null {
  const builder = new CompletionBuilder()
  builder.add({ type: 'start', engine: 'e', ...start })
  builder.add({ type: 'delta', ...delta })
  builder.add({ type: 'end', finishReason: 'stop', ...end })
  return findInexactReason(builder)
}

t.test('a completion whose prompt, ids, logprobs and counts agree is exact', async (t) => {
  t.equal(findReason({ content: 'x', tokenIds: [5, 6], logprobs: [-1, -2] }), null)
  t.equal(findReason({ content: 'x', tokenIds: [5, 6], logprobs: [-1, -2] }, { usage: usage(2, 2) }), null)
  t.equal(
    findReason({ content: 'x', tokenIds: [0, 2 ** 31 - 1], logprobs: [0, -9_998.5] }),
    null,
    'at the edges',
  )
  t.equal(findReason({ tokenIds: [5], logprobs: [1e-6] }), null, 'a sum of 32-bit numbers may end above 0')
  t.equal(findReason({}, { usage: usage(2, 0) }), null, 'nothing was sampled, and nothing is missing')
})

t.test('missing or contradictory data makes a completion inexact, with the reason', async (t) => {
  const full = { content: 'x', tokenIds: [5, 6], logprobs: [-1, -2] }
  t.match(findReason(full, {}, {}), /did not report the token ids of the prompt/)
  t.match(
    findReason({ content: 'x' }, {}, {}),
    'the engine did not report token ids of the completion, nor the token ids of the prompt',
  )
  t.match(findReason({ content: 'x' }), /did not report the token ids of the completion/)
  const call = { index: 0, function: { name: 'f' } }
  t.match(findReason({ toolCalls: [call] }), /did not report the token ids of the completion/)
  t.match(findReason({ ...full, logprobs: [-1] }), /2 token ids but 1 logprobs/)
  t.match(findReason({ ...full, tokenIds: [5, -1] }), /no id/)
  t.match(findReason({ ...full, tokenIds: [5, 1.5] }), /no id/)
  for (const invalid of [2 ** 31, 4_294_967_301, Number.NaN, '7' as unknown as number])
    t.match(findReason({ ...full, tokenIds: [5, invalid] }), /no id/, `id ${invalid}`)
  for (const invalid of [
    Number.NaN,
    null as unknown as number,
    -Infinity,
    Infinity,
    0.01,
    1e308,
    -1e308,
    -9_999,
  ])
    t.match(findReason({ ...full, logprobs: [-1, invalid] }), /a logprob that is none/, `logprob ${invalid}`)
  t.match(findReason(full, { usage: usage(2, 3) }), /counted 3 completion tokens but reported 2 ids/)
  t.match(findReason(full, { usage: usage(2, 1) }), /counted 1 completion tokens but reported 2 ids/)
  t.match(findReason(full, { usage: usage(1, 2) }), /counted 1 prompt tokens but reported 2 ids/)
  t.match(findReason(full, { usage: usage(3, 2) }), /counted 3 prompt tokens but reported 2 ids/)
})

t.test('a request without a response from the engine has no reason about missing data', async (t) => {
  t.equal(findInexactReason(new CompletionBuilder()), 'the engine gave no answer')
})

t.test('each reason has a code without its numbers', async (t) => {
  const full = { content: 'x', tokenIds: [5, 6], logprobs: [-1, -2] }
  const start = { promptTokenIds: PromptIds.of(1, 2), vocabularySize: 6 }
  for (const [text, code] of [
    [findInexactReason(new CompletionBuilder()), 'no_answer'],
    [findReason(full, {}, {}), 'prompt_ids_missing'],
    [findReason({ content: 'x' }), 'completion_ids_missing'],
    [findReason({ ...full, logprobs: [-1] }), 'counts_differ'],
    [findReason(full, { usage: usage(2, 3) }), 'counts_differ'],
    [findReason(full, { usage: usage(1, 2) }), 'counts_differ'],
    [findReason({ ...full, tokenIds: [5, -1] }), 'invalid_token_id'],
    [findReason(full, {}, start), 'invalid_token_id'],
    [findReason({ ...full, logprobs: [-1, Number.NaN] }), 'invalid_logprob'],
    ['a reason of a later version', 'other'],
  ] as const) {
    t.equal(getInexactCode(text ?? ''), code, text ?? 'exact')
  }
})

t.test('an id outside the vocabulary is not a sampled token', async (t) => {
  const start = { promptTokenIds: PromptIds.of(1, 2), vocabularySize: 100 }
  t.equal(findReason({ tokenIds: [99], logprobs: [-1] }, {}, start), null)
  t.match(
    findReason({ tokenIds: [100], logprobs: [-1] }, {}, start),
    /token id 100, but the vocabulary has 100/,
  )
})
