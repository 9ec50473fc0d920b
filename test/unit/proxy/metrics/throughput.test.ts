import t from 'tap'
import { logThroughput } from '../../../../src/proxy/metrics/throughput.ts'
import { FakeClock } from '../../../helpers/fake-clock.ts'
import { createListingLogger } from '../../../helpers/listing-logger.ts'

t.test('each minute with traffic is one line, with its new values', async (t) => {
  const { logger, lines } = createListingLogger()
  const clock = new FakeClock()
  let totals = { requests: 5, failed: 1, sampled_tokens: 100 }
  let load = { in_flight: 0, waiting: 0 }
  const stop = logThroughput({ logger, clock, readTotals: () => totals, readLoad: () => load })
  clock.advance(60_000)
  t.strictSame(lines, [], 'a minute without traffic has no line')
  totals = { requests: 8, failed: 2, sampled_tokens: 160 }
  clock.advance(60_000)
  load = { in_flight: 1, waiting: 2 }
  clock.advance(60_000)
  t.match(lines, [
    {
      event: 'throughput',
      level: 'info',
      requests: 3,
      failed: 1,
      sampled_tokens: 60,
      in_flight: 0,
      waiting: 0,
    },
    { event: 'throughput', requests: 0, failed: 0, sampled_tokens: 0, in_flight: 1, waiting: 2 },
  ])
  t.equal(lines.length, 2)
  stop()
  t.equal(clock.pending, 0)
})
