/** The fast tokenizer gives the ids of Hugging Face's library: for each code point, and for texts of all kinds. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { loadOwnAddon } from '../../../src/base/assets.ts'
import { openRustEncoder, type TokenizerFault } from '../../../src/proxy/tokens/tokenizer/encoder.ts'
import { loadFastTokenizer, openFastEncoder } from '../../../src/proxy/tokens/tokenizer/fast-encoder.ts'
import { IS_FULL } from '../../helpers/tier.ts'
import { DISTINCT_MODELS, modelDirectory } from '../../unit/proxy/tokens/real-models.ts'

const FOLDER = new URL('../../../src/proxy/tokens/tokenizer/fastokens/', import.meta.url)
const isBuilt = loadOwnAddon(new URL('fastokens.node', FOLDER)) !== undefined
const skip = isBuilt ? false : 'it is not built: npm run build:addon, which needs cargo'
const POINTS_A_TEXT = 64
/** Without `FULL=1` each text of code points is read by one of the models. */
const SHARES = IS_FULL ? 1 : DISTINCT_MODELS.length
const RUNS = IS_FULL ? 1_000 : 150

async function encoderFor(t: Test, model: string) {
  const directory = modelDirectory(model)
  const reference = (await openRustEncoder(directory))!
  const { added_tokens: added } = JSON.parse(readFileSync(join(directory, 'tokenizer.json'), 'utf8')) as {
    added_tokens: { content: string }[]
  }
  const tokens = added.map(({ content }) => content)
  const encoder = (await openFastEncoder(loadFastTokenizer(directory), reference, tokens))!
  const faults: TokenizerFault[] = []
  encoder.onFault((fault) => faults.push(fault))
  t.teardown(() => encoder.close())
  return { encoder, tokens, faults }
}

for (const [index, model] of DISTINCT_MODELS.entries()) {
  t.test(`${model}: the same ids`, { skip }, async (t) => {
    const { encoder, tokens, faults } = await encoderFor(t, model)
    t.equal(encoder.kind, 'fastokens', 'the encoder supports this kind of tokenizer, and passes its checks')
    let text = ''
    let points = 0
    for (let point = 0; point < 0x110000; point += 1) {
      const char = String.fromCodePoint(point)
      if (/\p{Cn}|\p{Co}|\p{Cs}/u.test(char)) continue
      text += `a${char}b ${char}${char} 1${char}\n`
      points += 1
      if (points % POINTS_A_TEXT !== 0) continue
      if ((points / POINTS_A_TEXT) % SHARES === (IS_FULL ? 0 : index)) await encoder.check(text)
      text = ''
    }
    await encoder.check(text)
    t.same(faults, [], `of ${points} code points`)

    const word = fc.constantFrom(
      ' ',
      '\n\n',
      'é',
      '1234',
      '▁',
      '\u00a0',
      "don'T",
      '}',
      '漢字',
      '\ud800',
      'e\u0301',
    )
    const chunk = fc.oneof(
      fc.string({ unit: 'grapheme' }),
      fc.string({ unit: 'binary' }),
      word,
      fc.constantFrom(...tokens.slice(0, 40), ' <', '<|'),
    )
    const long = fc.tuple(chunk, fc.integer({ min: 2, max: 60 })).map(([part, times]) => part.repeat(times))
    const texts = fc.array(fc.oneof(chunk, long), { maxLength: 40 }).map((parts) => parts.join(''))
    const check = async (full: string) => {
      await encoder.check(full)
      return faults.length === 0
    }
    await fc.assert(fc.asyncProperty(texts, check), { numRuns: RUNS })
    t.equal(encoder.kind, 'fastokens', `after ${RUNS} texts`)
    for (const page of ['README.md', 'docs/token-mode.md', 'package-lock.json', 'src/main.ts'])
      await encoder.check(readFileSync(new URL(`../../../${page}`, import.meta.url), 'utf8'))
    t.same(faults, [], 'and for long ones')
  })
}
