/** The sampling parameters of a turn, and the origin of each. */
import t from 'tap'
import { readSampling } from '../../../../../src/proxy/session/turn/sampling.ts'

t.test(
  'a requested number comes from the agent or its session, and anything else from the engine',
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

t.test('an engine that reports nothing leaves parameters unknown', async (t) => {
  const { logprobs_mode, values, from } = readSampling({ params: '{}', annotations: '{}' }, {})
  t.equal(logprobs_mode, null)
  t.strictSame([...new Set(Object.values(values))], [null])
  t.strictSame([...new Set(Object.values(from))], ['engine'])
})
