import t from 'tap'
import { Sweeper } from '../../../../../src/proxy/session/state/sweeper.ts'

t.test('a sweep passes integer milliseconds to the store, from the clock that is behind', async (t) => {
  let [wallMs, steadyMs] = [1_000_000, 0.25]
  const sweeps: (number | undefined)[] = []
  const store = {
    countSessions: async (nowMs: number) => {
      sweeps.push(nowMs)
      return { sessions: 1, active: 1, expired: 1 }
    },
    sweep: async (nowMs: number, sinceMs?: number) => {
      sweeps.push(nowMs, sinceMs ?? 0)
      return ['s']
    },
  }
  const swept: string[] = []
  const hooks = {
    onSwept: (sessionId: string) => void swept.push(sessionId),
    onSweepDeferred: () => t.fail('one session is not too many'),
    onSweepFailed: () => t.fail(),
  }
  const options = { clock: () => wallMs, steadyClock: () => steadyMs, sweepIntervalMs: 60_000 }
  const sweeper = new Sweeper(store, hooks, options)
  t.teardown(() => sweeper.stop())
  wallMs += 10_000
  steadyMs += 9_999.5
  await sweeper.sweep(0)
  steadyMs += 1_000.25
  await sweeper.sweep(0)
  t.strictSame(swept, ['s', 's'])
  t.ok(sweeps.includes(1_009_999), 'of the monotonic clock, rounded down')
  t.ok(sweeps.includes(1_010_000), 'of the wall clock')
  t.strictSame(
    sweeps.filter((ms) => !Number.isInteger(ms)),
    [],
  )
})
