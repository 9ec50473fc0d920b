import fc from 'fast-check'
import t from 'tap'
import { parseFrame } from '../../../../src/protocol/worker/frames.ts'

const MIB = 1024 * 1024
const parse = (text: string) => parseFrame(Buffer.from(text), false)

t.test('an invalid frame is rejected in one pass, with quotes and backslashes at any position', async (t) => {
  // With a pattern that retries from each quote, the first of these takes 20 minutes.
  for (const part of ['\\"', '"', '\\', '"\\', '{"a":NaN,', '-Infinity', '-']) {
    t.equal(parse(part.repeat(MIB / part.length)), undefined, JSON.stringify(part))
  }
})

t.test('a frame with NaN and a long text is read', async (t) => {
  const text = 'x'.repeat(8 * MIB)
  const frame = `{"type":"completion_response","completion_text":"${text}","log_probs":[NaN,-Infinity,-0.5]}`
  t.strictSame(parse(frame), {
    type: 'completion_response',
    completion_text: text,
    log_probs: [null, null, -0.5],
  })
})

t.test('the content of strings is unchanged', async (t) => {
  t.strictSame(parse('{"type":"a","b":"NaN \\" -Infinity \\\\","NaN":NaN,"c":[Infinity,"\\\\",NaN]}'), {
    type: 'a',
    b: 'NaN " -Infinity \\',
    NaN: null,
    c: [null, '\\', null],
  })
})

t.test('frames with any texts are read as Python wrote them', async () => {
  const chunk = fc.constantFrom('"', '\\', 'NaN', '-Infinity', 'Infinity', 'x', '\n', '{', ',')
  const text = fc.array(chunk).map((chunks) => chunks.join(''))
  fc.assert(
    fc.property(fc.array(text), (texts) => {
      const items = texts.map((item) => `${JSON.stringify(item)},NaN`)
      const frame = parse(`{"type":"t","items":[${items.join()}]}`)
      const expected = { type: 't', items: texts.flatMap((item) => [item, null]) }
      return JSON.stringify(frame) === JSON.stringify(expected)
    }),
  )
})
