import fc from 'fast-check'
import t from 'tap'
import { SseParser } from '../../../../../../src/proxy/engines/clients/wire/sse.ts'
import { limitRuns } from '../../../../../helpers/tier.ts'

const toBytes = (text: string) => new TextEncoder().encode(text)

function parse(...chunks: Uint8Array[]): string[] {
  const parser = new SseParser('e')
  return chunks.flatMap((chunk) => parser.push(chunk)).map(String)
}

t.test('the event stream format is parsed', (t) => {
  const cases: [string, string, string[]][] = [
    ['lines end with LF', 'data: a\n\ndata: b\n\n', ['a', 'b']],
    ['lines end with CRLF', 'data: a\r\n\r\ndata: b\r\n\r\n', ['a', 'b']],
    ['lines end with CR', 'data: a\r\rdata: b\r\r', ['a', 'b']],
    ['line ends are mixed', 'data: a\r\n\ndata: b\n\r\ndata: c\r\n\r', ['a', 'b', 'c']],
    ['several data lines are one event', 'data: a\ndata: b\ndata:\n\n', ['a\nb\n']],
    ['one space after the colon is dropped, one only', 'data:a\n\ndata:  b\n\n', ['a', ' b']],
    ['data without a colon is an empty line', 'data\n\n', ['']],
    ['comments and other fields are skipped', ': ping\nevent: x\nid: 1\nretry: 5\ndata: a\n\n', ['a']],
    ['an event without data is none', 'event: x\n\n: comment\n\n\n', []],
    ['a field that merely begins with data is skipped', 'database: a\ndat: b\n\n', []],
    ['a BOM at the start is dropped', '\uFEFFdata: a\n\n', ['a']],
    ['a BOM anywhere else is not', 'data: \uFEFFa\n\n\uFEFFdata: b\n\n', ['\uFEFFa']],
    ['an event that the end cuts off is dropped', 'data: a\n\ndata: b\n', ['a']],
    ['text is UTF-8', 'data: {"é":"日本 🙂"}\n\n', ['{"é":"日本 🙂"}']],
  ]
  for (const [title, text, expected] of cases) t.same(parse(toBytes(text)), expected, title)
  t.end()
})

t.test('for any boundaries of socket reads, the events are the same', (t) => {
  const chunk = fc.constantFrom(
    'data: ',
    'data',
    ':',
    ' ',
    '\n',
    '\r',
    '\r\n',
    '\n\n',
    'x',
    'é',
    '日',
    '🙂',
    '\uFEFF',
    'id: 1',
  )
  const stream = fc.array(chunk, { maxLength: 60, size: 'max' }).map((chunks) => toBytes(chunks.join('')))
  fc.assert(
    fc.property(stream, fc.array(fc.nat(200), { maxLength: 20 }), (bytes, cuts) => {
      const at = [...cuts.filter((cut) => cut <= bytes.length), 0, bytes.length].sort((a, b) => a - b)
      const chunks = at.slice(1).map((end, index) => bytes.slice(at[index], end))
      const expected = JSON.stringify(parse(bytes))
      const byByte = Array.from(bytes, (byte) => Uint8Array.of(byte))
      return JSON.stringify(parse(...chunks)) === expected && JSON.stringify(parse(...byByte)) === expected
    }),
    { numRuns: limitRuns(300) },
  )
  t.end()
})

t.test('text written as events is parsed again', (t) => {
  const line = fc.string({ unit: 'binary' }).map((text) => text.replace(/[\r\n\uD800-\uDFFF]/g, ''))
  fc.assert(
    fc.property(fc.array(line), fc.constantFrom('\n', '\r\n', '\r'), (texts, end) => {
      const written = texts.map((text) => `data: ${text}${end}${end}`).join('')
      return JSON.stringify(parse(toBytes(written))) === JSON.stringify(texts)
    }),
  )
  t.end()
})

t.test('long events of concurrent responses are not mixed', (t) => {
  const parsers = ['x', 'y'].map((letter) => ({
    parser: new SseParser('e'),
    text: letter.repeat(50_000),
    events: [] as string[],
  }))
  // Split within the line, and between its end and that of the event.
  for (const [from, to] of [
    [0, 30_000],
    [30_000, 50_007],
    [50_007, 50_008],
  ]) {
    for (const { parser, text, events } of parsers) {
      const chunk = toBytes(`data: ${text}\n\n`).subarray(from, to)
      events.push(...parser.push(chunk).map(String))
    }
  }
  for (const { text, events } of parsers) t.same(events, [text])
  t.end()
})

t.test('an event of one long line stays in bytes', (t) => {
  const text = `${'x'.repeat(20_000)}é`
  const [event] = new SseParser('e').push(toBytes(`data: ${text}\n\n`))
  t.ok(Buffer.isBuffer(event))
  t.equal(String(event), text)
  t.same(parse(toBytes(`data: ${text}\ndata: ${text}\n\n`)), [`${text}\n${text}`])
  const cut = toBytes(`data: ${text}\n\n`)
  t.same(parse(cut.slice(0, 9_000), cut.slice(9_000)), [text])
  t.end()
})

t.test('a line of megabytes in small reads costs linear time', (t) => {
  const parser = new SseParser('e')
  const read = toBytes('x'.repeat(1_024))
  parser.push(toBytes('data: '))
  const started = process.cpuUsage()
  for (let count = 0; count < 16_384; count += 1) parser.push(read)
  t.equal(parser.push(toBytes('\n\n'))[0]?.length, 16 * 1_024 * 1_024)
  t.ok(process.cpuUsage(started).user < 2_000_000)
  t.end()
})
