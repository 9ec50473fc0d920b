import { readFileSync, statSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import t from 'tap'
import { decodeNgrams, encodeNgrams } from '../../../src/embedded/engine/ngram-file.ts'
import { trainBpe } from '../../../tools/embedded-model/bpe.ts'
import { countNgrams } from '../../../tools/embedded-model/count-ngrams.ts'
import { trainModel } from '../../../tools/embedded-model/train-model.ts'

const COMMITTED = new URL('../../../src/embedded/model/', import.meta.url)
const FILES = ['tokenizer.json', 'tokenizer_config.json', 'ngrams.bin']

t.test('training again gives the committed model, byte for byte', async (t) => {
  const folder = t.testdir({})
  trainModel(folder)
  for (const file of FILES) {
    t.ok(readFileSync(join(folder, file)).equals(readFileSync(new URL(file, COMMITTED))), file)
  }
})

t.test('the model stays small enough to be committed to the repository', async (t) => {
  const bytes = FILES.map((file) => statSync(new URL(file, COMMITTED)).size)
  t.ok(bytes.reduce((sum, size) => sum + size, 0) < 2_000_000)
})

t.test('pairs are merged in order of frequency, with the older of two equal pairs first', async (t) => {
  const { merges, wordIds } = trainBpe(['abab abab cdcd'], 256 + 3)
  t.same(merges, [
    ['a', 'b'],
    ['c', 'd'],
    ['ab', 'ab'],
  ])
  t.same(wordIds.get('abab'), [258])
})

t.test('no pair that occurs once becomes a token', async (t) => {
  t.same(trainBpe(['xyz'], 1000).merges, [])
})

t.test('n-gram counts list the successors of each context and never cross documents', async (t) => {
  const counts = countNgrams(
    [
      [1, 2, 3],
      [1, 2, 0],
    ],
    4,
    3,
  )
  t.same([...counts.unigrams], [1, 2, 2, 1])
  const [bigrams, trigrams] = counts.levels
  t.same([...bigrams!.contexts], [1, 2])
  t.same([...bigrams!.ends], [1, 3])
  t.same([...bigrams!.tokens], [2, 0, 3])
  t.same([...bigrams!.counts], [2, 1, 1])
  t.same([...trigrams!.contexts], [1, 2])
  t.same([...trigrams!.tokens], [0, 3])
})

t.test('counts are read back unchanged from their file', async () => {
  const documents = fc.array(fc.array(fc.nat(9), { maxLength: 20 }), { maxLength: 5 })
  fc.assert(
    fc.property(documents, fc.integer({ min: 1, max: 4 }), (ids, order) => {
      const counts = countNgrams(ids, 10, order)
      t.same(decodeNgrams(encodeNgrams(counts)), counts)
    }),
    { numRuns: 50 },
  )
})

t.test('a file that is not a model, or is truncated, is rejected', async (t) => {
  const full = encodeNgrams(countNgrams([[0, 1, 2]], 3, 3))
  t.throws(() => decodeNgrams(Buffer.alloc(16)), { message: 'not an n-gram file' })
  t.throws(() => decodeNgrams(full.subarray(0, full.length - 4)), { message: /ends too early/ })
})
