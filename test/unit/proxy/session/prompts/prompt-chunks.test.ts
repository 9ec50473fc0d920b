import fc from 'fast-check'
import t from 'tap'
import { toPromptChunks, writePromptJson } from '../../../../../src/proxy/session/prompts/prompt-chunks.ts'

const ids = fc.array(fc.nat(150_000), { minLength: 1, maxLength: 1500 })
const text = fc.string({ unit: 'binary', maxLength: 4000, size: 'max' })

t.test('the chunks of a prompt are its JSON text, for any content', (t) => {
  const property = fc.property(
    fc.oneof(ids, text),
    (prompt) => [...writePromptJson(toPromptChunks(prompt))].join('') === JSON.stringify(prompt),
  )
  fc.assert(property, { numRuns: 100 })
  t.end()
})

t.test('a prompt that extends another one begins with all but the last of its chunks', (t) => {
  const isExtended = (earlier: string[], later: string[]) =>
    earlier.slice(0, -1).every((chunk, index) => chunk === later[index]) &&
    later[earlier.length - 1]!.startsWith(earlier.at(-1)!)
  fc.assert(
    fc.property(ids, ids, (first, more) =>
      isExtended(toPromptChunks(first), toPromptChunks([...first, ...more])),
    ),
    { numRuns: 50 },
  )
  fc.assert(
    fc.property(
      fc.string({ unit: 'grapheme', maxLength: 4000, size: 'max' }),
      fc.string({ unit: 'grapheme', maxLength: 4000, size: 'max' }),
      (first, more) => isExtended(toPromptChunks(first), toPromptChunks(first + more)),
    ),
    { numRuns: 50 },
  )
  t.end()
})

t.test('no chunk begins or ends within a character', (t) => {
  for (const shift of ['', 'x']) {
    const chunks = toPromptChunks(shift + '\u{1f600}'.repeat(3000))
    t.ok(chunks.length > 5)
    t.ok(chunks.every((chunk) => chunk.isWellFormed()))
  }
  t.end()
})
