import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { ContentCache } from '../../../src/proxy/tokens/tokenizer/content-cache.ts'
import { openRustEncoder } from '../../../src/proxy/tokens/tokenizer/encoder.ts'
import { mayCutAtSpaces } from '../../../src/proxy/tokens/tokenizer/safe-cuts.ts'
import { readTokenizerFiles } from '../../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import { limitRuns } from '../../helpers/tier.ts'
import { loadModel } from '../../unit/proxy/tokens/prompt-rollout.ts'
import { DISTINCT_MODELS, modelDirectory } from '../../unit/proxy/tokens/real-models.ts'

const { tokenizer } = loadModel('embedded')
const SPECIAL = [...tokenizer.addedTokens]
  .filter(([, id]) => tokenizer.isSpecial(id))
  .map(([content, id]) => ({ content, id, special: true, normalized: false }))

/** Creates a cache, with a list of the texts that it had tokenized. */
function createCache(maxBytes?: number) {
  const encoded: string[] = []
  const encode = async (text: string) => {
    encoded.push(text)
    return tokenizer.encode(text)
  }
  return { cache: new ContentCache(encode, SPECIAL, maxBytes === undefined ? {} : { maxBytes }), encoded }
}

const message = (role: string, text: string) => `<|im_start|>${role}\n${text}<|im_end|>\n`
const LONG = 'A long rule. '.repeat(100)

for (const name of DISTINCT_MODELS) {
  t.test(`${name}: ids are those of the complete text, cached or not`, async (t) => {
    const encoder = (await openRustEncoder(modelDirectory(name)))!
    t.teardown(() => encoder.close())
    const files = readTokenizerFiles(modelDirectory(name)).tokenizerJson
    const added = files.added_tokens ?? []
    const cutsAtSpaces = mayCutAtSpaces(files)
    t.equal(cutsAtSpaces, name !== 'gemma3', 'its expressions are known')
    const cache = new ContentCache((text) => encoder.encode(text), added, { cutsAtSpaces })
    const token = fc.constantFrom(...added.map(({ content }) => content).slice(0, 40), ' <', '<|', '\n')
    const word = fc.oneof(
      fc.string({ unit: 'grapheme' }),
      fc.constantFrom(' ', '\n\n', 'é', '1234', '▁', '\u00a0'),
    )
    const long = fc.tuple(word, fc.integer({ min: 60, max: 400 })).map(([text, times]) => text.repeat(times))
    // Long enough to be cut: words, white space of all kinds behind them, and sometimes text that is hard on
    // tokenizers.
    const plain = fc.constantFrom(
      'word',
      'A',
      "it's",
      'I',
      'x1',
      '42',
      'Zürich',
      'ſ',
      "don'T",
      '}',
      '——',
      '漢字',
    )
    const space = fc.constantFrom(
      ' ',
      '  ',
      '\n',
      '\r\n',
      ' \t',
      '\n\n  ',
      ' \u0301',
      '\u00a0 ',
      '\u2028',
      ',\n',
    )
    const prose = fc
      .tuple(
        fc.array(fc.tuple(fc.oneof(plain, word), space), { minLength: 8, maxLength: 60 }),
        fc.integer({ min: 20, max: 80 }),
      )
      .map(([words, times]) =>
        words
          .map((pair) => pair.join(''))
          .join('')
          .repeat(times),
      )
    const text = fc
      .array(fc.oneof(token, word, long, prose), { maxLength: 12 })
      .map((parts) => parts.join(''))
    await fc.assert(
      fc.asyncProperty(text, async (full) => {
        const expected = [...((await encoder.encode(full)) as number[])]
        assert.deepEqual([...(await cache.encode(full))], expected)
        assert.deepEqual([...(await cache.encode(full))], expected)
      }),
      { numRuns: limitRuns(60) },
    )
  })
}

t.test('text that any session tokenized is not tokenized again', async (t) => {
  const { cache, encoded } = createCache()
  const first = message('system', LONG) + message('user', 'One?')
  const second = message('system', LONG) + message('user', 'Two?')
  t.same([...(await cache.encode(first))], tokenizer.encode(first))
  encoded.length = 0
  t.same([...(await cache.encode(second))], tokenizer.encode(second))
  t.notOk(encoded.some((text) => text.includes('long rule')))
})

