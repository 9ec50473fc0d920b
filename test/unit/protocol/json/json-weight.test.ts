import fc from 'fast-check'
import t from 'tap'
import { addWeights, WEIGHTLESS, weigh } from '../../../../src/protocol/json/json-weight.ts'

/** Computes the weight from the values, as the reference for `weigh`. */
function computeWeight(value: unknown): ReturnType<typeof weigh> {
  if (typeof value !== 'object' || value === null) return WEIGHTLESS
  const items = Object.values(value)
  const members = Array.isArray(value) ? 0 : items.length
  const own = { nodes: 1 + members, commas: Math.max(0, items.length - 1), widest: members }
  return addWeights(own, ...items.map(computeWeight))
}

t.test('a text has the weight of its values', async () => {
  fc.assert(
    fc.property(fc.jsonValue({ maxDepth: 8 }), fc.constantFrom(0, 1, 4), (value, indent) => {
      const json = JSON.stringify(value, null, indent)
      return JSON.stringify(weigh(Buffer.from(json))) === JSON.stringify(computeWeight(JSON.parse(json)))
    }),
  )
})

t.test('characters in strings have no weight', async (t) => {
  t.strictSame(weigh(Buffer.from('["{[,:\\"{","\\\\",1]')), { nodes: 1, commas: 2, widest: 0 })
})

t.test('fragments and unterminated texts are counted by their content', async (t) => {
  t.strictSame(weigh(Buffer.from(']}]},"a":1,"b":[')), { nodes: 3, commas: 2, widest: 2 })
  t.equal(weigh(Buffer.from('['.repeat(100_000))).nodes, 100_000)
  t.strictSame(weigh(Buffer.from(`{"${'\\"'.repeat(100_000)}`)), { nodes: 1, commas: 0, widest: 0 })
})
