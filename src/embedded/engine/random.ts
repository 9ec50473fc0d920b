/** A function that returns uniformly distributed numbers in [0, 1). */
export type RandomSource = () => number

/**
 * Returns a source whose numbers depend only on the seed. The generator is sfc32 (Chris Doty-Humphrey's PractRand). Two
 * draws of 32 bits form a number, so that all 53 bits of a double are random.
 * @param seed any integer; only its low 64 bits are used
 */
export function createSeededRandom(seed: number | bigint): RandomSource {
  const bits = BigInt.asUintN(64, BigInt(typeof seed === 'number' ? Math.trunc(seed) : seed))
  const draw = createSfc32(Number(bits & 0xffffffffn), Number(bits >> 32n))
  return () => {
    const high = draw() >>> 5
    const low = draw() >>> 6
    return (high * 0x4000000 + low) / 0x20000000000000
  }
}

function createSfc32(low: number, high: number): () => number {
  let a = 0
  let b = high | 0
  let c = low | 0
  let counter = 1
  const draw = () => {
    const out = (((a + b) | 0) + counter) | 0
    counter = (counter + 1) | 0
    a = b ^ (b >>> 9)
    b = (c + (c << 3)) | 0
    c = ((c << 21) | (c >>> 11)) + out
    c |= 0
    return out >>> 0
  }
  // The first draws correlate with the seed; the generator's author discards twelve.
  for (let i = 0; i < 12; i++) draw()
  return draw
}
