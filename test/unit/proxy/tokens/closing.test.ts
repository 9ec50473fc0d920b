/** What a template writes between an answer and the next message: where the new part begins, and which ids close the old one. */
import t from 'tap'
import { findBridge, findEndOfTurn } from '../../../../src/proxy/tokens/prompt/bridge.ts'
import { AddedTokenFinder } from '../../../../src/proxy/tokens/tokenizer/added-tokens.ts'

const [EOM, EOS, USER, ASSISTANT, CALL_END] = [1, 2, 3, 4, 5]
const finder = new AddedTokenFinder(
  new Map([
    ['<eom>', EOM],
    ['<eos>', EOS],
    ['<user>', USER],
    ['<assistant>', ASSISTANT],
    ['</call>', CALL_END],
  ]),
)
const eosIds = new Set([EOS])

t.test('a turn ends with the token that all that follows begins with', async (t) => {
  const endOf = (...behinds: string[]) => findEndOfTurn(behinds, '<assistant>', finder, eosIds)
  t.strictSame(endOf('<eom>\n<user>a', '<eom>\n<user>b'), { id: EOM })
  t.strictSame(
    endOf('<eom><eos>\n<user>a', '<eom><eos><assistant>b'),
    { id: EOS },
    'the one that engines stop at',
  )
  t.strictSame(
    endOf('<user>a', '<eos>b'),
    { id: undefined },
    'whatever opens the next message takes its place',
  )
  t.strictSame(endOf('<assistant>a', '<assistant>b'), { id: undefined }, 'what opens an answer ends none')
  t.strictSame(endOf('<user>a', 'b<user>'), undefined, 'text that no token opens')
  t.strictSame(endOf(), undefined)
})

t.test('a cut answer gets what closes it, as far as no text is between', async (t) => {
  const closingOf = (header: string) => findBridge(header, '', { id: EOM }, finder, eosIds)
  t.strictSame(closingOf('<eom>\n<user>'), { text: '<eom>', ids: [EOM], endId: EOM })
  t.strictSame(closingOf('</call><eom>\n<user>'), { text: '</call><eom>', ids: [CALL_END, EOM], endId: EOM })
  t.strictSame(
    closingOf('</call>\n<eom>\n<user>'),
    { text: '</call>\n<eom>', ids: [EOM], endId: EOM },
    'text between',
  )
  t.strictSame(closingOf('"}</call><eom>'), { text: '"}</call><eom>', ids: [EOM], endId: EOM }, 'text before')
  t.strictSame(
    closingOf('<eos><user><eom>'),
    { text: '<eos>', ids: [EOS], endId: EOS },
    'the first that ends it',
  )
})

t.test(
  'where a template forgets the token that ends turns, the new part begins where no more is the same',
  async (t) => {
    const closingOf = (header: string, tail: string) => findBridge(header, tail, { id: EOM }, finder, eosIds)
    t.strictSame(closingOf('\n</call>\n<user>', '\n</call>'), { text: '\n</call>', ids: [EOM], endId: EOM })
    t.strictSame(
      closingOf('\n<user>', '\n<u'),
      { text: '\n', ids: [EOM], endId: EOM },
      'and not within a token',
    )
    t.strictSame(closingOf('\nmore', '\nm'), { text: '\nm', ids: [EOM], endId: EOM })
  },
)

t.test('where openings end turns, nothing closes them but what is there when nothing follows', async (t) => {
  const closingOf = (header: string, tail: string) =>
    findBridge(header, tail, { id: undefined }, finder, eosIds)
  t.strictSame(closingOf('</call>\n<user>', '</call>\n'), { text: '</call>\n', ids: [], endId: undefined })
  t.strictSame(closingOf('</call> \n<user>', '</call>'), { text: '</call> \n', ids: [], endId: undefined })
  t.strictSame(closingOf('<eos><user>', '<eos>'), { text: '<eos>', ids: [EOS], endId: EOS })
  t.strictSame(closingOf('<user><eos>', ''), { text: '', ids: [], endId: undefined }, 'of the next message')
  t.strictSame(closingOf('</call>said<user>', '</call>'), undefined, 'text of the next message')
  t.strictSame(closingOf('</call>', '</call>'), undefined, 'nothing opens the next message')
})
