/**
 * The bridge of a template between a completion and the next message: the start of the new part, and the ids
 * that close the old one.
 */
import t from 'tap'
import { findBridge, findEndOfTurn } from '../../../../../src/proxy/tokens/prompt/bridge.ts'
import { PromptAddedTokenFinder } from '../../../../../src/proxy/tokens/tokenizer/segments.ts'

const [EOM, EOS, USER, ASSISTANT, CALL_END] = [1, 2, 3, 4, 5]
const IDS = new Map([
  ['<eom>', EOM],
  ['<eos>', EOS],
  ['<user>', USER],
  ['<assistant>', ASSISTANT],
  ['</call>', CALL_END],
])
const finder = new PromptAddedTokenFinder(IDS, false)
const eosIds = new Set([EOS])

t.test('a turn ends with the token that all continuations start with', async (t) => {
  const getEnd = (...continuations: string[]) => findEndOfTurn(continuations, '<assistant>', finder, eosIds)
  t.strictSame(getEnd('<eom>\n<user>a', '<eom>\n<user>b'), { id: EOM })
  t.strictSame(
    getEnd('<eom><eos>\n<user>a', '<eom><eos><assistant>b'),
    { id: EOS },
    'the one that engines stop at',
  )
  t.strictSame(getEnd('<user>a', '<eos>b'), { id: undefined }, 'the opening of the next message replaces it')
  t.strictSame(
    getEnd('<assistant>a', '<assistant>b'),
    { id: undefined },
    'the opening of an assistant message ends none',
  )
  t.strictSame(getEnd('<user>a', 'b<user>'), undefined, 'text that no token opens')
  t.strictSame(getEnd(), undefined)
})

t.test('a truncated completion gets its closing tokens, up to the next text', async (t) => {
  const getBridge = (header: string) => findBridge(header, '', { id: EOM }, finder, eosIds)
  t.strictSame(getBridge('<eom>\n<user>'), { text: '<eom>', ids: [EOM], endId: EOM })
  t.strictSame(getBridge('</call><eom>\n<user>'), { text: '</call><eom>', ids: [CALL_END, EOM], endId: EOM })
  t.strictSame(
    getBridge('</call>\n<eom>\n<user>'),
    { text: '</call>\n<eom>', ids: [EOM], endId: EOM },
    'text between',
  )
  t.strictSame(getBridge('"}</call><eom>'), { text: '"}</call><eom>', ids: [EOM], endId: EOM }, 'text before')
  t.strictSame(
    getBridge('<eos><user><eom>'),
    { text: '<eos>', ids: [EOS], endId: EOS },
    'the first that ends it',
  )
})

t.test('only texts that are made of segments have marks', async (t) => {
  const find = (hasSegments: boolean, text: string) => {
    const finder = new PromptAddedTokenFinder(IDS, hasSegments)
    return [[...finder.find(text)].map(({ id }) => id), finder.removeMarks(text)]
  }
  for (const text of ['\udc00<eom>', '\udc01<eom>']) t.strictSame(find(false, text), [[EOM], text])
  t.strictSame(find(true, '\udc00<eom>\udc01<eos>'), [[EOS], '<eom><eos>'])
})

t.test(
  'where a template omits the token that ends turns, the new part begins at the first difference',
  async (t) => {
    const getBridge = (header: string, tail: string) => findBridge(header, tail, { id: EOM }, finder, eosIds)
    t.strictSame(getBridge('\n</call>\n<user>', '\n</call>'), { text: '\n</call>', ids: [EOM], endId: EOM })
    t.strictSame(
      getBridge('\n<user>', '\n<u'),
      { text: '\n', ids: [EOM], endId: EOM },
      'and not within a token',
    )
    t.strictSame(getBridge('\nmore', '\nm'), { text: '\nm', ids: [EOM], endId: EOM })
  },
)

t.test('where openings end turns, only the end without a continuation closes them', async (t) => {
  const getBridge = (header: string, tail: string) =>
    findBridge(header, tail, { id: undefined }, finder, eosIds)
  t.strictSame(getBridge('</call>\n<user>', '</call>\n'), { text: '</call>\n', ids: [], endId: undefined })
  t.strictSame(getBridge('</call> \n<user>', '</call>'), { text: '</call> \n', ids: [], endId: undefined })
  t.strictSame(getBridge('<eos><user>', '<eos>'), { text: '<eos>', ids: [EOS], endId: EOS })
  t.strictSame(getBridge('<user><eos>', ''), { text: '', ids: [], endId: undefined }, 'of the next message')
  t.strictSame(getBridge('</call>said<user>', '</call>'), undefined, 'text of the next message')
  t.strictSame(getBridge('</call>', '</call>'), undefined, 'no token opens the next message')
})
