import fc from 'fast-check'
import t from 'tap'
import { chunk, helloV2, parseFrame, requestV2, responseV1 } from '../../../../src/protocol/worker/frames.ts'
import { recordEnumeratedLengths } from '../../../helpers/enumerated-values.ts'

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

t.test('the reason why a large frame is rejected is found without enumerating its elements', async (t) => {
  const many = new Array<number>(100_000).fill(1)
  const record = Object.fromEntries(many.map((_, index) => [`${index}`, [1]]))
  const engines = (chat_ids: object) => ({
    text_ids: { text: '', engines: [{ name: '', models: [], ids: [], chat_ids }] },
  })
  const cases: readonly [validator: { explain(frame: unknown): string }, frame: object, reason: RegExp][] = [
    [helloV2, { requests: many.map(String) }, /^frame must have required properties/],
    [helloV2, { ...engines({ 'a/b': [...many, 'x'] }) }, /^frame must have required/],
    [
      chunk,
      { type: 'completion_chunk', request_id: 'r', seq: 1, deltas: [{ token_ids: [...many, 'x'] }] },
      /^\/deltas\/0\/token_ids\/100000 must be/,
    ],
    [
      chunk,
      { type: 'completion_chunk', request_id: 'r', seq: 1, deltas: [{ details: { ...record } }] },
      /^\/deltas\/0\/details\/0 must be string/,
    ],
    [
      responseV1,
      { type: 'completion_response', request_id: 7, log_probs: many },
      /^\/request_id must be string/,
    ],
    [requestV2, { type: 'completion_request', stop: many.map(String) }, /^frame must have required/],
  ]
  const lengths = recordEnumeratedLengths(t)
  for (const [validator, frame, reason] of cases) {
    t.match(validator.explain(frame), reason)
    t.ok(lengths.splice(0).every((length) => length < 10_000))
  }
})
