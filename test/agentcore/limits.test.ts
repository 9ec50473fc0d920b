/**
 * How many requests reach AgentCore, and when: real sockets and a fake clock that advances when a request has arrived,
 * so that the load of the machine does not change what is counted.
 */
import { setImmediate } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { AgentCoreRunner } from '../../src/rollout/runners/agentcore/agentcore-runner.ts'
import { agentTask } from '../helpers/agent-task.ts'
import { type Front, startFront } from '../helpers/agentcore-front.ts'
import { FakeClock } from '../helpers/fake-clock.ts'

const ROLLOUTS = 200
const RATE = 25
const NEVER = new AbortController().signal

interface Batch {
  front: Front
  /** Times of all requests that reached the front, rejected ones included, in ms. */
  calls: number[]
  rejected: number[]
  /** The prompts of the tasks' agents, in order. */
  prompts: number[]
  results: readonly { status: string }[]
  progress: string
}

/**
 * Runs a batch whose agents respond at once: a start and a stop for each. @param limitAt requests per second that the
 * front accepts
 */
async function runBatch(t: Test, name: string, limitAt: (nowMs: number) => number): Promise<Batch> {
  const clock = new FakeClock()
  const batch = { calls: [] as number[], rejected: [] as number[], prompts: [] as number[] }
  const takes = () => {
    const nowMs = clock.nowMs()
    batch.calls.push(nowMs)
    const isTaken = callsSince(batch.calls, nowMs - 1_000) <= limitAt(nowMs)
    if (!isTaken) batch.rejected.push(nowMs)
    return isTaken
  }
  const front = await startFront(
    t,
    (_, { number }) => {
      batch.prompts.push(number)
      return { body: '{"reward": 1}' }
    },
    { takes },
  )
  const arn = `arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/${name}`
  const ledger = `${t.testdir({})}/ledger`
  const runner = new AgentCoreRunner({ arn, ledger, clock, tps: RATE, retryBaseMs: 1, warn: () => {} })
  const tasks = Array.from({ length: ROLLOUTS }, (_, number) => agentTask({ sample: { number } }))
  const running = Promise.all(tasks.map((task) => runner.run(task, NEVER))).then(async (results) => {
    await runner.close()
    return results
  })
  let isOver = false
  const over = running.finally(() => {
    isOver = true
  })
  const heardThrottled = () => runner.describe().includes(`${batch.rejected.length} calls throttled`)
  while (!isOver) {
    const arrived = batch.calls.length
    if (!clock.advanceToNext()) await setImmediate()
    else while (!isOver && (batch.calls.length === arrived || !heardThrottled())) await setImmediate()
  }
  return { ...batch, front, results: await over, progress: runner.describe() }
}

/** Counts the requests after `sinceMs`; `calls` is in order of time. */
function callsSince(calls: readonly number[], sinceMs: number): number {
  return calls.length - 1 - calls.findLastIndex((atMs) => atMs <= sinceMs)
}

function mostInASecond(calls: readonly number[]): number {
  return Math.max(...calls.map((_, last) => callsSince(calls.slice(0, last + 1), calls[last]! - 1_000)))
}

t.test('200 rollouts send at most 25 requests in each second, in order of arrival', async (t) => {
  const { front, calls, rejected, prompts, results, progress } = await runBatch(t, 'steady-x', () => RATE)
  t.ok(results.every(({ status }) => status === 'completed'))
  t.strictSame(rejected, [])
  t.equal(calls.length, 2 * ROLLOUTS, 'a start and a stop each')
  t.equal(mostInASecond(calls), RATE)
  t.ok(calls.at(-1)! - calls[0]! <= calls.length * (1_000 / RATE), 'the full rate is used')
  t.strictSame(
    prompts,
    Array.from({ length: ROLLOUTS }, (_, number) => number),
  )
  t.strictSame(front.stopped.toSorted(), front.started.toSorted())
  t.match(progress, /200 started, 0 running, 0 waiting, 200 done, 0 failed, 0 calls throttled/)
})

t.test('the rate halves while other clients use the quota, and recovers', async (t) => {
  const [busyFromMs, busyUntilMs, left] = [2_000, 6_000, 10]
  const { front, calls, rejected, results } = await runBatch(t, 'shared-x', (nowMs) =>
    nowMs >= busyFromMs && nowMs < busyUntilMs ? left : RATE,
  )
  const between = (fromMs: number, untilMs: number) =>
    calls.filter((atMs) => atMs > fromMs && atMs <= untilMs).length
  const throttledAtMs = rejected[0]!
  t.ok(
    results.every(({ status }) => status === 'completed'),
    'each rejected request was repeated',
  )
  t.ok(throttledAtMs >= busyFromMs && throttledAtMs < busyUntilMs)
  t.ok(between(throttledAtMs - 1_000, throttledAtMs) >= RATE - 1)
  const next = between(throttledAtMs, throttledAtMs + 1_000)
  t.ok(next >= RATE / 2 - 1 && next <= RATE / 2 + 2, `${next} in the second after that: half of the rate`)
  t.ok(
    rejected.every((atMs) => atMs < busyUntilMs + 1_000),
    'none is rejected once the quota is whole again',
  )
  t.ok(between(busyUntilMs, busyUntilMs + 1_000) < RATE - 5, 'the rate recovers step by step')
  const lastMs = calls.at(-1)!
  t.ok(between(lastMs - 1_000, lastMs) >= RATE - 1, 'the full rate at the end')
  t.equal(mostInASecond(calls), RATE)
  t.strictSame(front.stopped.toSorted(), front.started.toSorted())
})
