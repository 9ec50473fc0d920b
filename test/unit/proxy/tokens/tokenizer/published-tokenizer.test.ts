import assert from 'node:assert/strict'
import { readFileSync, statSync, writeFileSync } from 'node:fs'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import {
  createTokenizerJson,
  findLastMerge,
  mergeBytes,
} from '../../../../../src/proxy/tokens/tokenizer/byte-pair-tokenizer.ts'
import { openRustEncoder, type TextEncoder } from '../../../../../src/proxy/tokens/tokenizer/encoder.ts'
import {
  openTokenizerDirectory,
  verifyConversion,
} from '../../../../../src/proxy/tokens/tokenizer/published-tokenizer.ts'
import { mayCutAtSpaces } from '../../../../../src/proxy/tokens/tokenizer/safe-cuts.ts'
import { loadTokenizer } from '../../../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { readTokenizerFilesWithoutModel } from '../../../../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import { createKimiConfigFiles } from '../../../../helpers/kimi-files.ts'

const BYTES = Array.from({ length: 256 }, (_, byte) => String.fromCharCode(byte))
const WORDS = [
  'ab',
  'ba',
  'aba',
  'bab',
  'abab',
  'cab',
  ' a',
  ' ab',
  'aa',
  'aaa',
  'aaaa',
  '12',
  '123',
  '漢',
  '漢字',
]
const TOKENS = [...BYTES, ...WORDS.map((word) => Buffer.from(word).toString('latin1'))]
/** A token that merges cannot reach: only an equal match becomes this token. */
const UNREACHABLE = 'xyz'

/** Stores conversions in a folder of the test. */
function useTemporaryDirectory(t: Test): void {
  const before = process.env.TMPDIR
  process.env.TMPDIR = t.testdir()
  t.teardown(() => {
    if (before === undefined) delete process.env.TMPDIR
    else process.env.TMPDIR = before
  })
}

const base64 = (token: string) => Buffer.from(token, 'latin1').toString('base64')

function createTiktokenFiles(
  tokens: readonly string[] = [...TOKENS, UNREACHABLE],
  changed: Record<string, string> = {},
) {
  const model = tokens.map((token, rank) => `${base64(token)} ${rank}\n`).join('')
  return { 'tiktoken.model': model, ...createKimiConfigFiles(tokens.length), ...changed }
}

const CONFIG = {
  pattern:
    '[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+',
  default_vocab_size: TOKENS.length + 30,
  default_num_special_tokens: 30,
}

function createTekkenFiles(changed: Record<string, unknown> = {}, config: Record<string, unknown> = {}) {
  const vocab = [...TOKENS, UNREACHABLE].map((token, rank) => ({
    rank,
    token_bytes: base64(token),
    token_str: null,
  }))
  return {
    'tekken.json': JSON.stringify({
      config: { ...CONFIG, version: 'v3', ...config },
      vocab,
      ...changed,
    }),
  }
}

async function open(t: Test, folder: string) {
  const directory = openTokenizerDirectory(folder)
  const encoder = (await openRustEncoder(directory))!
  t.teardown(() => encoder.close())
  const tokenizer = loadTokenizer(directory)
  await verifyConversion(tokenizer, encoder)
  return { directory, tokenizer, encode: async (text: string) => Array.from(await encoder.encode(text)) }
}

const getRanks = (tokens: readonly string[]) => new Map(tokens.map((token, rank) => [token, rank]))

t.test('merges apply the lowest rank first, and the leftmost of equal ones', async (t) => {
  const ranks = getRanks(TOKENS)
  t.same(mergeBytes('ababa', ranks), [2, 5], 'ab twice, then ab and a: aba precedes abab')
  t.same(mergeBytes('aaaa', ranks), [4])
  t.same(mergeBytes('aaaaa', ranks), [2, 5])
  t.same(
    findLastMerge('aba', ranks)?.map((rank) => TOKENS[rank]),
    ['ab', 'a'],
  )
  t.same(findLastMerge('a', ranks), undefined)
  t.same(findLastMerge(UNREACHABLE, getRanks([...TOKENS, UNREACHABLE])), undefined)
})

