import fc from 'fast-check'
import t from 'tap'
import {
  applyTemperature,
  comparePairs,
  findFirstDeviation,
  isWithin,
  pairTokens,
} from '../../../../src/proxy/verify/compare.ts'

const logSoftmax = (logits: readonly number[]) => {
  const sum = Math.log(logits.reduce((total, logit) => total + Math.exp(logit), 0))
  return logits.map((logit) => logit - sum)
}

t.test('the logprob after temperature lies within the bounds of a few alternatives', async () => {
  const logits = fc.array(fc.double({ min: -8, max: 8, noNaN: true }), { minLength: 2, maxLength: 60 })
  fc.assert(
    fc.property(
      logits,
      fc.nat(),
      fc.integer({ min: 1, max: 60 }),
      fc.double({ min: 0.2, max: 3, noNaN: true }),
      (some, pick, k, T) => {
        const raw = logSoftmax(some)
        const token = raw[pick % raw.length]!
        const alternatives = raw.toSorted((a, b) => b - a).slice(0, k)
        const truth = logSoftmax(raw.map((logprob) => logprob / T))[pick % raw.length]!
        const { low, high } = applyTemperature({ logprob: token, alternatives, alternativeIds: [] }, T)
        return low <= truth + 1e-9 && truth <= high + 1e-9
      },
    ),
  )
})

t.test('a comparison has mean, maximum, shift and quantiles of the ratio', async (t) => {
  const scored = [-1, -2, -3].map((logprob) => ({ logprob, alternatives: [], alternativeIds: [] }))
  const pairs = pairTokens([-1, -2.5, -2.75], scored, 'raw', 0.5)
  const comparison = comparePairs(pairs)
  t.match(comparison, { tokens: 3, mean_difference: 0.25, max_difference: 0.5 })
  t.ok(Math.abs(comparison.mean_shift - 0.25 / 3) < 1e-12)
  t.same(
    [comparison.ratio.min, comparison.ratio.p50, comparison.ratio.max],
    [Math.exp(-0.25), 1, Math.exp(0.5)],
  )
  t.ok(Math.abs(comparison.ratio_outside - 2 / 3) < 1e-12)
  t.ok(isWithin(comparison, { mean: 0.25, token: 0.5 }))
  t.notOk(isWithin(comparison, { mean: 0.25, token: 0.4 }))
  t.notOk(isWithin(comparison, { mean: 0.2, token: 0.5 }))
  const tolerance = { mean: 0.2, token: 1 }
  t.same(findFirstDeviation(pairs, [7, 8, 9], tolerance), {
    index: 1,
    token_id: 8,
    recorded: -2.5,
    recomputed: -2,
  })
  t.equal(findFirstDeviation(pairs.slice(0, 1), [7], tolerance), null)
})

t.test('a logprob that is not a number is a difference, never equality', async (t) => {
  const pairs = pairTokens([Number.NaN], [{ logprob: -1, alternatives: [], alternativeIds: [] }], 'raw', 1)
  t.notOk(isWithin(comparePairs(pairs), { mean: 1, token: 1 }))
  t.match(findFirstDeviation(pairs, [5], { mean: 1, token: 1 }), { index: 0 })
})
