import t from 'tap'
import { readLogprobsOptions, readSamplingParams } from '../../../../src/embedded/engine/sampling-params.ts'

const rejectedAt = (param: string) => ({ code: 'engine_rejected', param })
const limits = { contextLength: 100, promptLength: 60, defaultMaxTokens: 16, defaultSeed: 3 }

t.test(
  'a limit beyond the context is reduced to it for a prompt of ids, and rejected otherwise',
  async (t) => {
    const cut = { ...limits, cutsMaxTokens: true }
    t.equal(readSamplingParams({ max_tokens: 32_000 }, cut).maxTokens, 40)
    t.equal(readSamplingParams({ max_tokens: 7 }, cut).maxTokens, 7)
    t.throws(() => readSamplingParams({ max_tokens: 32_000 }, limits), rejectedAt('input_tokens'))
    t.throws(() => readSamplingParams({}, { ...cut, promptLength: 100 }), rejectedAt('input_tokens'))
  },
)

t.test('absent and null fields have the default of vLLM', async (t) => {
  const defaults = readSamplingParams({}, limits)
  t.match(defaults, {
    temperature: 1,
    topP: 1,
    topK: 0,
    minP: 0,
    repetitionPenalty: 1,
    maxTokens: 16,
    minTokens: 0,
    seed: 3,
  })
  const nulls = { temperature: null, top_p: null, top_k: null, seed: null, stop: null, max_tokens: null }
  t.same(readSamplingParams(nulls, limits), defaults)
})

t.test('max_completion_tokens takes precedence over max_tokens', async (t) => {
  t.equal(readSamplingParams({ max_tokens: 5, max_completion_tokens: 7 }, limits).maxTokens, 7)
  t.equal(readSamplingParams({ max_tokens: 5, max_completion_tokens: null }, limits).maxTokens, 5)
})

t.test('without a limit the completion may fill the context', async (t) => {
  t.equal(readSamplingParams({}, { ...limits, defaultMaxTokens: 100 }).maxTokens, 40)
})

t.test('one stop string is accepted without a list', async (t) => {
  t.same(readSamplingParams({ stop: 'END' }, limits).stop, ['END'])
  t.same(readSamplingParams({ stop: ['a', 'b'] }, limits).stop, ['a', 'b'])
})

t.test('an invalid value is rejected with the name of its field', async (t) => {
  const wrong: Record<string, unknown> = {
    temperature: -0.1,
    top_p: 0,
    top_k: -2,
    min_p: 1.5,
    seed: 'one',
    repetition_penalty: 0,
    max_tokens: 0,
    max_completion_tokens: 1.5,
    min_tokens: -1,
    stop_token_ids: ['a'],
    ignore_eos: 'yes',
    n: 2,
  }
  for (const [field, value] of Object.entries(wrong)) {
    const error = { code: 'engine_rejected', status: 400, param: new RegExp(`^${field}`) }
    t.throws(() => readSamplingParams({ [field]: value }, limits), error, field)
  }
  t.throws(() => readSamplingParams({ stop: [''] }, limits), rejectedAt('stop.0'))
})

t.test("a prompt that leaves no room is rejected with vLLM's message", async (t) => {
  const message =
    "This model's maximum context length is 100 tokens. However, you requested 41 output tokens and your prompt " +
    'contains 60 input tokens, for a total of 101 tokens. Please reduce the length of the input prompt or the ' +
    'number of requested output tokens. (parameter=input_tokens, value=60)'
  t.throws(() => readSamplingParams({ max_tokens: 41 }, limits), {
    message,
    engineBody: { error: { message, type: 'BadRequestError', param: 'input_tokens', code: 400 } },
  })
  t.equal(readSamplingParams({ max_tokens: 40 }, limits).maxTokens, 40)
  t.throws(() => readSamplingParams({}, { ...limits, promptLength: 100 }), rejectedAt('input_tokens'))
})

t.test('logprobs may be a boolean with top_logprobs or a number', async (t) => {
  t.equal(readLogprobsOptions({}), undefined)
  t.equal(readLogprobsOptions({ logprobs: false, top_logprobs: 3 }), undefined)
  t.equal(readLogprobsOptions({ logprobs: null }), undefined)
  t.same(readLogprobsOptions({ logprobs: true }), { top: 0, asTokenIds: false })
  t.same(readLogprobsOptions({ logprobs: true, top_logprobs: 3 }), { top: 3, asTokenIds: false })
  t.same(readLogprobsOptions({ logprobs: 0, return_tokens_as_token_ids: true }), { top: 0, asTokenIds: true })
  t.throws(() => readLogprobsOptions({ logprobs: true, top_logprobs: 21 }), { message: /max allowed: 20/ })
  t.throws(() => readLogprobsOptions({ logprobs: -1 }), rejectedAt('logprobs'))
})

t.test('more stop tokens than vLLM accepts are rejected', async (t) => {
  const ids = (length: number) => ({ stop_token_ids: Array.from({ length }, (_, id) => id) })
  t.equal(readSamplingParams(ids(128), limits).stopTokenIds.length, 128)
  t.throws(() => readSamplingParams(ids(129), limits), rejectedAt('stop_token_ids'))
})

t.test('more stop strings than token mode accepts are rejected', async (t) => {
  const stops = (length: number) => ({ stop: Array.from({ length }, (_, index) => `${index}`) })
  t.equal(readSamplingParams(stops(64), limits).stop.length, 64)
  t.throws(() => readSamplingParams(stops(65), limits), rejectedAt('stop'))
})
