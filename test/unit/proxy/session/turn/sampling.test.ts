/** What a turn was sampled with, and by whose word. */
import t from 'tap'
import { readSampling } from '../../../../../src/proxy/session/turn/sampling.ts'

t.test(
  "a number that was asked for is the agent's or its session's, and anything else the engine's",
  async (t) => {
    const engine = { logprobsMode: 'raw_logprobs', defaults: { temperature: 0.6, top_k: 20 } }
    const annotations = JSON.stringify({ sampling: engine })
    const params = JSON.stringify({ temperature: 0.2, top_p: null, top_k: 'many', min_p: 0.1 })
    const { logprobs_mode, values, from } = readSampling(
      { params, annotations },
      { min_p: 0.1, top_k: 'many' },
    )
    t.equal(logprobs_mode, 'raw_logprobs')
    t.match(values, { temperature: 0.2, top_p: null, top_k: 20, min_p: 0.1 })
    t.match(from, { temperature: 'agent', top_p: 'engine', top_k: 'engine', min_p: 'session' })
  },
)

t.test('of an engine that tells nothing nothing is known', async (t) => {
  const { logprobs_mode, values, from } = readSampling({ params: '{}', annotations: '{}' }, {})
  t.equal(logprobs_mode, null)
  t.strictSame([...new Set(Object.values(values))], [null])
  t.strictSame([...new Set(Object.values(from))], ['engine'])
})
