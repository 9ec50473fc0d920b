import t from 'tap'
import { getTimeSpan, getTurnTimes } from '../../../../../src/inspector/page/lib/turns.ts'
import type { TreeTurn } from '../../../../../src/inspector/page/lib/wire.ts'

const turn = (startS: number, firstMs: number | null, durationMs: number | null) =>
  ({
    started_at: startS,
    first_token_ms: firstMs,
    duration_ms: durationMs,
    status: durationMs === null ? 'open' : 'completed',
  }) as TreeTurn

t.test('a session lasts from its first request to the latest end of a request, in any order', async (t) => {
  t.same(getTimeSpan([turn(10, 100, 9_000), turn(11, 100, 500)], 99_000), { fromMs: 10_000, toMs: 19_000 })
  t.same(getTimeSpan([turn(10, 100, 500), turn(12, null, null)], 15_000), { fromMs: 10_000, toMs: 15_000 })
  t.same(getTimeSpan([], 15_000), { fromMs: 0, toMs: 0 })
})

t.test(
  'a turn without a token waited for its whole duration, and an open one is still running',
  async (t) => {
    t.same(getTurnTimes(turn(10, 100, 500), 0), { startMs: 10_000, firstMs: 10_100, endMs: 10_500 })
    t.same(getTurnTimes(turn(10, null, 500), 0), { startMs: 10_000, firstMs: 10_500, endMs: 10_500 })
    t.same(getTurnTimes(turn(10, 100, null), 12_000), { startMs: 10_000, firstMs: 10_100, endMs: 12_000 })
  },
)
