import { Readable } from 'node:stream'
import t from 'tap'
import { splitLines } from '../../../src/base/split-lines.ts'

const split = (chunks: string[], options?: { completeOnly: boolean }) =>
  Array.fromAsync(splitLines(Readable.from(chunks), options))

t.test('lines end at line feeds only, wherever the chunks begin', async (t) => {
  const text = 'a\u2028b\u2029c\u0085d\n\ne\r\nf'
  const lines = ['a\u2028b\u2029c\u0085d', '', 'e\r', 'f']
  t.strictSame(await split([text]), lines)
  t.strictSame(await split([...text]), lines)
})

t.test(
  'a last line without a line break is included, unless only complete lines are requested',
  async (t) => {
    t.strictSame(await split(['a\nb']), ['a', 'b'])
    t.strictSame(await split(['a\nb'], { completeOnly: true }), ['a'])
    t.strictSame(await split(['a\n']), ['a'])
    t.strictSame(await split([]), [])
  },
)
