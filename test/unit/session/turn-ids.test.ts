import fc from 'fast-check'
import t from 'tap'
import { TurnIds } from '../../../src/session/prompts/turn-ids.ts'

const ids = (...values: number[]) => Int32Array.from(values)

t.test('a line is continued by what it begins with, whether others have continued it or not', (t) => {
  const first = new TurnIds('a', ids(1, 2), ids(3))
  const second = new TurnIds('b', ids(1, 2, 3, 4), ids(5, 6), first)
  const other = new TurnIds('c', ids(1, 2, 3, 7), ids(8), first)
  for (const [line, whole] of [
    [first, [1, 2, 3]],
    [second, [1, 2, 3, 4, 5, 6]],
    [other, [1, 2, 3, 7, 8]],
  ] as const) {
    t.equal(line.length, whole.length)
    t.strictSame(line.extendedBy([9], []), ids(...whole, 9))
    t.ok(line.begins(ids(...whole)))
    t.ok(line.begins(ids(...whole, 9)))
    t.notOk(line.begins(ids(...whole.slice(0, -1))))
    t.notOk(line.begins(ids(...whole.slice(0, -1), 99, 9)))
  }
  t.end()
})

t.test('of a parent that a prompt does not begin with nothing is shared', (t) => {
  const parent = new TurnIds('a', ids(1, 2), ids(3))
  const line = new TurnIds('b', ids(1, 2, 4, 5), ids(6), parent)
  t.strictSame(line.extendedBy(), ids(1, 2, 4, 5, 6))
  t.ok(parent.begins(ids(1, 2, 3)))
  t.end()
})

t.test('a session keeps its tokens, and the last prompt of each of its lines once more', (t) => {
  const step = fc.record({ from: fc.nat(30), prompt: fc.nat(20), completion: fc.nat(20) })
  fc.assert(
    fc.property(fc.array(step, { minLength: 1, maxLength: 30 }), (steps) => {
      const lines: { line: TurnIds; whole: number[]; prompt: number; isContinued: boolean }[] = []
      let added = 0
      let tokens = 0
      let next = 0
      for (const [place, { from, prompt, completion }] of steps.entries()) {
        const parent = lines[from % (place + 1)]
        const news = Array.from({ length: prompt + 1 }, () => ++next)
        const sampled = Array.from({ length: completion }, () => ++next)
        const whole = [...(parent?.whole ?? []), ...news]
        const line = new TurnIds(`${place}`, ids(...whole), ids(...sampled), parent?.line)
        if (parent) parent.isContinued = true
        lines.push({ line, whole: [...whole, ...sampled], prompt: whole.length, isContinued: false })
        added += line.addedBytes
        tokens += news.length + sampled.length
      }
      const last = lines.filter(({ isContinued }) => !isContinued)
      const again = last.reduce((sum, { prompt }) => sum + prompt, 0)
      const isWhole = lines.every(({ line, whole }) => `${line.extendedBy()}` === `${whole}`)
      return isWhole && added === 4 * (tokens + again)
    }),
  )
  t.end()
})
