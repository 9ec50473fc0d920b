import t from 'tap'
import type { RolloutResult } from '../../../../src/rollout/agent-loop-output.ts'
import type { RolloutRequest } from '../../../../src/rollout/server/request.ts'
import { Rollouts } from '../../../../src/rollout/server/rollouts.ts'
import { until } from '../../../helpers/until.ts'

const REQUEST = { rollout_id: 'a', sample: { prompt: 'p' } }
const CONNECTED = new AbortController().signal

/** Rollouts whose first agent stops only when the test permits it. The second one completes at once. */
function createRollouts({ graceMs = 60_000 } = {}) {
  const stopped = Promise.withResolvers<void>()
  const removed: string[] = []
  const signals: AbortSignal[] = []
  const result = {
    rows: [{ metrics: { tries: 1 }, extra_fields: { session_id: 's', error: null } }],
    reward: 1,
    left_out_turns: 0,
  } as unknown as RolloutResult
  const rollouts = new Rollouts({
    concurrency: 2,
    graceMs,
    run: async (_request, signal) => {
      if (signals.push(signal) > 1) return result
      await stopped.promise
      signal.throwIfAborted()
      return result
    },
    onRemoved: (id) => removed.push(id),
  })
  return { rollouts, removed, signals, letStop: stopped.resolve }
}

t.test('a request for a rollout whose agent is being stopped starts a new one', async (t) => {
  const { rollouts, removed, signals, letStop } = createRollouts({ graceMs: 1 })
  const client = new AbortController()
  const first = rollouts.requestRollout(REQUEST, client.signal)
  await until(() => signals.length === 1)
  client.abort()
  await until(() => signals[0]!.aborted)

  const second = rollouts.requestRollout(REQUEST, CONNECTED)
  t.match(JSON.parse(await second.response), { rollout_id: 'a', status: 'done', reward: 1 })
  letStop()
  t.match(JSON.parse(await first.response), { status: 'cancelled' })
  t.match(rollouts.get('a'), { status: 'done' }, 'the end of the first one does not remove the second')
  t.strictSame(removed, [], 'nor does it release the id')
  const third = rollouts.requestRollout(REQUEST, CONNECTED)
  t.equal(await third.response, await second.response, 'its result is stored')
  t.strictSame(rollouts.ended, { done: 1, failed: 0, cancelled: 1 })
})

t.test('a rollout that is being deleted may be requested again, with another body', async (t) => {
  const { rollouts, removed, signals, letStop } = createRollouts()
  rollouts.requestRollout(REQUEST, CONNECTED)
  await until(() => signals.length === 1)
  const deleted = rollouts.remove('a')
  const other = { ...REQUEST, sample: { prompt: 'other' } }
  t.match(JSON.parse(await rollouts.requestRollout(other, CONNECTED).response), { status: 'done' })
  letStop()
  t.match(await deleted, { rollout_id: 'a', status: 'cancelled' })
  t.equal(rollouts.list().length, 1)
  t.strictSame(removed, [])
  await rollouts.remove('a')
  t.strictSame([rollouts.list(), removed], [[], ['a']])
})

t.test('stopping the rollouts waits for the agent of a replaced one', async (t) => {
  const { rollouts, signals, letStop } = createRollouts()
  rollouts.requestRollout(REQUEST, CONNECTED)
  await until(() => signals.length === 1)
  const deleted = rollouts.remove('a')
  await rollouts.requestRollout(REQUEST, CONNECTED).response
  let hasStopped = false
  const stopping = rollouts.stop(0).then(() => {
    hasStopped = true
  })
  await new Promise((resolve) => setImmediate(resolve))
  t.equal(hasStopped, false)
  letStop()
  await Promise.all([stopping, deleted])
})

t.test('a rollout whose result or request cannot be serialized fails', async (t) => {
  let deep: unknown = 1
  for (let level = 0; level < 20_000; level += 1) deep = [deep]
  const result = {
    rows: [{ metrics: { tries: 1 }, extra_fields: { session_id: 's', error: null } }],
    reward: 1,
    left_out_turns: 0,
  }
  const run = async ({ sample }: RolloutRequest) => ({ ...result, ...sample }) as unknown as RolloutResult
  const rollouts = new Rollouts({ concurrency: 2, graceMs: 60_000, run })
  for (const request of [{ sample: { reward: 1n } }, { sample: {}, agent_kwargs: { deep } }]) {
    const { response } = rollouts.requestRollout(request, CONNECTED)
    const detail = /^The result of the rollout cannot be serialized: /
    const { rows, ...failure } = JSON.parse(await response)
    t.match(failure, { status: 'failed', error: { code: 'internal', detail } })
    t.strictSame(rows, [])
  }
  t.strictSame(rollouts.ended, { done: 0, failed: 2, cancelled: 0 })
  t.strictSame([rollouts.list(), rollouts.running], [[], 0])
})
