/** Comparison of an engine's tokenizer with the proxy's. */
import t from 'tap'
import {
  COMPARED_IDS,
  createTokenizerQuery,
  describeTokenizerMismatch,
  judgeTokenizer,
} from '../../../../../src/proxy/engines/port/expected-tokenizer.ts'

const BOS = 99
const expected = {
  name: 'Qwen/Qwen3',
  ids: [1, 2, 3],
  decode: (ids: readonly number[]) => ids.map((id) => (id === BOS ? '<s>' : id)).join(''),
}

t.test('a BOS token that the engine prepends is not a difference', async (t) => {
  t.equal(judgeTokenizer(expected, { textIds: [BOS, 1, 2, 3] }), 'same')
  t.equal(judgeTokenizer(expected, { textIds: [BOS, 1, 23] }), 'split')
  t.equal(judgeTokenizer(expected, { textIds: [BOS, 1, 7, 3] }), 'other')
})

t.test('texts of ids are compared for the ids of the query, which a worker chooses itself', async (t) => {
  t.same(createTokenizerQuery(expected).ids, expected.ids)
  t.same(createTokenizerQuery().ids, COMPARED_IDS)
  const ids = [5, 6, 7]
  t.equal(judgeTokenizer(expected, { idTexts: { ids, texts: [undefined, '6', ' 7'] } }), 'same')
  t.equal(judgeTokenizer(expected, { idTexts: { ids, texts: [undefined, undefined, undefined] } }), 'unknown')
  const idTexts = { ids, texts: [undefined, '6', 'x'] }
  t.equal(judgeTokenizer(expected, { idTexts }), 'other')
  t.match(
    describeTokenizerMismatch('other', expected, { models: [{ id: 'llama' }], idTexts }),
    /tokenizer of llama is not that of .*: id 7 reads "x" here and "7" there$/,
  )
})

t.test('the first difference is that of the text, not the BOS token', async (t) => {
  const models = [{ id: 'llama' }]
  t.match(
    describeTokenizerMismatch('other', expected, { models, textIds: [BOS, 1, 7, 3] }),
    /: id 2 of a text is 7 here and 2 there$/,
  )
  t.match(
    describeTokenizerMismatch('split', expected, { models, textIds: [BOS, 1, 23] }),
    /splits text differently .*: id 2 of a text is 23 here and 2 there$/,
  )
})
