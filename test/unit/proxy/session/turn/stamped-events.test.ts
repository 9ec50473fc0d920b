import t from 'tap'
import { CompletionBuilder } from '../../../../../src/protocol/canonical/completion.ts'
import type { GenerationEvent } from '../../../../../src/protocol/canonical/events.ts'
import { addStamps, withUsage } from '../../../../../src/proxy/session/turn/stamped-events.ts'

const start: GenerationEvent = { type: 'start', engine: 'e' }
const stamps = { weightsAtDispatch: undefined, weightsNow: undefined, logprobsMode: undefined }

t.test('what logprobs are of goes on record with the answer, where it is known', async (t) => {
  t.match(addStamps(start, { ...stamps, logprobsMode: 'raw_logprobs' }), {
    sampling: { logprobsMode: 'raw_logprobs' },
  })
  t.strictSame(addStamps(start, stamps), start)
})

t.test(
  'an answer whose engine counts nothing has the count of its ids, and another keeps its own',
  async (t) => {
    const fold = new CompletionBuilder()
    fold.add({ type: 'delta', tokenIds: [1, 2] })
    t.match(withUsage({ type: 'end', finishReason: 'stop' }, fold), { usage: { completion_tokens: 2 } })
    const usage = { prompt_tokens: 1, completion_tokens: 3, total_tokens: 4 }
    t.match(withUsage({ type: 'end', finishReason: 'stop', usage }, fold), { usage })
  },
)

t.test(
  'an answer without a count and without ids has one that is guessed from all that was said',
  async (t) => {
    const fold = new CompletionBuilder()
    fold.add({ type: 'delta', reasoning: 'Hm.', content: 'größer' })
    fold.add({ type: 'delta', toolCalls: [{ index: 0, function: { name: 'run', arguments: '{"a":1}' } }] })
    t.match(withUsage({ type: 'end', finishReason: 'stop' }, fold), {
      usage: { completion_tokens: 6, total_tokens: 6 },
    })
    const empty = withUsage({ type: 'end', finishReason: 'stop' }, new CompletionBuilder())
    t.match(empty, { usage: { completion_tokens: 0 } })
  },
)
