import t from 'tap'
import type { BackendStatus } from '../../../../src/proxy/engines/port/backend.ts'
import { expose } from '../../../../src/proxy/metrics/exposition.ts'
import { Metrics } from '../../../../src/proxy/metrics/metrics.ts'
import { readBackend } from '../../../../src/proxy/metrics/state.ts'
import { ScriptedBackend } from '../../../helpers/scripted-backend.ts'

const member = (name: string) => ({
  name,
  kind: 'vllm',
  healthy: true,
  inFlight: 2,
  capacity: 10,
  models: [],
  takesTokenIds: true,
  weightVersion: '7',
})

/** Returns the samples of members after a scrape of this state. */
function getMemberLines(metrics: Metrics, status: BackendStatus, openTurns = 0): string[] {
  const backend = new ScriptedBackend()
  backend.getStatus = () => status
  readBackend(metrics, backend, openTurns)
  return expose(metrics.families)
    .text.split('\n')
    .filter((line) => line.includes('{member=') || line.includes('{phase='))
}

t.test('the series of a member are removed with it', async (t) => {
  const metrics = new Metrics()
  const both = getMemberLines(metrics, { members: [member('a'), member('b')], queued: 0 })
  t.ok(both.includes('llm_proxy_member_up{member="a"} 1'))
  t.ok(both.includes('llm_proxy_weight_version_info{member="a",weight_version="7"} 1'))
  const one = getMemberLines(metrics, { members: [member('b')], queued: 0 })
  t.notMatch(one.join('\n'), 'member="a"')
  t.ok(one.includes('llm_proxy_member_capacity{member="b"} 10'))
})

t.test('64 members have their own series, and the others share one', async (t) => {
  const members = Array.from({ length: 70 }, (_, i) => member(`e${i}`))
  const lines = getMemberLines(new Metrics(), { members, queued: 0 })
  t.equal(lines.filter((line) => line.startsWith('llm_proxy_member_up{')).length, 65)
  t.ok(lines.includes('llm_proxy_member_up{member="other"} 6'))
  t.ok(lines.includes('llm_proxy_member_calls_in_flight{member="other"} 12'))
})

t.test('each open turn is in one phase', async (t) => {
  const lines = getMemberLines(new Metrics(), { members: [member('a')], queued: 3 }, 9)
  for (const [phase, count] of Object.entries({ queued: 3, engine: 2, proxy: 4 })) {
    t.ok(lines.includes(`llm_proxy_turns_in_flight{phase="${phase}"} ${count}`), phase)
  }
})
