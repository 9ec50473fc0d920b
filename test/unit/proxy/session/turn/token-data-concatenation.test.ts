import t from 'tap'
import {
  TokenDataConcatenation,
  truncateDelta,
} from '../../../../../src/proxy/session/turn/token-data-concatenation.ts'

/** Creates a table of experts with one layer and one expert of one byte for each of these positions. */
function createExperts(start: number, ...experts: number[]) {
  const shape = [experts.length, 1, 1]
  return { start, experts: { dtype: 'U8', shape, data: Buffer.from(experts) } as const }
}

t.test('the data of several engine requests is that of one response', (t) => {
  const data = new TokenDataConcatenation(3)
  const prompt = { start: 1, counts: [1, 1], ids: [7, 8], logprobs: [-1, -2] }
  const first = {
    prompt_logprobs: prompt,
    routed_experts: createExperts(0, 1, 2, 3, 4),
    weight_versions: [{ version: '1', start: 0, end: 2 }],
  }
  t.equal(data.join(first), first)
  data.startRequest(2)
  t.equal(data.expertsStart, 4, 'no engine has read the last token')
  const top = { counts: [1], ids: [9], logprobs: [-3] }
  const joined = data.join({
    top_logprobs: top,
    // The engine read the tokens of the first request as a prompt.
    prompt_logprobs: { start: 1, counts: [1, 1, 1, 1], ids: [7, 8, 9, 9], logprobs: [-5, -5, -5, -5] },
    routed_experts: createExperts(4, 5, 6),
    weight_versions: [{ version: '2', start: 0, end: 2 }],
  })
  t.strictSame(joined, {
    top_logprobs: top,
    prompt_logprobs: prompt,
    routed_experts: createExperts(0, 1, 2, 3, 4, 5, 6),
    weight_versions: [
      { version: '1', start: 0, end: 2 },
      { version: '2', start: 2, end: 4 },
    ],
  })
  t.end()
})

t.test('experts that do not follow the earlier ones are not recorded for other positions', (t) => {
  const data = new TokenDataConcatenation(3)
  data.join({ routed_experts: createExperts(0, 1, 2, 3, 4) })
  data.startRequest(2)
  t.strictSame(data.join({ routed_experts: createExperts(5, 6) }), {
    routed_experts: createExperts(0, 1, 2, 3, 4),
  })
  t.end()
})

t.test('prompt logprobs that only a later request reports end with the prompt', (t) => {
  const data = new TokenDataConcatenation(3)
  data.startRequest(1)
  const { prompt_logprobs: prompt } = data.join({
    prompt_logprobs: { start: 1, counts: [2, 1, 1], ids: [1, 2, 3, 4], logprobs: [-1, -2, -3, -4] },
  })
  t.strictSame(prompt, { start: 1, counts: [2, 1], ids: [1, 2, 3], logprobs: [-1, -2, -3] })
  t.end()
})

t.test('a delta is cut with the data of its tokens', (t) => {
  const delta = {
    type: 'delta' as const,
    tokenIds: [1, 2, 3],
    logprobs: [-1, -2, -3],
    details: { sampling_mask: { counts: [2, 1, 1], ids: [1, 5, 2, 3] }, sampling_logprobs: [-1, -2, -3] },
  }
  t.match(truncateDelta(delta, 1), {
    tokenIds: [1],
    logprobs: [-1],
    details: { sampling_mask: { counts: [2], ids: [1, 5] }, sampling_logprobs: [-1] },
  })
  t.equal(truncateDelta(delta, 3), delta)
  t.end()
})
