import fc from 'fast-check'
import t from 'tap'
import { findStringEnd } from '../../../../src/protocol/json/json-list.ts'
import { limitRuns } from '../../../helpers/tier.ts'

/** Finds the end of a string byte by byte, as the reference for `findStringEnd`. */
function findStringEndByByte(json: Buffer, start: number): number {
  let offset = start + 1
  while (offset < json.length && json[offset] !== 0x22) offset += json[offset] === 0x5c ? 2 : 1
  return Math.min(offset + 1, json.length)
}

t.test('a string ends at the first quote that is not escaped, at any length', (t) => {
  const chunk = fc.constantFrom(
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
    fc.property(fc.array(chunk, { maxLength: 12 }), (chunks) => {
      const json = Buffer.from(`"${chunks.join('')}`)
      const starts = Array.from(json.keys()).filter((index) => json[index] === 0x22)
      return starts.every((start) => findStringEnd(json, start) === findStringEndByByte(json, start))
    }),
    { numRuns: limitRuns(1_000) },
  )
  t.end()
})
