import fc from 'fast-check'
import t from 'tap'
import {
  cutAtSpaces,
  MIN_PART_CHARS,
  mayCutAtSpaces,
} from '../../../../../src/proxy/tokens/tokenizer/safe-cuts.ts'
import { readTokenizerFiles } from '../../../../../src/proxy/tokens/tokenizer/tokenizer-files.ts'
import { limitRuns } from '../../../../helpers/tier.ts'
import { modelDirectory } from '../real-models.ts'

const files = readTokenizerFiles(modelDirectory('qwen3')).tokenizerJson
const steps = (files.pre_tokenizer as { pretokenizers: object[] }).pretokenizers
const [split, bytes] = [steps[0]!, steps[1]!]
const splitBy = (...pretokenizers: object[]) => ({
  ...files,
  pre_tokenizer: { type: 'Sequence', pretokenizers },
})

t.test('a text is split only if each rule of its tokenizer is known to allow it', async (t) => {
  t.ok(mayCutAtSpaces(files))
  t.ok(mayCutAtSpaces({ ...files, normalizer: null }))
  const token = { id: 1, content: '<|a|>' }
  const others = {
    'another expression': splitBy({ ...split, pattern: { Regex: '\\w+\\s' } }, bytes),
    'a text to split at': splitBy({ ...split, pattern: { String: ' ' } }, bytes),
    'another behaviour': splitBy({ ...split, behavior: 'MergedWithNext' }, bytes),
    'an inverted expression': splitBy({ ...split, invert: true }, bytes),
    'a space prepended to a text': splitBy(split, { ...bytes, add_prefix_space: true }),
    'an expression of its own': splitBy(split, { ...bytes, use_regex: true }),
    'nothing split before': splitBy(bytes),
    'no steps': splitBy(),
    'no splitting': { ...files, pre_tokenizer: null },
    'another normalizer': { ...files, normalizer: { type: 'NFKC' } },
    'a token with a space': { ...files, added_tokens: [{ ...token, content: 'a b' }] },
    'a token that takes spaces': { ...files, added_tokens: [{ ...token, rstrip: true }] },
    'a token that is a word': { ...files, added_tokens: [{ ...token, single_word: true }] },
  }
  for (const [name, other] of Object.entries(others)) t.notOk(mayCutAtSpaces(other), name)
})

t.test('the parts join to the text, and each starts with white space after a letter', async (t) => {
  const word = fc.constantFrom('word', 'Zürich', '42', '漢字', 'a', '}', 'Qq', 'é')
  const space = fc.constantFrom(' ', '\n', '', '\t', '\u00a0', ', ')
  const text = fc
    .array(fc.tuple(word, space), { minLength: 1, maxLength: 60 })
    .chain((pairs) => fc.integer({ min: 1, max: 300 }).map((times) => pairs.flat().join('').repeat(times)))
  fc.assert(
    fc.property(text, (full) => {
      const parts = cutAtSpaces(full)
      if (parts.join('') !== full) return false
      return parts.slice(1).every((part, index) => {
        const before = parts[index]!
        return /[A-Za-z]$/.test(before) && /^[ \n\t\r]/.test(part) && before.length >= MIN_PART_CHARS
      })
    }),
    { numRuns: limitRuns(200) },
  )
  t.same(cutAtSpaces(''), [''])
})