t.test("the library's merges equal those of tiktoken for any vocabulary and any bytes", async () => {
  const letters = 'abc'
  const word = fc.string({ unit: fc.constantFrom(...letters), minLength: 2, maxLength: 5 })
  const vocabulary = fc.uniqueArray(word, { minLength: 3, maxLength: 25 })
  const text = fc.string({ unit: fc.constantFrom(...letters), minLength: 1, maxLength: 40 })
  const { Tokenizer } = await import('tokenizers')
  await fc.assert(
    fc.asyncProperty(vocabulary, fc.array(text, { minLength: 1, maxLength: 20 }), async (words, texts) => {
      const tokens = [...BYTES, ...words]
      const ranks = getRanks(tokens)
      const json = createTokenizerJson({ tokens, firstId: 7, pattern: '[\\s\\S]+', addedTokens: [] }, 'x')
      const library = Tokenizer.fromString(JSON.stringify(json))
      for (const each of texts) {
        const ends = mergeBytes(each, ranks)
        const expected = ranks.has(each)
          ? [ranks.get(each)!]
          : ends.map((end, index) => ranks.get(each.slice(ends[index - 1] ?? 0, end))!)
        const encoding = await library.encode(each, null, { addSpecialTokens: false })
        assert.deepEqual(
          encoding.getIds(),
          expected.map((rank) => rank + 7),
        )
      }
    }),
    { numRuns: 100 },
  )
})

t.test(
  'a tiktoken.model has the expression of the Python file and the special tokens of the config',
  async (t) => {
    useTemporaryDirectory(t)
    const { tokenizer, encode } = await open(t, t.testdir(createTiktokenFiles()))
    const first = TOKENS.length + 1
    t.same(await encode('<|im_end|><|tool_call_begin|>'), [first + 2, first + 13])
    t.same([tokenizer.isSpecial(first + 2), tokenizer.isSpecial(first + 13)], [true, false])
    t.same(await encode(`<|reserved_token_${first + 20}|>`), [first + 20])
    t.equal(tokenizer.vocabSize, first + 256)
    t.equal(tokenizer.eosTokenId, first + 1)
    t.same(await encode(UNREACHABLE), [TOKENS.length], 'a match that is a token is not split')
    t.same(await encode(`${UNREACHABLE}x`), [...Buffer.from(`${UNREACHABLE}x`)])
    const kanji = TOKENS.length - 1
    t.same(await encode('漢字ab'), [kanji, TOKENS.indexOf('ab')], 'Han and letters are split')
    t.same(await encode('1231'), [TOKENS.indexOf('123'), 0x31], 'up to three digits')
  },
)

t.test(
  'a tekken.json has its special tokens first, and its vocabulary is truncated to its size',
  async (t) => {
    useTemporaryDirectory(t)
    const { tokenizer, encode } = await open(t, t.testdir(createTekkenFiles()))
    t.same(await encode('<s>[INST]ab[/INST]<SPECIAL_29>'), [1, 3, 30 + TOKENS.indexOf('ab'), 4, 29])
    t.same(
      await encode(UNREACHABLE),
      [...Buffer.from(UNREACHABLE)].map((byte) => byte + 30),
      'a token past the size',
    )
    t.equal(tokenizer.vocabSize, TOKENS.length + 30)
    t.equal(tokenizer.eosTokenId, 2)
    const listed = ['<unk>', '<s>', '</s>', '[THINK]'].map((token_str, rank) => ({
      rank,
      token_str,
      is_control: true,
    }))
    const named = await open(t, t.testdir(createTekkenFiles({ special_tokens: listed }, { version: 'v13' })))
    t.same(await named.encode('[THINK]<SPECIAL_4>'), [3, 4])
  },
)

t.test('long texts of converted tokenizers are split at spaces', async (t) => {
  useTemporaryDirectory(t)
  for (const files of [createTiktokenFiles(), createTekkenFiles()]) {
    const { tokenizerJson } = readTokenizerFilesWithoutModel(openTokenizerDirectory(t.testdir(files)))
    t.equal(tokenizerJson.model, undefined, 'the model is the last field, so it is not read')
    t.ok(mayCutAtSpaces(tokenizerJson))
  }
})

t.test('a conversion is made once for the same files, and again for others and after damage', async (t) => {
  useTemporaryDirectory(t)
  const folder = t.testdir({ a: createTiktokenFiles(), b: createTiktokenFiles() })
  const first = openTokenizerDirectory(`${folder}/a`)
  const { ino } = statSync(`${first}/tokenizer.json`)
  t.equal(openTokenizerDirectory(`${folder}/b`), first)
  t.equal(statSync(`${first}/tokenizer.json`).ino, ino)
  const text = readFileSync(`${first}/tokenizer.json`, 'utf8')
  writeFileSync(`${first}/tokenizer.json`, text.slice(0, 100))
  t.equal(openTokenizerDirectory(`${folder}/a`), first)
  t.equal(readFileSync(`${first}/tokenizer.json`, 'utf8'), text)
  const code = createTiktokenFiles()['tokenization_kimi.py'].replace('{1,3}', '{1,2}')
  writeFileSync(`${folder}/b/tokenization_kimi.py`, code)
  t.not(openTokenizerDirectory(`${folder}/b`), first)
})

