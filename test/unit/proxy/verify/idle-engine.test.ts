import t from 'tap'
import { selectIdleEngine } from '../../../../src/proxy/verify/idle-engine.ts'

interface EngineState {
  weightVersion?: string
  unavailable?: 'asleep'
  inFlight?: number
}

function selectName(
  engines: Record<string, EngineState>,
  turn: { engine: string; version: string | null },
  queued = 0,
) {
  const all = Object.entries(engines).map(([name, { weightVersion, unavailable }]) => ({
    client: { name, score: () => {} },
    watch: { healthy: true, unavailable, models: [], weightVersion },
  }))
  const members = Object.entries(engines).map(([name, { inFlight = 0 }]) => ({ name, inFlight, capacity: 4 }))
  const found = selectIdleEngine(all as never, { members, queued } as never, {
    engine: turn.engine,
    weightVersionEnd: turn.version,
  })
  return typeof found === 'object' ? found.client.name : found
}

t.test('a turn is scored by an engine with its weights during an update of the engines', (t) => {
  const engines = { a: { weightVersion: '2' }, b: { weightVersion: '1' }, c: { weightVersion: '1' } }
  t.equal(
    selectName(engines, { engine: 'a', version: '1' }),
    'b',
    'and not by the one that sampled it, which has others',
  )
  t.equal(
    selectName(engines, { engine: 'c', version: '1' }),
    'c',
    'by the one that sampled it where it still has them',
  )
  t.equal(
    selectName(engines, { engine: 'a', version: '0' }),
    'a',
    'where no engine has them, the one that sampled it reports this',
  )
  t.equal(
    selectName({ a: {}, b: {} }, { engine: 'b', version: null }),
    'b',
    'or where no engine reports weights',
  )
  t.end()
})

t.test('an engine that sleeps, serves a request, or has waiting requests is not used', (t) => {
  const turn = { engine: 'a', version: null }
  t.equal(selectName({ a: { unavailable: 'asleep' }, b: {} }, turn), 'b')
  t.equal(selectName({ a: { unavailable: 'asleep' } }, turn), undefined)
  t.equal(selectName({ a: { inFlight: 1 } }, turn), 'busy')
  t.equal(selectName({ a: { inFlight: 1 }, b: {} }, turn), 'b', 'another one is idle')
  const weights = { a: { weightVersion: '1', inFlight: 1 }, b: { weightVersion: '2' } }
  t.equal(selectName(weights, { engine: 'a', version: '1' }), 'busy', 'and other weights')
  t.equal(selectName({ a: {} }, turn, 1), 'busy')
  t.end()
})
