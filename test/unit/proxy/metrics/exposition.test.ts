import t from 'tap'
import { expose } from '../../../../src/proxy/metrics/exposition.ts'
import { Counter, Gauge, Histogram } from '../../../../src/proxy/metrics/families.ts'

const lines = (...families: Parameters<typeof expose>[0]) =>
  expose(families)
    .text.split('\n')
    .filter((line) => line !== '' && !line.startsWith('#'))

t.test('buckets include values up to their bound, and the last one all values', async (t) => {
  const histogram = new Histogram({ name: 'h', help: 'H', buckets: [0.5, 1] })
  for (const value of [0.5, 0.75, 1, 7]) histogram.observe(value)
  t.same(lines(histogram), [
    'h_bucket{le="0.5"} 1',
    'h_bucket{le="1.0"} 3',
    'h_bucket{le="+Inf"} 4',
    'h_sum 9.25',
    'h_count 4',
  ])
})

t.test(
  'a metric without labels is zero from the start, and one with labels exists once it was seen',
  async (t) => {
    t.same(lines(new Counter({ name: 'c_total', help: 'C' })), ['c_total 0'])
    const labelled = new Counter({ name: 'l_total', help: 'L', labelNames: ['a', 'b'] })
    t.same(lines(labelled), [])
    labelled.add(2, 'x', 'y')
    labelled.add(1, 'x', 'y')
    t.same(lines(labelled), ['l_total{a="x",b="y"} 3'])
  },
)

t.test('a label may contain any text, and a value may be NaN', async (t) => {
  const gauge = new Gauge({ name: 'g', help: 'a \\ and\na line', labelNames: ['of'] })
  gauge.set(Number.POSITIVE_INFINITY, '"quoted" \\ and\nbroken')
  gauge.set(Number.NaN, 'nan')
  t.equal(
    expose([gauge]).text,
    '# HELP g a \\\\ and\\na line\n# TYPE g gauge\n' +
      'g{of="\\"quoted\\" \\\\ and\\nbroken"} +Inf\ng{of="nan"} NaN\n',
  )
})

t.test('OpenMetrics omits the suffix from the family of a counter, and terminates the text', async (t) => {
  const counter = new Counter({ name: 'c_total', help: 'C' })
  const { contentType, text } = expose(
    [counter],
    'application/openmetrics-text; version=1.0.0, text/plain;q=0.5',
  )
  t.match(contentType, /^application\/openmetrics-text; version=1\.0\.0/)
  t.equal(text, '# HELP c C\n# TYPE c counter\nc_total 0\n# EOF\n')
  t.match(expose([counter]).contentType, /^text\/plain; version=0\.0\.4/)
})