t.test('a tokenizer.json is used directly, also beside other tokenizers', async (t) => {
  const folder = t.testdir({ 'tokenizer.json': '{}', 'tekken.json': '{}' })
  t.equal(openTokenizerDirectory(folder), folder)
})

t.test('files of another form are rejected with the remedy', async (t) => {
  useTemporaryDirectory(t)
  const files = createKimiConfigFiles(TOKENS.length + 1)
  const config = JSON.parse(files['tokenizer_config.json'])
  const code = files['tokenization_kimi.py']
  const withConfig = (changed: object) =>
    createTiktokenFiles(undefined, { 'tokenizer_config.json': JSON.stringify({ ...config, ...changed }) })
  const token = (id: number, more: object = {}) => ({
    added_tokens_decoder: { [id]: { content: '<x>', ...more } },
  })
  const withCode = (text: string) => createTiktokenFiles(undefined, { 'tokenization_kimi.py': text })
  const vocab = [{ rank: 1, token_bytes: 'AA==' }]
  const cases: [name: string, files: Record<string, string>, message: RegExp][] = [
    ['no code', createTiktokenFiles(undefined, { 'tokenizer_config.json': '{}' }), /auto_map/],
    ['code elsewhere', withConfig({ auto_map: { AutoTokenizer: ['org/repo--a.B', null] } }), /auto_map/],
    ['other code', withConfig({ auto_map: { AutoTokenizer: ['other.Tokenizer', null] } }), /other\.py/],
    ['a computed pattern', withCode(code.replace('r"""\\p{N}{1,3}"""', 'digits()')), /tokenization_kimi\.py/],
    ['another join', withCode(code.replace('"|".join', '"".join')), /tokenization_kimi\.py/],
    ['no reserved tokens', withCode(code.replace('num_reserved', 'other')), /tokenization_kimi\.py/],
    ['other reserved names', withCode(code.replace('reserved_token_{i}', 'r{i}')), /tokenization_kimi\.py/],
    ['a special token in the vocabulary', withConfig(token(3)), /<x> has the id 3/],
    ['a special token that strips', withConfig(token(TOKENS.length + 2, { lstrip: true })), /lstrip/],
    ['a missing byte', createTiktokenFiles(TOKENS.slice(1)), /byte 0/],
    ['a repeated token', createTiktokenFiles([...TOKENS, 'ab', 'x']), /twice/],
    ['a broken line', createTiktokenFiles(undefined, { 'tiktoken.model': 'a b c\n' }), /base64/],
    ['missing ranks', createTiktokenFiles(undefined, { 'tiktoken.model': 'AA== 3\n' }), /ranks/],
    ['an empty tekken.json', { 'tekken.json': '{}' }, /pattern/],
    ['unlisted special tokens', createTekkenFiles({}, { version: 'v11' }), /v11/],
    ['too few tokens', createTekkenFiles({ vocab: [] }), /lists 0 of/],
    ['ranks out of order', createTekkenFiles({ vocab }, { default_vocab_size: 31 }), /lists 1 of|ranks/],
    [
      'special tokens out of order',
      createTekkenFiles({ special_tokens: [{ rank: 1, token_str: '<s>' }] }),
      /order/,
    ],
  ]
  const folder = t.testdir(
    Object.fromEntries(cases.map(([name, content]) => [name.replaceAll(' ', '-'), content])),
  )
  for (const [name, , message] of cases) {
    const open = () => openTokenizerDirectory(`${folder}/${name.replaceAll(' ', '-')}`)
    t.throws(open, { code: 'config_invalid', message }, name)
    t.throws(open, { message: /convert the tokenizer to a tokenizer\.json/ }, name)
  }
})

t.test('a converted tokenizer that changes or rejects a text is not used', async (t) => {
  useTemporaryDirectory(t)
  const { tokenizer } = await open(t, t.testdir(createTiktokenFiles()))
  const createEncoder = (encode: TextEncoder['encode']): TextEncoder => ({
    kind: 'rust',
    encode,
    close: async () => {},
  })
  for (const encode of [async () => [1], async () => Promise.reject(new Error('no such class'))])
    await t.rejects(verifyConversion(tokenizer, createEncoder(encode)), {
      code: 'config_invalid',
      message: /rust tokenizer/,
    })
})
