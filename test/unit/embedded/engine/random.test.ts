import fc from 'fast-check'
import t from 'tap'
import { createSeededRandom } from '../../../../src/embedded/engine/random.ts'

t.test('numbers are in [0, 1) and repeat with their seed', async () => {
  fc.assert(
    fc.property(fc.maxSafeInteger(), (seed) => {
      const [first, second] = [createSeededRandom(seed), createSeededRandom(seed)]
      return Array.from({ length: 20 }, () => first()).every(
        (value) => value >= 0 && value < 1 && value === second(),
      )
    }),
  )
})

t.test('numbers are spread evenly', async (t) => {
  const random = createSeededRandom(1)
  const bins = new Array<number>(10).fill(0)
  for (let i = 0; i < 10_000; i++) bins[Math.floor(random() * 10)]!++
  t.ok(
    bins.every((count) => Math.abs(count - 1_000) < 150),
    bins.join(' '),
  )
})

t.test('neighbouring seeds have nothing in common', async (t) => {
  const firsts = Array.from({ length: 100 }, (_, seed) => createSeededRandom(seed)())
  t.equal(new Set(firsts).size, 100)
  t.ok(Math.abs(firsts.reduce((sum, value) => sum + value, 0) / 100 - 0.5) < 0.15)
})
