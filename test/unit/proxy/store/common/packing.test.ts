import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import t from 'tap'
import {
  packIds,
  packLogprobs,
  packRowIds,
  packText,
  unpackIds,
  unpackLogprobs,
  unpackRowIds,
  unpackText,
} from '../../../../../src/proxy/store/common/packing.ts'

t.test('token ids are unpacked unchanged', async () => {
  const ids = fc.array(fc.oneof(fc.nat(300_000), fc.integer())).map((values) => Int32Array.from(values))
  fc.assert(
    fc.property(ids, (values) =>
      Buffer.from(unpackIds(packIds(values)).buffer).equals(Buffer.from(values.buffer)),
    ),
  )
})

t.test('token ids take two or three bytes each, and never more than four', async (t) => {
  t.equal(packIds(new Int32Array(1000).fill(16_000)).length, 1 + 2000)
  t.equal(packIds(new Int32Array(1000).fill(150_000)).length, 1 + 3000)
  t.equal(packIds(new Int32Array(1000).fill(-1)).length, 1 + 4000)
  t.equal(packIds(new Int32Array(0)).length, 1)
})

t.test('row ids of up to 53 bits are unpacked unchanged', async () => {
  const rows = fc.array(fc.oneof(fc.nat(5_000_000), fc.nat(2 ** 32), fc.maxSafeNat()))
  fc.assert(fc.property(rows, (each) => isDeepStrictEqual(unpackRowIds(packRowIds(each)), each)))
})

t.test('row ids below 2^32 have the packed form of earlier releases', async (t) => {
  t.strictSame(packRowIds([1, 300]), packIds(Int32Array.of(1, 300)))
  const [above31, below32] = [2 ** 31 + 5, 2 ** 32 - 1]
  const packed = packRowIds([above31, below32])
  t.strictSame(packed, packIds(Int32Array.of(above31 | 0, below32 | 0)))
  t.strictSame(unpackRowIds(packed), [above31, below32], 'earlier releases lost their sign')
})

t.test('logprobs are unpacked bit for bit', async () => {
  const special = fc.constantFrom(-0, -9999, Number.NEGATIVE_INFINITY, Number.POSITIVE_INFINITY, Number.NaN)
  const values = fc.array(fc.oneof(fc.double(), fc.float(), special)).map((each) => Float64Array.from(each))
  fc.assert(
    fc.property(values, (each) =>
      Buffer.from(unpackLogprobs(packLogprobs(each)).buffer).equals(Buffer.from(each.buffer)),
    ),
  )
})

t.test('logprobs take four bytes where float32 represents every one exactly, else eight', async (t) => {
  const exact = Float64Array.of(-9999, Number.NEGATIVE_INFINITY, Number.NaN, -0, Math.fround(-0.1))
  t.equal(packLogprobs(exact).length, 1 + 4 * 5)
  t.equal(packLogprobs(Float64Array.of(...exact, -0.1)).length, 1 + 8 * 6)
})

t.test('text is stored as UTF-8 if it is valid, otherwise as UTF-16', async (t) => {
  t.equal(packText('a\0ü😀'), 'a\0ü😀')
  t.ok(Buffer.isBuffer(packText('\ud800')))
  t.equal(unpackText(packText('x\udc00\ud800')), 'x\udc00\ud800')
})

t.test('a layout of a later version is rejected instead of misread', async (t) => {
  t.throws(() => unpackIds(Buffer.of(9, 1)), /layout 9/)
  t.throws(() => unpackLogprobs(Buffer.of(9, 1)), /layout 9/)
})
