import fc from 'fast-check'
import t from 'tap'
import { loadEmbeddedModel } from '../../../../src/embedded/engine/embedded-model.ts'
import type { NextTokenDistribution } from '../../../../src/embedded/engine/ngram-model.ts'
import { Sampler } from '../../../../src/embedded/engine/sampler.ts'
import { readSamplingParams } from '../../../../src/embedded/engine/sampling-params.ts'

const { ngrams, tokenizer } = loadEmbeddedModel()
const limits = { contextLength: 1000, promptLength: 1, defaultMaxTokens: 100, defaultSeed: 0 }

function makeSampler(body: Record<string, unknown>, promptIds: number[] = [], vocabularySize = 6): Sampler {
  return new Sampler({
    params: readSamplingParams({ seed: 1, ...body }, limits),
    vocabularySize,
    eosTokenId: 0,
    promptIds,
  })
}

/** Creates a distribution with these probabilities. */
function createDistribution(probabilities: number[]): NextTokenDistribution {
  return { fill: (out: Float64Array) => out.set(probabilities) } as unknown as NextTokenDistribution
}

/** Returns the ids that a sampler draws, in ascending order. */
function findDrawnIds(sampler: Sampler, next: NextTokenDistribution, draws = 2000): number[] {
  return [...new Set(Array.from({ length: draws }, () => sampler.draw(next)))].sort((a, b) => a - b)
}

/**
 * Returns Pearson's statistic over tokens that are expected at least five times, with the others in one bin.
 */
function chiSquare(counts: ReadonlyMap<number, number>, expected: Float64Array, draws: number) {
  let [statistic, bins, restCount, restExpected] = [0, 0, draws, draws]
  expected.forEach((probability, id) => {
    if (probability * draws < 5) return
    const count = counts.get(id) ?? 0
    statistic += (count - probability * draws) ** 2 / (probability * draws)
    restCount -= count
    restExpected -= probability * draws
    bins++
  })
  return { statistic: statistic + (restCount - restExpected) ** 2 / restExpected, freedom: bins }
}

function drawMany(
  body: Record<string, unknown>,
  next: NextTokenDistribution,
  draws: number,
): Map<number, number> {
  const sampler = makeSampler(body, [], ngrams.vocabularySize)
  const counts = new Map<number, number>()
  for (let i = 0; i < draws; i++) {
    const id = sampler.draw(next)
    counts.set(id, (counts.get(id) ?? 0) + 1)
  }
  return counts
}

const MIDDLE = [0.1, 0.4, 0.2, 0.15, 0.1, 0.05]

t.test('sampled frequencies follow the model', async (t) => {
  const next = ngrams.getNextDistribution(tokenizer.encode('<|im_start|>assistant\n'))
  const expected = new Float64Array(ngrams.vocabularySize)
  next.fill(expected)
  const { statistic, freedom } = chiSquare(drawMany({}, next, 10_000), expected, 10_000)
  // Mean and standard deviation of the chi-square distribution; a limit of four deviations leaves one false
  // alarm in ten thousand seeds.
  t.ok(statistic < freedom + 4 * Math.sqrt(2 * freedom), `${statistic} with ${freedom} degrees of freedom`)
})

t.test('temperature raises the probabilities to its inverse', async (t) => {
  const next = ngrams.getNextDistribution(tokenizer.encode('<|im_start|>assistant\n'))
  const expected = new Float64Array(ngrams.vocabularySize)
  next.fill(expected)
  const powers = expected.map((probability) => probability ** (1 / 0.6))
  const total = powers.reduce((sum, power) => sum + power, 0)
  const counts = drawMany({ temperature: 0.6 }, next, 10_000)
  const { statistic, freedom } = chiSquare(
    counts,
    powers.map((power) => power / total),
    10_000,
  )
  t.ok(statistic < freedom + 4 * Math.sqrt(2 * freedom), `${statistic} with ${freedom} degrees of freedom`)
  const wrong = chiSquare(
    drawMany({}, next, 10_000),
    powers.map((power) => power / total),
    10_000,
  )
  t.ok(wrong.statistic > wrong.freedom * 2, 'the statistic distinguishes two temperatures')
})

t.test('temperature 0 selects the most probable token, and the lower id of two equal ones', async (t) => {
  t.same(findDrawnIds(makeSampler({ temperature: 0 }), createDistribution(MIDDLE), 50), [1])
  t.same(
    findDrawnIds(makeSampler({ temperature: 0 }), createDistribution([0.1, 0.4, 0.1, 0.4, 0, 0]), 50),
    [1],
  )
})

