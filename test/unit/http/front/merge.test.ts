import fc from 'fast-check'
import t from 'tap'
import {
  mergeLists,
  mergeMetrics,
  poolRewards,
  type Rewards,
} from '../../../../src/proxy/http/front/merge.ts'

function rewardsOf(values: number[]): Rewards {
  const count = values.length
  if (count === 0) return { count, mean: null, std: null, min: null, max: null }
  const mean = values.reduce((sum, value) => sum + value, 0) / count
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0)
  const std = count === 1 ? 0 : Math.sqrt(squares / (count - 1))
  return { count, mean, std, min: Math.min(...values), max: Math.max(...values) }
}

t.test('rewards of two nodes come to what they come to together', async (t) => {
  const values = fc.array(fc.integer({ min: -1000, max: 1000 }), { maxLength: 20 })
  await fc.assert(
    fc.asyncProperty(values, values, async (a, b) => {
      const pooled = poolRewards(rewardsOf(a), rewardsOf(b))
      const expected = rewardsOf([...a, ...b])
      for (const name of ['count', 'mean', 'std', 'min', 'max'] as const) {
        const [got, wanted] = [pooled[name], expected[name]]
        t.ok(got === wanted || Math.abs(got! - wanted!) < 1e-6, `${name}: ${got} is ${wanted}`)
      }
    }),
    { numRuns: 50 },
  )
})

t.test('lists are merged in their order, sessions without a reward last', async (t) => {
  const session = (session_id: string, reward: number | null) => ({
    session_id,
    reward,
    created_at: 0,
    updated_at: 0,
    turn_count: 0,
    sampled_tokens: 0,
  })
  const lists = [
    [session('a', 5), session('b', 1), session('c', null)],
    [session('d', 3), session('e', null)],
  ]
  const merged = mergeLists(lists, { sort: 'reward', order: 'desc', limit: 4 })
  t.strictSame(
    merged.sessions.map(({ session_id: id }) => id),
    ['a', 'd', 'b', 'c'],
  )
  t.strictSame(merged.taken, [3, 1])
})

t.test('a series has its node as a label, and a family stands together', async (t) => {
  const text = '# HELP a A\n# TYPE a counter\na 1\n# HELP b B\n# TYPE b gauge\nb{x="{y}"} 2\n'
  const merged = mergeMetrics([
    { node: '1/2', text },
    { node: '2/2', text },
  ])
  t.equal(
    merged,
    '# HELP a A\n# TYPE a counter\na{node="1/2"} 1\na{node="2/2"} 1\n' +
      '# HELP b B\n# TYPE b gauge\nb{x="{y}",node="1/2"} 2\nb{x="{y}",node="2/2"} 2\n',
  )
})
