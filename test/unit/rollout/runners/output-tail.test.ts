import fc from 'fast-check'
import t from 'tap'
import { OutputTail } from '../../../../src/rollout/runners/output-tail.ts'

t.test('output within the limit is kept unchanged', async (t) => {
  const tail = new OutputTail(10)
  for (const chunk of ['abc', 'def', 'ghij']) tail.add(Buffer.from(chunk))
  t.equal(tail.getText(), 'abcdefghij')
})

t.test('of longer output the end is kept, with the number of missing bytes', async () => {
  fc.assert(
    fc.property(fc.array(fc.string({ minLength: 1, maxLength: 30, unit: 'grapheme-ascii' })), (chunks) => {
      const tail = new OutputTail(20)
      for (const chunk of chunks) tail.add(Buffer.from(chunk))
      const all = chunks.join('')
      const missing = all.length - 20
      const note = `[${missing} bytes before this are left out]\n`
      return tail.getText() === (missing > 0 ? note + all.slice(missing) : all)
    }),
  )
})
