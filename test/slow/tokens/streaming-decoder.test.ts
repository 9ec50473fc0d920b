import fc from 'fast-check'
import t from 'tap'
import { StreamingDecoder } from '../../../src/proxy/tokens/tokenizer/streaming-decoder.ts'
import type { Tokenizer } from '../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { limitRuns } from '../../helpers/tier.ts'
import { loadRealTokenizer } from '../../unit/proxy/tokens/real-models.ts'

/** Generates random ids of every difficult kind: partial characters, special tokens, ids that do not exist. */
function someIds(tokenizer: Tokenizer): fc.Arbitrary<number[]> {
  const partial = [...Array(tokenizer.vocabSize).keys()].filter(
    (id) => tokenizer.getPiece(id).text === undefined,
  )
  const written = fc.string({ unit: 'grapheme' }).map((text) => tokenizer.encode(text))
  const one = fc.oneof(
    fc.nat(tokenizer.vocabSize + 10),
    fc.constantFrom(...partial),
    fc.constantFrom(...[...tokenizer.addedTokens.values()].filter((id) => tokenizer.isSpecial(id))),
  )
  return fc
    .array(
      fc.oneof(
        one.map((id) => [id]),
        written,
      ),
    )
    .map((runs) => runs.flat())
}

for (const model of ['qwen3', 'llama3_1', 'gemma3']) {
  const tokenizer = loadRealTokenizer(model)

  t.test(`${model}: a stream of ids gives the text of all of them at once`, async () => {
    fc.assert(
      fc.property(someIds(tokenizer), fc.boolean(), fc.nat(), (ids, skipSpecialTokens, cut) => {
        const decoder = new StreamingDecoder(tokenizer, { skipSpecialTokens, startsText: true })
        const size = 1 + (cut % 5)
        let text = ''
        for (let from = 0; from < ids.length; from += size) text += decoder.push(ids.slice(from, from + size))
        return text + decoder.flush() === tokenizer.decode(ids, { skipSpecialTokens })
      }),
      { numRuns: limitRuns(300) },
    )
  })

  t.test(`${model}: no chunk of a valid text contains a partial character`, async () => {
    fc.assert(
      fc.property(fc.string({ unit: 'grapheme', minLength: 1 }), (text) => {
        const decoder = new StreamingDecoder(tokenizer)
        const chunks = tokenizer.encode(text).map((id) => decoder.push([id]))
        return (
          chunks.every((chunk) => chunk.isWellFormed() && !chunk.includes('\ufffd')) && decoder.flush() === ''
        )
      }),
    )
  })
}

const qwen = loadRealTokenizer('qwen3')

t.test('a character appears with the token that completes it', async (t) => {
  const decoder = new StreamingDecoder(qwen)
  const ids = qwen.encode('𓀀!')
  const chunks = ids.map((id) => decoder.push([id]))
  t.ok(ids.length > 2)
  t.same(
    chunks.filter((chunk) => chunk !== ''),
    ['𓀀', '!'],
  )
})

t.test(
  'bytes that never form a character are shown as U+FFFD: before the next one, or at the end',
  async (t) => {
    const decoder = new StreamingDecoder(qwen)
    const [begin] = qwen.encode('𓀀')
    t.equal(decoder.push([begin!]), '')
    t.equal(decoder.push(qwen.encode('a')), '\ufffda')
    t.equal(decoder.push([begin!]), '')
    t.equal(decoder.flush(), '\ufffd')
    t.equal(decoder.flush(), '')
  },
)

t.test('an id that does not exist leaves an incomplete character unchanged', async (t) => {
  const decoder = new StreamingDecoder(qwen)
  const [begin, ...rest] = qwen.encode('𓀀')
  t.equal(decoder.push([begin!, 10_000_000, ...rest]), '𓀀')
})

t.test('special tokens are skipped, except those that a parser reads', async (t) => {
  const llama = loadRealTokenizer('llama3_2')
  const ids = llama.encode('<|python_tag|>{}<|eom_id|>')
  const skipping = new StreamingDecoder(llama, { skipSpecialTokens: true })
  t.equal(skipping.push(ids), '{}')
  const keeping = new StreamingDecoder(llama, {
    skipSpecialTokens: true,
    keepTokens: ['<|python_tag|>', 'nonsense'],
  })
  t.equal(keeping.push(ids), '<|python_tag|>{}')
})
