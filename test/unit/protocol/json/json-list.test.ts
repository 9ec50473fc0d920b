import fc from 'fast-check'
import t from 'tap'
import { findStringEnd } from '../../../../src/protocol/json/json-list.ts'
import { limitRuns } from '../../../helpers/tier.ts'

/** The same, byte by byte. */
function endOf(json: Buffer, start: number): number {
  let at = start + 1
  while (at < json.length && json[at] !== 0x22) at += json[at] === 0x5c ? 2 : 1
  return Math.min(at + 1, json.length)
}

t.test('a string ends at the first quote that is not escaped, at any length', (t) => {
  const piece = fc.constantFrom(
    '"',
    '\\',
    '\\\\',
    '\\"',
    'x'.repeat(31),
    'x'.repeat(100),
    'é',
    '\\'.repeat(33),
  )
  fc.assert(
    fc.property(fc.array(piece, { maxLength: 12 }), (pieces) => {
      const json = Buffer.from(`"${pieces.join('')}`)
      const starts = Array.from(json.keys()).filter((at) => json[at] === 0x22)
      return starts.every((start) => findStringEnd(json, start) === endOf(json, start))
    }),
    { numRuns: limitRuns(1_000) },
  )
  t.end()
})
