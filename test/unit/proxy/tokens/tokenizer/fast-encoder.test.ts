/** Verification of the fast tokenizer, with one that is wrong where the test requires it. */
import t from 'tap'
import { ContentCache } from '../../../../../src/proxy/tokens/tokenizer/content-cache.ts'
import type { TextEncoder, TokenizerFault } from '../../../../../src/proxy/tokens/tokenizer/encoder.ts'
import { FastEncoder } from '../../../../../src/proxy/tokens/tokenizer/fast-encoder.ts'
import { createProofTexts } from '../../../../../src/proxy/tokens/tokenizer/proof-texts.ts'
import { until } from '../../../../helpers/until.ts'

const getIds = (text: string) => [...text].map((char) => char.codePointAt(0)!)

/** @param wrongFor texts that the fast one encodes incorrectly */
async function setUp(wrongFor: RegExp = /$^/, brokenFor: RegExp = /$^/) {
  const encodings = { fast: 0, reference: 0 }
  const reference: TextEncoder = {
    kind: 'rust',
    encode: async (text) => {
      encodings.reference += 1
      return getIds(text)
    },
    close: async () => {},
  }
  const encodeNow = (text: string) => {
    encodings.fast += 1
    if (brokenFor.test(text)) throw new Error('panicked')
    const ids = getIds(text)
    return Int32Array.from(wrongFor.test(text) ? ids.map((id) => id + 1) : ids)
  }
  const encoder = new FastEncoder(reference)
  await encoder.open(Promise.resolve({ encodeNow, encode: async (text) => encodeNow(text) }))
  const faults: TokenizerFault[] = []
  encoder.onFault((fault) => faults.push(fault))
  return { encoder, encodings, faults }
}

t.test('a share of the texts is compared, and the reference encodes no others', async (t) => {
  const { encoder, encodings, faults } = await setUp()
  for (let n = 0; n < 640; n += 1) {
    const text = `${n} ${'long '.repeat(n % 7 === 0 ? 2_000 : 1)}`
    t.same([...Array.from(await encoder.encode(text))], getIds(text))
  }
  await until(() => encodings.reference === 10)
  t.equal(encodings.fast, 640)
  t.same(faults, [])
  t.equal(encoder.kind, 'fastokens')
})

t.test('after a difference the fast tokenizer is disabled, and its cached ids are dropped', async (t) => {
  const { encoder, encodings, faults } = await setUp(/wrong/)
  const cache = new ContentCache((text) => encoder.encode(text), [])
  encoder.onFault(() => cache.clear())
  t.not([...(await cache.encode('wrong'))].join(), getIds('wrong').join(), 'the text was never compared')
  const encodingsBefore = encodings.fast
  await cache.encode('wrong')
  t.equal(encodings.fast, encodingsBefore, 'the ids are cached')
  await encoder.check('wrong, too')
  t.match(faults, [{ why: /returned other ids/, chars: 10, textSha256: /^[0-9a-f]{64}$/ }])
  t.notMatch(JSON.stringify(faults), /wrong, too/, 'no text of a session is logged')
  const before = encodings.fast
  t.same([...(await cache.encode('wrong'))], getIds('wrong'))
  t.equal(encodings.fast, before)
  t.equal(encoder.kind, 'rust')
})

t.test('ids in progress when the fast tokenizer was found to be wrong are not cached', async (t) => {
  const late = Promise.withResolvers<number[]>()
  const responses = [late.promise, Promise.resolve([2])]
  const cache = new ContentCache(() => responses.shift()!, [])
  const first = cache.encode('text')
  cache.clear()
  late.resolve([1])
  t.same([...(await first)], [1])
  t.same([...(await cache.encode('text'))], [2])
  t.same([...(await cache.encode('text'))], [2])
})

t.test('a text on which the fast tokenizer throws is tokenized by the reference', async (t) => {
  const { encoder, faults } = await setUp(undefined, /break/)
  t.same(await encoder.encode('break'), getIds('break'))
  t.match(faults, [{ why: /cannot tokenize/, error: { message: 'panicked' } }])
  t.equal(encoder.kind, 'rust')
  const later: TokenizerFault[] = []
  encoder.onFault((fault) => later.push(fault))
  t.same(later, faults, 'a later listener receives the fault, too')
})

t.test('a fast tokenizer that cannot be loaded leaves the reference', async (t) => {
  const encoder = new FastEncoder({ kind: 'rust', encode: async () => [1], close: async () => {} })
  t.ok(await encoder.open(Promise.reject(new Error('unknown model'))), 'the addon was built')
  t.same(await encoder.encode('text'), [1])
  t.equal(encoder.kind, 'rust')
})

t.test(
  'samples contain each added token alone and among others, for large vocabularies the first and last',
  async (t) => {
    const texts = createProofTexts(Array.from({ length: 9_000 }, (_, index) => `<|t${index}|>`))
    for (const token of ['<|t0|>', '<|t31|>', '<|t8968|>', '<|t8999|>'])
      t.ok(texts.some((text) => text.includes(`a${token}b`)))
    t.ok(texts.join('').length < 40_000, 'they do not delay the start')
  },
)
