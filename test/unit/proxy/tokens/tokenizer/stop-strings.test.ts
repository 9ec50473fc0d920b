import fc from 'fast-check'
import t from 'tap'
import { StopStrings } from '../../../../../src/proxy/tokens/tokenizer/stop-strings.ts'
import { limitRuns } from '../../../../helpers/tier.ts'

t.test('text before a stop string is sent, the stop string and later text is not', async (t) => {
  const stops = new StopStrings(['\nObservation:'])
  t.equal(stops.push('Action: ls\nObs'), 'Action: ls')
  t.equal(stops.matched, undefined)
  t.equal(stops.push('ervation: file'), '')
  t.equal(stops.matched, '\nObservation:')
  t.equal(stops.push('more'), '')
  t.equal(stops.flush(), '')
})

t.test('text that turns out not to be a stop string is sent', async (t) => {
  const stops = new StopStrings(['END'])
  t.equal(stops.push('EN'), '')
  t.equal(stops.push('D'.toLowerCase()), 'ENd')
  t.equal(stops.push('E'), '')
  t.equal(stops.flush(), 'E')
})

t.test('a stop string can belong to the text', async (t) => {
  const stops = new StopStrings(['</a>'], { include: true })
  t.equal(stops.push('x</a>y'), 'x</a>')
})

t.test('the stop string that is complete first ends the text', async (t) => {
  const stops = new StopStrings(['abcd', 'bc'])
  t.equal(stops.push('xabcd'), 'xa')
  t.equal(stops.matched, 'bc')
  const tie = new StopStrings(['bc', 'abc'])
  t.equal(tie.push('xabc'), 'x')
  t.equal(tie.matched, 'abc', 'of two that end together, the longer one')
})

t.test('without stop strings, or with empty ones, text is unchanged', async (t) => {
  t.equal(new StopStrings([]).push('abc'), 'abc')
  t.equal(new StopStrings(['']).push('abc'), 'abc')
})

t.test('while no end is allowed, a stop string is text, and may begin one that ends later', async (t) => {
  const stops = new StopStrings(['END', 'xy'])
  t.equal(stops.push('an END x', false), 'an END ')
  t.equal(stops.matched, undefined)
  t.equal(stops.push('y'), '')
  t.equal(stops.matched, 'xy')
})

t.test('a long stop string is not compared from its start with each token', async (t) => {
  const stop = `${'a'.repeat(60_000)}b`
  const stops = new StopStrings([stop])
  for (let pushed = 0; pushed < 50_000; pushed++) stops.push('a')
  t.equal(stops.flush().length, 50_000, 'comparing all of its prefixes would take minutes')
})

t.test('for any chunks of the text, the result is the same', async () => {
  const letters = fc.string({ unit: fc.constantFrom('a', 'b', 'c') })
  fc.assert(
    fc.property(letters, fc.array(letters), fc.boolean(), (text, stops, include) => {
      const full = new StopStrings(stops, { include })
      const cut = new StopStrings(stops, { include })
      const shown = full.push(text) + full.flush()
      const chunks = [...text].map((letter) => cut.push(letter)).join('') + cut.flush()
      return shown === chunks && full.matched === cut.matched
    }),
    { numRuns: limitRuns(2000) },
  )
})

t.test('stop strings that would stall the process are rejected, alone and together', async (t) => {
  for (const stops of [['a'.repeat(4 * 1024 * 1024)], Array.from({ length: 70_000 }, () => 'a')])
    t.throws(() => new StopStrings(stops), { code: 'invalid_request', status: 400, param: 'stop' })
  t.equal(new StopStrings(['a'.repeat(65_536)]).push('b'), 'b')
})
