import fc from 'fast-check'
import t from 'tap'
import { AddedTokenFinder, type TokenMatch } from '../../../../../src/proxy/tokens/tokenizer/added-tokens.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

/** Finds tokens by comparing all of them at each position, as the reference for the finder. */
function findByComparison(ids: ReadonlyMap<string, number>, text: string): TokenMatch[] {
  const found: TokenMatch[] = []
  for (let begin = 0; begin < text.length; begin += 1) {
    const [longest] = [...ids]
      .filter(([token]) => token !== '' && text.startsWith(token, begin))
      .sort(([a], [b]) => b.length - a.length)
    if (longest === undefined) continue
    found.push({ id: longest[1], begin, end: begin + longest[0].length })
    begin += longest[0].length - 1
  }
  return found
}

t.test('tokens are found from the left, with the longest first', async () => {
  const chunk = fc.constantFrom('<', '<|', '|>', 'a', '<|a|>', '\ud83d\ude42', '')
  const text = fc.array(chunk, { maxLength: 12 }).map((chunks) => chunks.join(''))
  const tokens = fc.uniqueArray(
    fc.array(chunk, { maxLength: 3 }).map((chunks) => chunks.join('')),
    { minLength: 1, maxLength: 8 },
  )
  fc.assert(
    fc.property(tokens, text, (texts, text) => {
      const ids = new Map(texts.map((token, id) => [token, id]))
      const found = texts.every((token) => token === '') ? [] : [...new AddedTokenFinder(ids).find(text)]
      return JSON.stringify(found) === JSON.stringify(findByComparison(ids, text))
    }),
    { numRuns: limitRuns(1_000) },
  )
})

t.test('a prefix of a token is examined once', async (t) => {
  const texts = Array.from(
    { length: 1_000 },
    (_, index) => `<|reserved_special_token_${'x'.repeat(index % 60)}${index}|>`,
  )
  const finder = new AddedTokenFinder(new Map(texts.map((text, id) => [text, id])))
  t.same(
    [...finder.find(`${'<|res'.repeat(10)}${texts[7]}`)],
    [{ id: 7, begin: 50, end: 50 + texts[7]!.length }],
  )
})
