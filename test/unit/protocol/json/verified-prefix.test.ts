import fc from 'fast-check'
import t from 'tap'
import {
  BytePrefix,
  DigestPrefix,
  type VerifiedPrefix,
} from '../../../../src/protocol/json/verified-prefix.ts'
import { limitRuns } from '../../../helpers/tier.ts'

/**
 * Far from the end of a prefix, the shared length is a lower bound that is less than this below the true one.
 */
const UNIT_BYTES = 16 * 1024

const KINDS: Readonly<Record<string, (bytes: Buffer) => VerifiedPrefix>> = {
  bytes: BytePrefix.of,
  digests: DigestPrefix.of,
}

/** Returns `length` bytes, which differ between seeds. */
function createBytes(length: number, seed: number): Buffer {
  return Buffer.from(
    Array.from({ length }, (_, index) => (Math.imul(index + 1, seed * 2 + 40_503) >>> 8) & 0xff),
  )
}

const LONG = createBytes(100_000, 1)

function changeByte(bytes: Buffer, index: number): Buffer {
  const changed = Buffer.from(bytes)
  changed[index]! ^= 1
  return changed
}

for (const [name, of] of Object.entries(KINDS)) {
  t.test(`${name}: bytes that extend known ones share all of them`, (t) => {
    let known = of(LONG)
    for (let grown = 0; grown < 20; grown += 1) {
      const others = Buffer.concat([LONG, createBytes(grown * 3_000, 2)])
      const shared = known.measureShared(others)
      t.equal(shared, known.length)
      known = known.extendTo(others, shared)
      t.equal(known.length, others.length)
      t.equal(known.measureShared(others), others.length)
      t.equal(known.measureShared(others.subarray(0, -1)), others.length - 1, 'and all but their last byte')
    }
    t.end()
  })

  t.test(`${name}: one changed bit is detected at any position`, (t) => {
    const known = of(LONG)
    for (const index of [0, 1, 16_383, 16_384, 40_000, 65_536, 81_919, 81_920, 99_998, 99_999]) {
      const shared = known.measureShared(changeByte(LONG, index))
      t.ok(shared <= index && shared > index - UNIT_BYTES, `${shared} of ${index}`)
      const full = Buffer.concat([changeByte(LONG, index), LONG])
      t.ok(known.measureShared(full) <= index)
    }
    t.end()
  })

  t.test(`${name}: near the end, a difference is located to the byte`, (t) => {
    const known = of(LONG)
    for (const index of [LONG.length - 1, LONG.length - 5_000, LONG.length - UNIT_BYTES]) {
      t.equal(known.measureShared(changeByte(LONG, index)), index)
    }
    t.end()
  })

  t.test(`${name}: a known prefix stays known after two different continuations`, (t) => {
    const known = of(LONG)
    const left = Buffer.concat([LONG, Buffer.alloc(2_000, 'l')])
    const right = Buffer.concat([LONG, Buffer.alloc(2_000, 'r')])
    const one = known.extendTo(left, LONG.length)
    const other = known.extendTo(right, LONG.length)
    t.equal(one.measureShared(left), left.length)
    t.equal(other.measureShared(right), right.length)
    t.equal(one.measureShared(right), LONG.length)
    t.equal(known.measureShared(left), LONG.length)
    t.end()
  })

  t.test(`${name}: only copies of the bytes are stored`, (t) => {
    const bytes = Buffer.from(LONG)
    const known = of(bytes)
    bytes.fill(0)
    t.equal(known.measureShared(LONG), LONG.length)
    t.end()
  })
}

t.test('for any earlier bytes, the shared length is correct', async () => {
  const step = fc.record({
    from: fc.nat(9),
    keep: fc.nat(110_000),
    more: fc.nat(40_000),
    seed: fc.nat(3),
  })
  fc.assert(
    fc.property(fc.constantFrom(...Object.values(KINDS)), fc.array(step, { maxLength: 8 }), (of, steps) => {
      const all = [{ bytes: LONG, known: of(LONG) }]
      for (const { from, keep, more, seed } of steps) {
        const { bytes, known } = all[from % all.length]!
        const others = Buffer.concat([bytes.subarray(0, keep), createBytes(more, seed)])
        const shared = known.measureShared(others)
        if (!bytes.subarray(0, shared).equals(others.subarray(0, shared))) return false
        const next = known.extendTo(others, shared)
        if (next.length !== others.length || next.measureShared(others) !== others.length) return false
        all.push({ bytes: others, known: next })
      }
      return all.every(({ bytes, known }) => known.measureShared(bytes) === bytes.length)
    }),
    { numRuns: limitRuns(60) },
  )
})

t.test('digests store little more than the end of the verified bytes', (t) => {
  const megabyte = Buffer.alloc(1024 * 1024, 'x')
  t.ok(DigestPrefix.of(megabyte).bytes < 50 * 1024)
  t.ok(BytePrefix.of(megabyte).bytes < 1.2 * megabyte.length)
  t.end()
})

t.test('an empty prefix stays empty: its continuations are stored by their own session only', async (t) => {
  DigestPrefix.NONE.extendTo(Buffer.from('["of one session"'), 0)
  t.strictSame([DigestPrefix.NONE.length, DigestPrefix.NONE.bytes], [0, 0])
})