t.test(
  'after a change at one position of a long text, only its surroundings are tokenized again',
  async (t) => {
    const encoded: string[] = []
    const encode = async (text: string) => {
      encoded.push(text)
      return tokenizer.encode(text)
    }
    const cache = new ContentCache(encode, SPECIAL, { cutsAtSpaces: true })
    const letters = 'abcdefghijklmnop'
    const wordAt = (index: number) => `${index % 97}rule${letters[(index * 7919) % 13]}${letters[index % 16]}`
    const rules = Array.from({ length: 6000 }, (_, index) => wordAt(index)).join(' ')
    const getSystem = (where: string) => message('system', `You are in ${where} now. ${rules}`)
    const total = () => encoded.reduce((sum, text) => sum + text.length, 0)
    t.same([...(await cache.encode(getSystem('a place')))], tokenizer.encode(getSystem('a place')))
    const first = total()
    t.same(
      [...(await cache.encode(getSystem('quite another')))],
      tokenizer.encode(getSystem('quite another')),
    )
    t.ok(total() - first < first / 2, `${total() - first} characters after ${first}`)
  },
)

t.test('a long prompt has a few of its texts tokenized at once, independent of their number', async (t) => {
  let running = 0
  let most = 0
  const lengths = new Set<number>()
  const cache = new ContentCache(async (text, promptChars) => {
    running += 1
    most = Math.max(most, running)
    lengths.add(promptChars)
    await new Promise(setImmediate)
    running -= 1
    return tokenizer.encode(text)
  }, SPECIAL)
  const prompt = Array.from({ length: 40 }, (_, number) => message('user', `${number} ${LONG}`)).join('')
  t.same([...(await cache.encode(prompt))], tokenizer.encode(prompt))
  t.ok(most <= 4, `${most} at once`)
  t.same([...lengths], [prompt.length], 'each is known as a part of a long prompt')
})

t.test('a long prompt of new texts yields to the event loop', async (t) => {
  const { cache, encoded } = createCache()
  const turns: number[] = []
  let done = false
  const watch = () => {
    turns.push(encoded.length)
    if (!done) setImmediate(watch)
  }
  setImmediate(watch)
  const texts = Array.from({ length: 300 }, (_, n) => message('user', `${n} ${LONG}`))
  await cache.encode(texts.join(''))
  const inOneTurn = turns.map((count, index) => count - (turns[index - 1] ?? 0))
  t.ok(Math.max(...inOneTurn.slice(1)) <= 30, `${inOneTurn}`)
  const known = turns.length
  await cache.encode(texts.join(''))
  t.ok(turns.length - known <= 2, 'cached texts do not yield')
  done = true
})

t.test('the short text that ends each message is tokenized once', async (t) => {
  const { cache, encoded } = createCache()
  const end = (number: number) => `${message('user', `${number} ${LONG}`)}<|im_start|>assistant\n`
  for (const number of [1, 2, 3])
    t.same([...(await cache.encode(end(number)))], tokenizer.encode(end(number)))
  t.equal(encoded.filter((text) => text.startsWith('<|im_end|>')).length, 1)
})

t.test('concurrent prompts with a common beginning wait for one encoding', async (t) => {
  const { cache, encoded } = createCache()
  await Promise.all(
    [1, 2, 3].map((number) => cache.encode(message('system', LONG) + message('user', `${number}`))),
  )
  t.equal(encoded.filter((text) => text.includes('long rule')).length, 1)
})

t.test('the cache is bounded, and keeps the most recently used texts', async (t) => {
  const { cache, encoded } = createCache(20_000)
  const texts = Array.from({ length: 40 }, (_, index) => message('user', `${index} ${LONG}`))
  for (const text of texts) {
    await cache.encode(text)
    await cache.encode(texts[0]!)
  }
  encoded.length = 0
  await cache.encode(texts[0]!)
  t.notOk(encoded.some((text) => text.includes('long rule')))
  let kept = 0
  for (const text of texts.toReversed()) {
    await cache.encode(text)
    if (encoded.some((segment) => segment.includes('long rule'))) break
    kept += 1
  }
  t.ok(kept > 1 && kept * 4 * tokenizer.encode(texts[0]!).length <= 20_000, `${kept} texts are kept`)
})

t.test('a failed encoding is retried', async (t) => {
  let fails = true
  const cache = new ContentCache(async (text) => {
    if (fails) throw new Error('not now')
    return tokenizer.encode(text)
  }, SPECIAL)
  await t.rejects(cache.encode(message('user', LONG)), { message: 'not now' })
  fails = false
  t.same([...(await cache.encode(message('user', LONG)))], tokenizer.encode(message('user', LONG)))
})
