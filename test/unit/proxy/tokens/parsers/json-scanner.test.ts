import fc from 'fast-check'
import t from 'tap'
import { JsonScanner } from '../../../../../src/proxy/tokens/parsers/json-scanner.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

/**
 * Scans a text in chunks with one scanner. Returns the number of characters that it consumed, whether the
 * value is still open, and the members of a complete value.
 */
function scan(...chunks: string[]) {
  const scanner = new JsonScanner()
  let length = 0
  for (const chunk of chunks) if (scanner.isOpen) length += scanner.read(chunk, 0)
  const members = scanner.isComplete ? [...scanner.getMembers(chunks.join('').slice(0, length))] : undefined
  return { length, isOpen: scanner.isOpen, members }
}

t.test('members keep the text that they were written with', async (t) => {
  const text = '{"a" : [1,  {"x": "},"}] , "\\u0062": 1.0e2,"c":"\\"" } tail'
  t.same(scan(text), {
    length: text.length - ' tail'.length,
    isOpen: false,
    members: [
      ['a', '[1,  {"x": "},"}]'],
      ['b', '1.0e2'],
      ['c', '"\\""'],
    ],
  })
  t.same(scan('{}').members, [])
  t.same(scan('[{"a": 1}]').members, [], 'an array has none')
})

t.test('a text that cannot become JSON is rejected at its first wrong character', async (t) => {
  const wrong = [
    '{a',
    '{"a" 1',
    '{"a": tru}',
    '{"a": 01,',
    '{"a": "\n',
    '{"a": "\\x',
    '{"a": "\\u00g',
    '{"a": 1]',
    '{,',
  ]
  for (const text of wrong)
    t.same(scan(text), { length: text.length - 1, isOpen: false, members: undefined }, text)
  for (const text of ['{"a": "x', '{"a": [1', '{"a"', '{"a": tru']) t.ok(scan(text).isOpen, text)
})

t.test('the scanner accepts the same JSON as JSON.parse, for any chunks', async () => {
  const space = fc.constantFrom(undefined, 2, '\t')
  const json = fc.tuple(fc.dictionary(fc.string(), fc.jsonValue()), space)
  const written = json.map(([value, indent]) => JSON.stringify(value, null, indent))
  const letters = fc.string({ unit: fc.constantFrom(...'{}[]:,"\\ue1.-0n ') })
  /** Valid JSON with a replacement at some position, which mostly invalidates it. */
  const broken = fc.tuple(written, letters, fc.nat()).map(([text, more, i]) => {
    const index = i % text.length
    return text.slice(0, index) + more + text.slice(index + 1)
  })
  fc.assert(
    fc.property(fc.oneof(written, broken), (text) => {
      const full = scan(text)
      const cut = scan(...text)
      if (JSON.stringify(cut) !== JSON.stringify(full)) return false
      const isAll = full.members !== undefined && text.slice(full.length).trim() === ''
      return isAll === isObjectOrArray(text)
    }),
    { numRuns: limitRuns(2000) },
  )
  fc.assert(
    fc.property(json, ([value, indent]) => {
      const members = scan(JSON.stringify(value, null, indent)).members!
      const parsed = members.map(([key, text]) => [key, JSON.parse(text)])
      return JSON.stringify(parsed) === JSON.stringify(Object.entries(JSON.parse(JSON.stringify(value))))
    }),
  )
})

function isObjectOrArray(text: string): boolean {
  try {
    return typeof JSON.parse(text) === 'object' && JSON.parse(text) !== null
  } catch {
    return false
  }
}
