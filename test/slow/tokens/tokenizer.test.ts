import t from 'tap'
import { ProxyError } from '../../../src/base/errors.ts'
import { loadTokenizer } from '../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import {
  loadRealTokenizer,
  REAL_MODELS,
  readFixture,
  readModelConfig,
} from '../../unit/proxy/tokens/real-models.ts'

for (const model of REAL_MODELS) {
  t.test(`${model}: ids and texts are those of transformers`, async (t) => {
    const tokenizer = loadRealTokenizer(model)
    const fixture = readFixture(model)
    for (const [index, { text, ids, decoded }] of fixture.texts.entries()) {
      t.same(tokenizer.encode(text), ids, `text ${index}`)
      t.equal(tokenizer.decode(ids), decoded, `text ${index}, decoded`)
    }
    for (const { name, text, ids, visible } of fixture.templates) {
      if (ids === undefined) continue
      t.same(tokenizer.encode(text!), ids, `the prompt of: ${name}`)
      t.equal(
        tokenizer.decode(ids, { skipSpecialTokens: true }),
        visible,
        `the prompt without special tokens: ${name}`,
      )
    }
    for (const [index, { ids, decoded, visible }] of fixture.randomIds.entries()) {
      t.equal(tokenizer.decode(ids), decoded, `random ids ${index}`)
      t.equal(tokenizer.decode(ids, { skipSpecialTokens: true }), visible, `random ids ${index}, visible`)
    }
    const { text, ids } = fixture.withSpecialTokens
    t.same([...tokenizer.addSpecialTokens(tokenizer.encode(text))], ids, 'with the begin-of-text token')
  })
}

t.test('a tokenizer knows its special tokens', async (t) => {
  const tokenizer = loadRealTokenizer('qwen3')
  const end = tokenizer.tokenToId('<|im_end|>')!
  t.equal(tokenizer.eosTokenId, end)
  t.equal(tokenizer.idToToken(end), '<|im_end|>')
  t.equal(tokenizer.addedTokens.get('<|im_end|>'), end)
  t.ok(tokenizer.isSpecial(end))
  t.notOk(tokenizer.isSpecial(tokenizer.tokenToId('<tool_call>')!), 'an added token need not be special')
  t.equal(tokenizer.vocabSize, 151_669)
  t.equal(tokenizer.idToToken(tokenizer.vocabSize), undefined)
  t.equal(loadRealTokenizer('deepseek_v3').eosTokenId, 1, 'written as an object in the config')
})

t.test('decoding can omit special tokens', async (t) => {
  const tokenizer = loadRealTokenizer('qwen3')
  const ids = tokenizer.encode('<|im_start|>user\nHi<|im_end|>')
  t.equal(tokenizer.decode(ids), '<|im_start|>user\nHi<|im_end|>')
  t.equal(tokenizer.decode(ids, { skipSpecialTokens: true }), 'user\nHi')
})

t.test('ids outside the vocabulary decode to nothing, as in transformers', async (t) => {
  const tokenizer = loadRealTokenizer('qwen3')
  t.equal(tokenizer.decode([9707, 151_999, 9707]), 'HelloHello')
  t.equal(tokenizer.decode([]), '')
})

t.test('spaces before punctuation stay, although the config requests their clean-up', async (t) => {
  const tokenizer = loadRealTokenizer('llama3_1')
  t.equal(readModelConfig('llama3_1').clean_up_tokenization_spaces, true)
  t.equal(tokenizer.decode(tokenizer.encode("a , b . c 's")), "a , b . c 's")
})

t.test("a token's piece is its bytes, and its text where it consists of complete characters", async (t) => {
  const tokenizer = loadRealTokenizer('llama3_1')
  const ids = tokenizer.encode('﷽')
  t.ok(ids.length > 1, 'one character in several tokens')
  t.equal(Buffer.concat(ids.map((id) => tokenizer.getPiece(id).bytes)).toString(), '﷽')
  t.ok(ids.some((id) => tokenizer.getPiece(id).text === undefined))
  t.equal(tokenizer.getPiece(tokenizer.encode(' the')[0]!).text, ' the')
})

const SENTENCE_PIECE = {
  tokenizerJson: {
    added_tokens: [{ id: 0, content: '<s>', special: true }],
    normalizer: {
      type: 'Sequence',
      normalizers: [
        { type: 'Prepend', prepend: '▁' },
        { type: 'Replace', pattern: { String: ' ' }, content: '▁' },
      ],
    },
    pre_tokenizer: null,
    post_processor: null,
    decoder: {
      type: 'Sequence',
      decoders: [
        { type: 'Replace', pattern: { String: '▁' }, content: ' ' },
        { type: 'ByteFallback' },
        { type: 'Fuse' },
        { type: 'Strip', content: ' ', start: 1, stop: 0 },
      ],
    },
    model: {
      type: 'BPE',
      byte_fallback: true,
      ignore_merges: false,
      vocab: { '<s>': 0, '▁': 1, a: 2, '▁a': 3, '<0xC3>': 4, '<0xA9>': 5 },
      merges: ['▁ a'],
    },
  },
  tokenizerConfig: { bos_token: '<s>' },
}

t.test("SentencePiece's dummy first space is not part of a text", async (t) => {
  const tokenizer = loadTokenizer(SENTENCE_PIECE)
  t.same(tokenizer.encode('a aé'), [3, 3, 4, 5])
  t.equal(tokenizer.decode([3, 3, 4, 5]), 'a aé')
  t.equal(tokenizer.decode([0, 3], { skipSpecialTokens: true }), 'a')
})

t.test('unusable files are rejected with their path or the reason', async (t) => {
  const reject = (message: RegExp) => ({ name: 'ProxyError', code: 'config_invalid', message })
  const directory = t.testdir({ 'tokenizer.json': '{', other: {} })
  t.throws(() => loadTokenizer(directory), reject(/tokenizer\.json/))
  t.throws(() => loadTokenizer(`${directory}/other`), reject(/no .*tokenizer\.json/))
  const withDecoder = (decoder: { type: string } | null) =>
    loadTokenizer({ ...SENTENCE_PIECE, tokenizerJson: { ...SENTENCE_PIECE.tokenizerJson, decoder } })
  t.throws(() => withDecoder({ type: 'WordPiece' }), reject(/decoder .* WordPiece/))
  t.throws(() => withDecoder(null), ProxyError)
  t.throws(() => loadTokenizer({ tokenizerJson: {}, tokenizerConfig: {} }), reject(/tokenizer\.json/))
})

t.test('a directory without tokenizer_config.json is sufficient', async (t) => {
  const directory = t.testdir({ 'tokenizer.json': JSON.stringify(SENTENCE_PIECE.tokenizerJson) })
  t.same(loadTokenizer(directory).encode('a'), [3])
})
