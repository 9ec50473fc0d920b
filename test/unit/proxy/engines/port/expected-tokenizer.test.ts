/** Comparison of an engine's tokenizer with the proxy's. */
import t from 'tap'
import {
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