t.test('a very low temperature does not underflow', async (t) => {
  t.same(
    findDrawnIds(makeSampler({ temperature: 0.001 }), createDistribution([1e-9, 2e-9, 1e-10, 0, 0, 0])),
    [1],
  )
})

t.test('top_k keeps the k most probable tokens', async (t) => {
  t.same(findDrawnIds(makeSampler({ top_k: 3 }), createDistribution(MIDDLE)), [1, 2, 3])
  t.same(findDrawnIds(makeSampler({ top_k: 1 }), createDistribution(MIDDLE)), [1])
  t.same(findDrawnIds(makeSampler({ top_k: -1 }), createDistribution(MIDDLE)), [0, 1, 2, 3, 4, 5])
  t.same(findDrawnIds(makeSampler({ top_k: 100 }), createDistribution(MIDDLE)), [0, 1, 2, 3, 4, 5])
})

t.test('top_p keeps the fewest tokens that reach the mass', async (t) => {
  t.same(findDrawnIds(makeSampler({ top_p: 0.4 }), createDistribution(MIDDLE)), [1])
  t.same(findDrawnIds(makeSampler({ top_p: 0.5 }), createDistribution(MIDDLE)), [1, 2])
  t.same(findDrawnIds(makeSampler({ top_p: 0.7 }), createDistribution(MIDDLE)), [1, 2, 3])
})

t.test('top_p counts the mass that top_k and min_p left', async (t) => {
  t.same(findDrawnIds(makeSampler({ top_k: 2, top_p: 0.6 }), createDistribution(MIDDLE)), [1])
  t.same(findDrawnIds(makeSampler({ min_p: 0.3, top_p: 0.7 }), createDistribution(MIDDLE)), [1, 2])
})

t.test('min_p is relative to the most probable token', async (t) => {
  t.same(findDrawnIds(makeSampler({ min_p: 0.3 }), createDistribution(MIDDLE)), [1, 2, 3])
})

t.test('top_p keeps the same tokens as sorting the complete vocabulary does', async () => {
  const distribution = fc.array(fc.double({ min: 1e-9, max: 1, noNaN: true }), { minLength: 6, maxLength: 6 })
  fc.assert(
    fc.property(distribution, fc.double({ min: 0.05, max: 0.999, noNaN: true }), (weights, topP) => {
      const total = weights.reduce((sum, weight) => sum + weight, 0)
      const ranked = weights.map((_, id) => id).sort((a, b) => weights[b]! - weights[a]! || a - b)
      const massBefore = (rank: number) => ranked.slice(0, rank).reduce((sum, id) => sum + weights[id]!, 0)
      const kept = new Set(ranked.filter((_, rank) => massBefore(rank) < topP * total + 1e-12))
      return findDrawnIds(makeSampler({ top_p: topP }), createDistribution(weights), 50).every((id) =>
        kept.has(id),
      )
    }),
  )
})

t.test('the same seed draws the same tokens, and another seed draws others', async (t) => {
  const draws = (seed: number) => {
    const sampler = makeSampler({ seed })
    return Array.from({ length: 40 }, () => sampler.draw(createDistribution(MIDDLE)))
  }
  t.same(draws(7), draws(7))
  t.notSame(draws(7), draws(8))
  t.notSame(draws(-1), draws(1))
  t.notSame(draws(2 ** 40), draws(0))
})

t.test('before min_tokens no token is drawn that would end the completion', async (t) => {
  const sampler = makeSampler({ min_tokens: 1, stop_token_ids: [1] })
  t.same(findDrawnIds(sampler, createDistribution(MIDDLE)), [2, 3, 4, 5])
  sampler.accept(2)
  t.same(findDrawnIds(sampler, createDistribution(MIDDLE)), [0, 1, 2, 3, 4, 5])
})

t.test('repetition_penalty makes tokens of prompt and completion less likely', async (t) => {
  const sampler = makeSampler({ temperature: 0, repetition_penalty: 3 }, [1])
  t.equal(sampler.draw(createDistribution(MIDDLE)), 2)
  sampler.accept(2)
  t.equal(sampler.draw(createDistribution(MIDDLE)), 3)
})

t.test('presence and frequency penalties count the completion only', async (t) => {
  const presence = makeSampler({ temperature: 0, presence_penalty: 1 }, [1])
  t.equal(presence.draw(createDistribution(MIDDLE)), 1)
  presence.accept(1)
  t.equal(presence.draw(createDistribution(MIDDLE)), 2)
  const frequency = makeSampler({ temperature: 0, frequency_penalty: 0.4 })
  frequency.accept(1)
  t.equal(frequency.draw(createDistribution(MIDDLE)), 1)
  frequency.accept(1)
  t.equal(frequency.draw(createDistribution(MIDDLE)), 2)
})
