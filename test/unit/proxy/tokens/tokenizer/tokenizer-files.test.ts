import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { getEmbeddedModelFolder } from '../../../../../src/embedded/engine/embedded-model.ts'
import { openRustEncoder } from '../../../../../src/proxy/tokens/tokenizer/encoder.ts'
import { createTokenizer, loadTokenizer } from '../../../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import {
  readTokenizerFilesWithoutModel,
  type TokenizerJson,
} from '../../../../../src/proxy/tokens/tokenizer/tokenizer-files.ts'

const TEXT = readFileSync(join(getEmbeddedModelFolder(), 'tokenizer.json'), 'utf8')
const FULL = JSON.parse(TEXT) as TokenizerJson

t.test('a model in the last position is skipped, for any spacing of the file', async (t) => {
  for (const text of [TEXT, JSON.stringify(FULL), JSON.stringify(FULL, null, 2)]) {
    const { tokenizerJson } = readTokenizerFilesWithoutModel(t.testdir({ 'tokenizer.json': text }))
    t.same(tokenizerJson, { ...FULL, model: undefined })
  }
})

t.test('a file in another order is read completely', async (t) => {
  const { model, added_tokens, decoder, ...others } = FULL
  const orders: object[] = [
    { model, added_tokens, decoder, ...others },
    { added_tokens, ...others, model, decoder },
    { ...others, extra: { model: 'of something else' }, added_tokens, decoder, model },
    { added_tokens, decoder, ...others, 'a"model': 1, model },
  ]
  for (const order of orders) {
    const { tokenizerJson } = readTokenizerFilesWithoutModel(
      t.testdir({ 'tokenizer.json': JSON.stringify(order) }),
    )
    t.same(tokenizerJson, order)
  }
})

t.test('a token that is written like the key of the model is a token', async (t) => {
  const [first] = FULL.added_tokens!
  const added = [first!, { ...first!, id: 9000, content: '"model":' }]
  const text = JSON.stringify({ ...FULL, added_tokens: added })
  const { tokenizerJson } = readTokenizerFilesWithoutModel(t.testdir({ 'tokenizer.json': text }))
  t.same(tokenizerJson.added_tokens, added)
  t.same(tokenizerJson.decoder, FULL.decoder)
})

t.test('a file that is missing or invalid is rejected with its path', async (t) => {
  const directory = t.testdir({ empty: {}, broken: { 'tokenizer.json': TEXT.slice(0, 100) } })
  const reject = (name: string) => ({
    code: 'config_invalid',
    message: new RegExp(`${name}/tokenizer\\.json`),
  })
  t.throws(() => readTokenizerFilesWithoutModel(`${directory}/empty`), reject('empty'))
  t.throws(() => readTokenizerFilesWithoutModel(`${directory}/broken`), reject('broken'))
})

t.test('the library in Rust has the same names and ids of tokens as the file', async (t) => {
  const folder = getEmbeddedModelFolder()
  const listed = loadTokenizer(folder)
  const rust = (await openRustEncoder(folder))!
  t.teardown(() => rust.close())
  const named = createTokenizer(rust, readTokenizerFilesWithoutModel(folder), folder)
  const ids = [...Array(listed.vocabSize + 10).keys(), -1, 0.5, 2 ** 32, 2 ** 32 + 5, Number.NaN]
  t.same(
    ids.map((id) => named.idToToken(id)),
    ids.map((id) => listed.idToToken(id)),
  )
  t.same(
    ids.map((id) => named.tokenToId(listed.idToToken(id) ?? 'no such token')),
    ids.map((id) => listed.tokenToId(listed.idToToken(id) ?? 'no such token')),
  )
  t.equal(named.vocabSize, listed.vocabSize)
  const text = 'How many seas are there?<|im_end|>'
  t.same(named.encode(text), listed.encode(text))
  t.equal(named.decode(named.encode(text)), text)
  t.equal(named.decode([-1, 0.5, 2 ** 32 + 5]), '')
})
