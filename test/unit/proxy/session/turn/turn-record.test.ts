import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { addFallbackValues, withUsage } from '../../../../../src/proxy/session/turn/turn-record.ts'

const start: GenerationEvent = { type: 'start', engine: 'e' }
const fallbacks = { weightsAtDispatch: undefined, weightsNow: undefined, logprobsMode: undefined }

t.test('the logprobs mode is recorded with the response, where it is known', async (t) => {
  t.match(addFallbackValues(start, { ...fallbacks, logprobsMode: 'raw_logprobs' }), {
    sampling: { logprobsMode: 'raw_logprobs' },
  })
  t.strictSame(addFallbackValues(start, fallbacks), start)
})

t.test('a response without a count has the count of its ids, and any other has its own', async (t) => {
  const builder = new CompletionBuilder()
  builder.add({ type: 'delta', tokenIds: [1, 2] })
  t.match(withUsage({ type: 'end', finishReason: 'stop' }, builder), { usage: { completion_tokens: 2 } })
  const usage = { prompt_tokens: 1, completion_tokens: 3, total_tokens: 4 }
  t.match(withUsage({ type: 'end', finishReason: 'stop', usage }, builder), { usage })
})

t.test('a response without a count and without ids has an estimate from its text', async (t) => {
  const builder = new CompletionBuilder()
  builder.add({ type: 'delta', reasoning: 'Hm.', content: 'größer' })
  builder.add({ type: 'delta', toolCalls: [{ index: 0, function: { name: 'run', arguments: '{"a":1}' } }] })
  t.match(withUsage({ type: 'end', finishReason: 'stop' }, builder), {
    usage: { completion_tokens: 6, total_tokens: 6 },
  })
  const empty = withUsage({ type: 'end', finishReason: 'stop' }, new CompletionBuilder())
  t.match(empty, { usage: { completion_tokens: 0 } })
})
