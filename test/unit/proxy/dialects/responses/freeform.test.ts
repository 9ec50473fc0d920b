import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import {
  FreeformReader,
  getFreeformArguments,
  toFreeformCallId,
  toModelCallId,
} from '../../../../../src/proxy/dialects/responses/freeform.ts'

/**
 * Returns the input that the agent receives for these arguments, and the arguments restored from its echo.
 */
function roundTrip(chunks: readonly string[]): { input: string; streamed: string; echo: string } {
  const reader = new FreeformReader()
  const decoded = chunks.map((chunk) => reader.add(chunk)).join('') + reader.end()
  const callId = toFreeformCallId('call_1', reader.isRaw)
  assert.equal(toModelCallId(callId), 'call_1')
  return { input: reader.input, streamed: decoded, echo: getFreeformArguments(callId, reader.input) }
}

const anyText = fc.string({ unit: 'binary' })
const spaces = fc.constantFrom('', ' ', '\n', '  ')

/** Serializes a value as JSON with random but equivalent escapes. */
const writtenString = anyText.chain((text) =>
  fc.array(fc.boolean(), { minLength: text.length, maxLength: text.length }).map((escaped) => ({
    text,
    json: [...Array(text.length).keys()]
      .map((index) =>
        escaped[index]
          ? `\\u${text.charCodeAt(index).toString(16).padStart(4, '0')}`
          : JSON.stringify(text[index]).slice(1, -1),
      )
      .join(''),
  })),
)

function cut(text: string, at: readonly number[]): string[] {
  const indices = [0, ...at.map((index) => index % (text.length + 1)).sort((a, b) => a - b), text.length]
  return indices.slice(1).map((end, index) => text.slice(indices[index], end))
}

t.test("the input is the model's text, with any escapes and chunks", async (t) => {
  fc.assert(
    fc.property(
      writtenString,
      spaces,
      spaces,
      fc.array(fc.nat(), { maxLength: 30 }),
      ({ text, json }, space, other, indices) => {
        const written = `${space}{${other}"input"${space}:${other}"${json}"${other}}${space}`
        const { input, streamed, echo } = roundTrip(cut(written, indices))
        assert.equal(input, text)
        assert.equal(streamed, text)
        assert.deepEqual(JSON.parse(echo), JSON.parse(written))
      },
    ),
  )
  t.pass('for any text')
})

t.test('the input is streamed while it is written', async (t) => {
  const reader = new FreeformReader()
  const decoded = ['{"inp', 'ut": "*** Be', 'gin\\', 'n+\\u00', 'e9"', '}'].map((chunk) => reader.add(chunk))
  t.same(decoded, ['', '*** Be', 'gin', '\n+', 'é', ''])
})

t.test("arguments of another form reach the agent unchanged, and its echo is the model's text", async (t) => {
  for (const written of [
    '',
    '{',
    '{}',
    '{"patch": "x"}',
    'just text',
    '{"input": 3}',
    '["input"]',
    '{"in put":"x"}',
  ]) {
    for (const chunks of [[written], [...written]]) {
      t.same(roundTrip(chunks), { input: written, streamed: written, echo: written })
    }
  }
})

t.test('a truncated input keeps its received part', async (t) => {
  t.equal(roundTrip(['{"input": "abc']).input, 'abc')
  t.equal(roundTrip(['{"input": "abc\\']).input, 'abc\\')
  t.equal(roundTrip(['{"input": "a\\q\\uzzzz"}']).input, 'aquzzzz', 'invalid escapes')
})

t.test('an input is never split within a character', async (t) => {
  for (const chunks of [
    ['{"input":"a\\ud83d', '\\ude00b"}'],
    ['{"input":"a\ud83d', '\ude00b"}'],
    ['raw \ud83d', '\ude00b'],
  ]) {
    const reader = new FreeformReader()
    const decoded = [...chunks.map((chunk) => reader.add(chunk)), reader.end()]
    for (const text of decoded) t.ok(text.isWellFormed(), JSON.stringify(decoded))
    t.match(decoded.join(''), /a?\u{1f600}b$/u)
    t.equal(decoded.join(''), reader.input)
  }
  const lone = new FreeformReader()
  t.equal(lone.add('{"input":"\\ud83d"}') + lone.end(), '\ud83d', 'an unpaired surrogate')
})

t.test('white space before the arguments costs linear time', async (t) => {
  const reader = new FreeformReader()
  for (let count = 0; count < 100_000; count += 1) reader.add('  ')
  t.equal(reader.add('{"input":"x"}') + reader.end(), 'x')
})
