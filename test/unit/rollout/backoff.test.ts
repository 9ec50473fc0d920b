import t from 'tap'
import { computeBackoffMs, pause } from '../../../src/rollout/backoff.ts'

t.test('waits double with each failure, between half and all of the limit, up to a minute', async (t) => {
  const limits = [1, 2, 3, 4].map((failures) => computeBackoffMs(2_000, failures, () => 1))
  t.strictSame(limits, [2_000, 4_000, 8_000, 16_000])
  t.equal(
    computeBackoffMs(2_000, 3, () => 0),
    4_000,
  )
  t.equal(
    computeBackoffMs(2_000, 50, () => 1),
    60_000,
  )
  t.equal(
    computeBackoffMs(0, 3, () => 1),
    0,
  )
})

t.test('a cancelled pause throws the reason', async (t) => {
  const controller = new AbortController()
  const paused = pause(60_000, controller.signal)
  controller.abort(new Error('cancelled'))
  await t.rejects(paused, { message: 'cancelled' })
  await t.rejects(pause(60_000, controller.signal), { message: 'cancelled' })
})
