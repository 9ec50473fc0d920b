import fc from 'fast-check'
import t from 'tap'
import { computePassAtK } from '../../src/proxy/http/trainer/sessions/pass-at-k.ts'

const task = (count: number, passed: number) => ({ rewards: { count }, passed })

t.test('pass@k is the mean over the tasks that have at least k samples', async (t) => {
  t.same(computePassAtK([]), {})
  t.same(computePassAtK([task(0, 0)]), {})
  t.same(computePassAtK([task(4, 0), task(2, 2)]), { 1: 0.5, 2: 0.5, 4: 0 })
  t.same(computePassAtK([task(4, 1)]), { 1: 0.25, 2: 0.5, 4: 1 })
})

/** Returns all combinations of k out of n items. */
function listCombinations(n: number, k: number): number[][] {
  if (k === 0) return [[]]
  return n < k
    ? []
    : [...listCombinations(n - 1, k), ...listCombinations(n - 1, k - 1).map((rest) => [...rest, n - 1])]
}

t.test('pass@k is the share of all combinations of k samples that contain a passing one', async (t) => {
  const counts = fc.integer({ min: 1, max: 9 }).chain((n) => fc.tuple(fc.constant(n), fc.nat(n)))
  const isShare = fc.property(counts, ([n, c]) => {
    for (const [k, measured] of Object.entries(computePassAtK([task(n, c)]))) {
      const all = listCombinations(n, Number(k))
      const share = all.filter((draw) => draw.some((sample) => sample < c)).length / all.length
      if (Math.abs(share - measured) > 1e-12) throw new Error(`k ${k}: ${measured}, not ${share}`)
    }
  })
  t.doesNotThrow(() => fc.assert(isShare))
})
