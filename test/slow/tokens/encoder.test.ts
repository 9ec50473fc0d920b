import assert from 'node:assert/strict'
import { join } from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import { openRustEncoder, RustEncoder } from '../../../src/proxy/tokens/tokenizer/encoder.ts'
import { LongTextEncoder } from '../../../src/proxy/tokens/tokenizer/long-text-encoder.ts'
import { openRustTokenizer } from '../../../src/proxy/tokens/tokenizer/rust-tokenizer.ts'
import { loadTokenizer } from '../../../src/proxy/tokens/tokenizer/tokenizer.ts'
import { IS_FULL } from '../../helpers/tier.ts'
import { DISTINCT_MODELS, modelDirectory, readFixture } from '../../unit/proxy/tokens/real-models.ts'

/** Unicode characters that were seen to cause errors in tokenizers. */
const odd = fc.constantFrom(
  'e\u0301',
  '\u200d',
  '\ufeff',
  '\u00a0',
  '\u2028',
  '\u0000',
  '👩‍👩‍👧‍👦',
  '한국어',
  '𝔘',
  'ﬁ',
  'ẞ',
  '\r\n',
  '\t',
  'İ',
  '١٢٣',
  '\ud7ff',
)

for (const name of DISTINCT_MODELS) {
  t.test(`${name}: the tokenizers in Rust and in JavaScript`, async (t) => {
    const rust = (await openRustEncoder(modelDirectory(name)))!
    t.teardown(() => rust.close())
    const javascript = loadTokenizer(modelDirectory(name))
    await t.test('give the ids of transformers', async (t) => {
      const { texts } = readFixture(name)
      for (const { text, ids } of texts) t.same(await rust.encode(text), ids)
      const text = fc
        .array(fc.oneof(odd, fc.string({ unit: 'grapheme' }), fc.string({ unit: 'binary' })), {
          maxLength: 8,
        })
        .map((parts) => parts.join('').toWellFormed())
      await fc.assert(
        fc.asyncProperty(text, async (full) => {
          assert.deepEqual(javascript.encode(full), await rust.encode(full))
        }),
        { numRuns: IS_FULL ? 200 : 50 },
      )
    })
    await t.test('find each token by its name in the file', async (t) => {
      const different = [...Array(javascript.vocabSize + 100).keys()].filter((id) => {
        const token = javascript.idToToken(id)
        return rust.getToken(id) !== token || (token !== undefined && rust.getId(token) === undefined)
      })
      t.same(different, [])
    })
  })
}

t.test('short texts do not wait for long ones, and long ones are served too', async (t) => {
  const rust = (await openRustEncoder(modelDirectory('qwen3')))!
  const done: string[] = []
  const encode = (name: string, text: string) => rust.encode(text).then(() => done.push(name))
  const long = 'long text '.repeat(20_000)
  const first = Array.from({ length: 4 }, () => encode('first', long))
  const others = [encode('long', long), encode('short', 'short')]
  await Promise.all([...first, ...others])
  t.equal(done[0], 'short', 'not even for long ones in progress')
  t.equal(done.length, 6)
  await rust.close()
  await t.rejects(rust.encode('x'), { code: 'shutting_down' })
})

t.test('a short text is served soon, however many longer ones have waited', async (t) => {
  const rust = (await openRustEncoder(modelDirectory('qwen3')))!
  t.teardown(() => rust.close())
  const done: string[] = []
  const encode = (name: string, text: string) => rust.encode(text).then(() => done.push(name))
  const all = Array.from({ length: 300 }, () => encode('longer', 'longer text '.repeat(100)))
  // Each overtakes all of the longer ones.
  all.push(...Array.from({ length: 100 }, () => encode('tiny', 'x')))
  await Promise.all(all.slice(300))
  await encode('short', 'some short text')
  const longer = done.filter((name) => name === 'longer').length
  t.ok(longer < 250, `${longer} of 300 were served before it`)
  await Promise.all(all)
  t.equal(done.length, 401)
})

t.test('the parts of long prompts leave a thread to short prompts', async (t) => {
  const started: string[] = []
  const ends: (() => void)[] = []
  const tokenizer = {
    encode(text: string) {
      started.push(text)
      return new Promise<{ getIds(): number[] }>((resolve) => {
        ends.push(() => resolve({ getIds: () => [text.length] }))
      })
    },
    idToToken: () => null,
    tokenToId: () => null,
  }
  const encoder = new RustEncoder(tokenizer, new LongTextEncoder({ json: '' }))
  const chunks = Array.from({ length: 10 }, (_, number) => encoder.encode(`piece ${number}`, 400_000))
  const before = started.length
  t.ok(before >= 1 && before <= 2, 'one or two, by the number of cores')
  const short = encoder.encode('short')
  t.equal(started.at(-1), 'short')
  ends.at(-1)!()
  t.same(await short, [5])
  t.equal(started.length, before + 1, 'its thread stays reserved for the next one')
  for (let index = 0; index < ends.length; index += 1) {
    ends[index]!()
    await new Promise(setImmediate)
  }
  t.equal((await Promise.all(chunks)).length, 10)
})

t.test('a very long text is encoded on a thread, with the same ids', async (t) => {
  const directory = modelDirectory('qwen3')
  const rust = (await openRustEncoder(directory))!
  t.teardown(() => rust.close())
  const reference = (await openRustTokenizer({ file: join(directory, 'tokenizer.json') }))!
  const text = '<a\u0301 한'.repeat(60_000)
  const expected = (await reference.encode(text, null, { addSpecialTokens: false })).getIds()
  const together = await Promise.all([rust.encode(text), rust.encode(text)])
  const afterwards = await rust.encode(text)
  for (const ids of [...together, afterwards]) {
    t.type(ids, Int32Array, 'the thread returns buffers')
    t.ok(isDeepStrictEqual([...(ids as Int32Array)], expected))
  }
})

t.test('very long texts fail when the encoder closes', async (t) => {
  const rust = (await openRustEncoder(modelDirectory('qwen3')))!
  const encoding = rust.encode('<'.repeat(400_000))
  const rejected = t.rejects(encoding, { code: 'shutting_down' })
  await rust.close()
  await rejected
})

t.test('very long texts fail if their thread fails', async (t) => {
  const encoder = new LongTextEncoder({ json: '{}' })
  t.teardown(() => encoder.close())
  await Promise.all([t.rejects(encoder.encode('x')), t.rejects(encoder.encode('y'))])
  await t.rejects(encoder.encode('z'), 'also on the next thread')
})

t.test('a broken tokenizer.json is rejected', async (t) => {
  const directory = t.testdir({ 'tokenizer.json': '{}' })
  await t.rejects(openRustEncoder(directory), { code: 'config_invalid', message: /tokenizer\.json/ })
})
