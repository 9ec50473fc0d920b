/**
 * Counts the requests that reach AgentCore by time, with real sockets and a fake clock that advances when a request has
 * arrived, so that the load of the machine does not change the counts.
 */
import { setImmediate } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { AgentCoreRunner } from '../../src/rollout/runners/agentcore/agentcore-runner.ts'
import { createAgentTask } from '../helpers/agent-task.ts'
import { type FakeAgentCore, startFakeAgentCore } from '../helpers/fake-agentcore.ts'
import { FakeClock } from '../helpers/fake-clock.ts'

const ROLLOUTS = 200
const RATE = 25
const NEVER = new AbortController().signal

interface Batch {
  agentCore: FakeAgentCore
  /** Times of all requests that reached AgentCore, including rejected ones. */
  requestsMs: number[]
  rejectedMs: number[]
  /** The prompts of the tasks' agents, in order. */
  prompts: number[]
  results: readonly { status: string }[]
  progress: string
}

/**
 * Runs a batch whose agents respond at once: a start and a stop for each.
 * @param getLimit returns the requests per second that AgentCore accepts
 */
async function runBatch(t: Test, name: string, getLimit: (nowMs: number) => number): Promise<Batch> {
  const clock = new FakeClock()
  const batch = { requestsMs: [] as number[], rejectedMs: [] as number[], prompts: [] as number[] }
  const accepts = () => {
    const nowMs = clock.nowMs()
    batch.requestsMs.push(nowMs)
    const isAccepted = countSince(batch.requestsMs, nowMs - 1_000) <= getLimit(nowMs)
    if (!isAccepted) batch.rejectedMs.push(nowMs)
    return isAccepted
  }
  const agentCore = await startFakeAgentCore(
    t,
    (_, { number }) => {
      batch.prompts.push(number)
      return { body: '{"reward": 1}' }
    },
    { accepts },
  )
  const arn = `arn:aws:bedrock-agentcore:us-west-2:123456789012:runtime/${name}`
  const ledger = `${t.testdir({})}/ledger`
  const runner = new AgentCoreRunner({ arn, ledger, clock, tps: RATE, retryBaseMs: 1, warn: () => {} })
  const tasks = Array.from({ length: ROLLOUTS }, (_, number) => createAgentTask({ sample: { number } }))
  const running = Promise.all(tasks.map((task) => runner.run(task, NEVER))).then(async (results) => {
    await runner.close()
    return results
  })
  let isOver = false
  const over = running.finally(() => {
    isOver = true
  })
  const hasCountedThrottles = () => runner.describe().includes(`${batch.rejectedMs.length} calls throttled`)
  while (!isOver) {
    const arrived = batch.requestsMs.length
    if (!clock.advanceToNext()) await setImmediate()
    else
      while (!isOver && (batch.requestsMs.length === arrived || !hasCountedThrottles())) await setImmediate()
  }
  return { ...batch, agentCore, results: await over, progress: runner.describe() }
}

/** Counts the requests after `sinceMs`; `requestsMs` is sorted. */
function countSince(requestsMs: readonly number[], sinceMs: number): number {
  return requestsMs.length - 1 - requestsMs.findLastIndex((atMs) => atMs <= sinceMs)
}

/** Returns the largest number of requests in one second. */
function countBusiestSecond(requestsMs: readonly number[]): number {
  return Math.max(
    ...requestsMs.map((_, last) => countSince(requestsMs.slice(0, last + 1), requestsMs[last]! - 1_000)),
  )
}

t.test('200 rollouts send at most 25 requests in each second, in order of arrival', async (t) => {
  const { agentCore, requestsMs, rejectedMs, prompts, results, progress } = await runBatch(
    t,
    'steady-x',
    () => RATE,
  )
  t.ok(results.every(({ status }) => status === 'completed'))
  t.strictSame(rejectedMs, [])
  t.equal(requestsMs.length, 2 * ROLLOUTS, 'a start and a stop each')
  t.equal(countBusiestSecond(requestsMs), RATE)
  t.ok(requestsMs.at(-1)! - requestsMs[0]! <= requestsMs.length * (1_000 / RATE), 'the full rate is used')
  t.strictSame(
    prompts,
    Array.from({ length: ROLLOUTS }, (_, number) => number),
  )
  t.strictSame(agentCore.stopped.toSorted(), agentCore.started.toSorted())
  t.match(progress, /200 started, 0 running, 0 waiting, 200 done, 0 failed, 0 calls throttled/)
})

t.test('the rate halves while other clients use the quota, and recovers', async (t) => {
  const [busyFromMs, busyUntilMs, remainingRate] = [2_000, 6_000, 10]
  const { agentCore, requestsMs, rejectedMs, results } = await runBatch(t, 'shared-x', (nowMs) =>
    nowMs >= busyFromMs && nowMs < busyUntilMs ? remainingRate : RATE,
  )
  const between = (fromMs: number, untilMs: number) =>
    requestsMs.filter((atMs) => atMs > fromMs && atMs <= untilMs).length
  const throttledAtMs = rejectedMs[0]!
  t.ok(
    results.every(({ status }) => status === 'completed'),
    'each rejected request was retried',
  )
  t.ok(throttledAtMs >= busyFromMs && throttledAtMs < busyUntilMs)
  t.ok(between(throttledAtMs - 1_000, throttledAtMs) >= RATE - 1)
  const next = between(throttledAtMs, throttledAtMs + 1_000)
  t.ok(next >= RATE / 2 - 1 && next <= RATE / 2 + 2, `${next} in the second after that: half of the rate`)
  t.ok(
    rejectedMs.every((atMs) => atMs < busyUntilMs + 1_000),
    'AgentCore rejects none after the complete quota is available again',
  )
  t.ok(between(busyUntilMs, busyUntilMs + 1_000) < RATE - 5, 'the rate recovers step by step')
  const lastMs = requestsMs.at(-1)!
  t.ok(between(lastMs - 1_000, lastMs) >= RATE - 1, 'the full rate at the end')
  t.equal(countBusiestSecond(requestsMs), RATE)
  t.strictSame(agentCore.stopped.toSorted(), agentCore.started.toSorted())
})
