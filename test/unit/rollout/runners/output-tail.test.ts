import fc from 'fast-check'
import t from 'tap'
import { OutputTail } from '../../../../src/rollout/runners/output-tail.ts'

t.test('what fits is kept as it came', async (t) => {
  const tail = new OutputTail(10)
  for (const piece of ['abc', 'def', 'ghij']) tail.add(Buffer.from(piece))
  t.equal(tail.text(), 'abcdefghij')
})

t.test('of more, the end is kept, and how much is missing is said', async () => {
  fc.assert(
    fc.property(fc.array(fc.string({ minLength: 1, maxLength: 30, unit: 'grapheme-ascii' })), (pieces) => {
      const tail = new OutputTail(20)
      for (const piece of pieces) tail.add(Buffer.from(piece))
      const all = pieces.join('')
      const missing = all.length - 20
      const note = `[${missing} bytes before this are left out]\n`
      return tail.text() === (missing > 0 ? note + all.slice(missing) : all)
    }),
  )
})
