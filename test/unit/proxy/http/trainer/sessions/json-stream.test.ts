import { text } from 'node:stream/consumers'
import fc from 'fast-check'
import t from 'tap'
import {
  createJsonStream,
  openObject,
  writeMember,
  writeNumbers,
  writeObject,
  writeTexts,
} from '../../../../../../src/proxy/http/trainer/sessions/json-stream.ts'

const write = (chunks: Iterable<string>) => JSON.parse([...chunks].join(''))

t.test('arrays of numbers are written correctly at any length', async (t) => {
  for (const length of [0, 1, 4095, 4096, 4097, 10_000]) {
    const ids = Int32Array.from({ length }, (_, index) => index * 31)
    t.same(write(writeNumbers(ids)), [...ids], `${length} numbers`)
  }
})

t.test('every finite double is written bit for bit', async () => {
  fc.assert(
    fc.property(fc.float64Array({ noNaN: true, noDefaultInfinity: true }), (numbers) =>
      (write(writeNumbers(numbers)) as number[]).every((number, index) => number === numbers[index]),
    ),
  )
})

t.test('a number that is not finite becomes the lowest double', async (t) => {
  const numbers = Float64Array.of(-0.5, Number.NEGATIVE_INFINITY, Number.NaN, Number.POSITIVE_INFINITY)
  const lowest = -Number.MAX_VALUE
  t.same(write(writeNumbers(numbers)), [-0.5, lowest, lowest, lowest])
})

t.test('texts and members are inserted unchanged', async (t) => {
  t.same(write(writeTexts([])), [])
  t.same(write([openObject({ a: 1 }), ...writeMember('b', writeTexts(['{"c":1}', 'null'])), '}']), {
    a: 1,
    b: [{ c: 1 }, null],
  })
})

t.test('a stream consists of its parts, in blocks', async (t) => {
  async function* createChunks() {
    for (let index = 0; index < 20_000; index += 1) yield index % 3 === 0 ? '' : `é${index}🙂`
  }
  const chunks: Buffer[] = []
  for await (const chunk of createJsonStream(createChunks())) chunks.push(Buffer.from(chunk))
  t.equal(Buffer.concat(chunks).toString(), await text(createChunks()))
  t.ok(chunks.length < 10, `${chunks.length} writes`)
})

t.test('an object is written correctly, with its arrays element by element', async (t) => {
  fc.assert(
    fc.property(fc.dictionary(fc.string(), fc.jsonValue()), (values) => {
      const text = [...writeObject(values)].join('')
      return text === JSON.stringify(values)
    }),
  )
  t.equal([...writeObject({ a: undefined, b: [undefined, 1] })].join(''), '{"b":[null,1]}')
  const session = { metadata: 'x'.repeat(65_536) }
  const chunks = [...writeObject({ sessions: Array.from({ length: 100 }, () => session) })]
  t.ok(Math.max(...chunks.map(({ length }) => length)) < 70_000)
})

t.test('the event loop runs between two blocks, for any speed of the reader', async (t) => {
  let iterations = 0
  let isDone = false
  const count = () => {
    iterations += 1
    if (!isDone) setImmediate(count)
  }
  setImmediate(count)
  let blocks = 0
  for await (const _ of createJsonStream(Array.from({ length: 100 }, () => 'x'.repeat(65_536)))) blocks += 1
  isDone = true
  t.ok(iterations >= blocks, `${iterations} iterations, ${blocks} blocks`)
})
