import t from 'tap'
import { ProxyError } from '../../../../src/base/errors.ts'
import { PromptIds } from '../../../../src/protocol/token-ids/prompt-ids.ts'
import { expose } from '../../../../src/proxy/metrics/exposition.ts'
import { Metrics } from '../../../../src/proxy/metrics/metrics.ts'
import { TurnWatch } from '../../../../src/proxy/metrics/turn-watch.ts'
import type { TurnStore } from '../../../../src/proxy/store/port/turn-store.ts'
import { DEFAULT_TURN, recordTurn } from '../../../helpers/sessions-api.ts'
import { openMemoryStore } from '../../../helpers/store-in-process.ts'

const session = {
  sessionId: 's',
  createdAtMs: 0,
  ttlMs: null,
  metadata: {},
  samplingParams: {},
  trustAgent: false,
}

async function openWatchedStore(broken: Partial<TurnStore> = {}) {
  const metrics = new Metrics()
  const watch = new TurnWatch(metrics)
  const inner = Object.assign(await openMemoryStore(), broken)
  const store = watch.watchStore(inner)
  await store.createSession(session)
  const has = (line: string) => expose(metrics.families).text.includes(`\nllm_proxy_${line}\n`)
  return { store, inner, watch, has }
}

t.test('a turn is counted with its agent role, its reason and its weights', async (t) => {
  const { store, watch, has } = await openWatchedStore()
  await recordTurn(store, 's', 0, {
    retryCount: 2,
    annotations: JSON.stringify({ line: { told: 'subagent:17', rule: 'header' } }),
    exact: false,
    inexactReason: 'the engine counted 9 completion tokens but reported 3 ids',
    weightVersionStart: '1',
    weightVersionEnd: '2',
  })
  t.equal(watch.openCount, 0)
  t.ok(has('turns_total{dialect="chat",outcome="completed"} 1'))
  t.ok(has('turns_by_line_total{line="subagent"} 1'), 'subagents are many, and share one label')
  t.ok(has('inexact_turns_total{reason="counts_differ"} 1'))
  t.ok(has('weight_change_turns_total 1'))
  t.ok(has('client_retries_total 1'))
  t.ok(has('prompt_tokens_total 2') && has('completion_tokens_total 1'))
})

t.test('a turn whose reasoning effort was adapted is counted with both efforts', async (t) => {
  const { store, has } = await openWatchedStore()
  const adapt = (sent: string | null) => ({
    annotations: JSON.stringify({ reasoning_effort: { requested: 'none', sent } }),
  })
  await recordTurn(store, 's', 0, adapt(null))
  await recordTurn(store, 's', 1, adapt('low'))
  await recordTurn(store, 's', 2, { annotations: '{}' })
  t.ok(has('reasoning_efforts_adapted_total{requested="none",sent="omitted"} 1'))
  t.ok(has('reasoning_efforts_adapted_total{requested="none",sent="low"} 1'))
})

t.test('if the engine reported no ids, its own counts are used', async (t) => {
  const { store, has } = await openWatchedStore()
  const none = { promptTokenIds: new Int32Array(), completionTokenIds: new Int32Array() }
  await recordTurn(store, 's', 0, { ...none, usage: '{"prompt_tokens":7,"completion_tokens":5}' })
  t.ok(has('prompt_tokens_total 7') && has('completion_tokens_total 5'))
})

t.test('a finish reason of a single engine is "other"', async (t) => {
  const { store, has } = await openWatchedStore()
  await recordTurn(store, 's', 0, { finishReason: 'sensitive-4711' })
  t.ok(has('finish_reasons_total{reason="other"} 1'))
})

t.test('a turn is open until it is closed', async (t) => {
  const { store, watch } = await openWatchedStore()
  await store.openTurn({ ...DEFAULT_TURN, turnId: 'a', sessionId: 's', index: 0, lastMessage: undefined })
  t.equal(watch.openCount, 1)
  await store.closeTurn({ ...DEFAULT_TURN, promptTokenIds: PromptIds.of(1), turnId: 'a', sessionId: 's' })
  t.equal(watch.openCount, 0)
})

t.test('a session that had ended is not counted again', async (t) => {
  const { store, has } = await openWatchedStore()
  await store.endSession('s', 'completed', 5)
  await store.endSession('s', 'aborted', 6)
  t.ok(has('sessions_ended_total{status="completed"} 1'))
  t.notOk(has('sessions_ended_total{status="aborted"} 1'))
})

t.test('a change that could not be committed is counted, and still rejected', async (t) => {
  const full = new ProxyError('store_failed', 'the disk is full')
  const { store, has } = await openWatchedStore({ setReward: () => Promise.reject(full) })
  await t.rejects(store.setReward('s', { reward: 1, components: {} }, 5), full)
  t.ok(has('store_failures_total 1'))
  t.ok(has('session_reward_count 0'))
})

t.test('methods that are not observed are unchanged', async (t) => {
  const { store, inner } = await openWatchedStore()
  t.type(store.lost, Promise)
  t.equal(store.endedWell, inner.endedWell)
  t.equal((await store.getSession('s'))?.sessionId, 's')
})
