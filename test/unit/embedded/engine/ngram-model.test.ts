import fc from 'fast-check'
import t from 'tap'
import { loadEmbeddedModel } from '../../../../src/embedded/engine/embedded-model.ts'
import { NgramModel } from '../../../../src/embedded/engine/ngram-model.ts'
import { rankTokens } from '../../../../src/embedded/engine/score.ts'
import { countNgrams } from '../../../../tools/embedded-model/count-ngrams.ts'

const { ngrams, tokenizer } = loadEmbeddedModel()
const anyId = fc.nat(ngrams.vocabularySize - 1)
/** Contexts that occur in the corpus and contexts that do not. */
const anyContext = fc.oneof(
  fc.array(anyId, { maxLength: 6 }),
  fc
    .constantFrom('Hello! How can', '<|im_start|>assistant\n', 'The answer is 4')
    .map((text) => tokenizer.encode(text)),
)

t.test('after any context the probabilities of all tokens are positive and sum to one', async () => {
  const probabilities = new Float64Array(ngrams.vocabularySize)
  fc.assert(
    fc.property(anyContext, (context) => {
      ngrams.getNextDistribution(context).fill(probabilities)
      const sum = probabilities.reduce((total, probability) => total + probability, 0)
      return Math.abs(sum - 1) < 1e-9 && probabilities.every((probability) => probability > 0)
    }),
  )
})

t.test('the probability of one token equals, bit for bit, the one in the complete distribution', async () => {
  const probabilities = new Float64Array(ngrams.vocabularySize)
  fc.assert(
    fc.property(anyContext, anyId, (context, id) => {
      const next = ngrams.getNextDistribution(context)
      next.fill(probabilities)
      return Object.is(next.getProbability(id), probabilities[id])
    }),
  )
})

t.test('interpolation gives the unseen share of a context to the shorter one', async (t) => {
  // Two documents: 0 is followed by 1 and 2 once each. Calculated by hand with the discount 0.25.
  const model = new NgramModel(countNgrams([[0, 1], [0, 2]], 4, 2)) // biome-ignore format: one line shows it
  const uniform = (0.25 * 3) / 4 / 4
  const unigram = (count: number) => Math.max(count - 0.25, 0) / 4 + uniform
  const left = (0.25 * 2) / 2
  const next = model.getNextDistribution([0])
  t.equal(next.getProbability(1), unigram(1) * left + 0.5 * 0.75)
  t.equal(next.getProbability(0), unigram(2) * left)
  t.equal(next.getProbability(3), unigram(0) * left)
})

t.test('an unseen context falls back to the shorter one', async (t) => {
  const context = tokenizer.encode('zebra quartz How can I')
  const shorter = context.slice(-2)
  const unseen = [tokenizer.encode('§')[0]!, ...shorter]
  t.equal(
    ngrams.getNextDistribution(unseen).getProbability(5),
    ngrams.getNextDistribution(shorter).getProbability(5),
  )
})

t.test('rankTokens gives one finite logprob per completion token and depends on the prompt', async (t) => {
  const completion = tokenizer.encode(' can I help you today?')
  const scoresAfter = (text: string) => {
    const prompt = tokenizer.encode(text)
    const ranked = rankTokens(ngrams, [...prompt, ...completion], prompt.length, 0)
    return ranked.map(({ logprob }) => logprob)
  }
  const scores = scoresAfter('Hello! How')
  t.equal(scores.length, completion.length)
  t.ok(scores.every((score) => Number.isFinite(score) && score <= 0))
  t.not(scores[0], scoresAfter('The tests are')[0])
  t.same(rankTokens(ngrams, [1], 1, 0), [])
})
