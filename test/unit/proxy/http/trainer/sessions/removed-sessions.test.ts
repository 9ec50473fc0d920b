/** Sessions that are removed or reset while a client reads them: the client receives all turns, or an error. */
import t, { type Test } from 'tap'
import { packTokenData } from '../../../../../../src/protocol/token-data/token-data.ts'
import { exportSession } from '../../../../../../src/proxy/http/trainer/formats/export-session.ts'
import { sessionTracesToWire } from '../../../../../../src/proxy/http/trainer/gateway/serialise.ts'
import { DetailSelection } from '../../../../../../src/proxy/http/trainer/sessions/details.ts'
import { queryForest } from '../../../../../../src/proxy/http/trainer/sessions/forest.ts'
import { readRows } from '../../../../../../src/proxy/http/trainer/sessions/rows.ts'
import { writeSessionWithTurns } from '../../../../../../src/proxy/http/trainer/sessions/serialise.ts'
import { readTrajectories } from '../../../../../../src/proxy/http/trainer/sessions/trajectory-query.ts'
import { graphToWire, tracesToWire } from '../../../../../../src/proxy/http/trainer/traces/serialise.ts'
import { readTraces } from '../../../../../../src/proxy/session/trajectories/traces.ts'
import type { SessionRecord, TurnStore } from '../../../../../../src/proxy/store/port/turn-store.ts'
import { recordTurn } from '../../../../../helpers/sessions-api.ts'
import { openMemoryStore } from '../../../../../helpers/store-in-process.ts'

/** More turns than a store reads at once. */
const TURNS = 200

async function openSession(t: Test, turns = TURNS): Promise<{ store: TurnStore; session: SessionRecord }> {
  const store = await openMemoryStore()
  t.teardown(() => store.close())
  await createSession(store, 1)
  await recordTurns(store, turns)
  return { store, session: (await store.getSession('s'))! }
}

async function createSession(store: TurnStore, createdAtMs: number): Promise<void> {
  const policies = { ttlMs: null, metadata: {}, samplingParams: {}, trustAgent: false }
  await store.createSession({ sessionId: 's', createdAtMs, ...policies })
}

async function recordTurns(store: TurnStore, count: number): Promise<void> {
  for (let index = 0; index < count; index += 1)
    await recordTurn(store, 's', index, {
      promptTokenIds: Int32Array.of(100 + index, 2),
      completionTokenIds: Int32Array.of(5, 6),
      completionLogprobs: Float64Array.of(-1, -2),
      details: packTokenData({ advantages: [index + 1, 0] }),
    })
}

type Read = (store: TurnStore, session: SessionRecord) => AsyncIterable<string>

const QUERY = { select: 'all', side_calls: false, rejected: false, finished_only: false } as const
const ROWS = { ...QUERY, per_turn: false, mask_stale_tokens: false, images: false, details: 'advantages' }

const READS: Record<string, Read> = {
  turns: (store, session) => writeSessionWithTurns(store, session, store.readTurns('s'), 'all'),
  traces: (reader) =>
    tracesToWire(readTraces(reader, 's', {}), { reader, choice: DetailSelection.parse('') }),
  graph: (reader) => graphToWire(readTraces(reader, 's', {}), { reader, choice: DetailSelection.parse('') }),
  gateway: (store, session) => sessionTracesToWire(session, readTraces(store, 's', {})),
  trajectories: async function* (store, session) {
    yield* (await readTrajectories(store, session, ROWS)).toWire()
  },
  forest: async function* (store, session) {
    yield* await queryForest(store, [session], ROWS)
  },
  atif: async function* (store, session) {
    yield* await exportSession(store, session, { ...QUERY, format: 'atif', ids: true })
  },
}

for (const [name, read] of Object.entries(READS))
  for (const [how, change] of [
    ['removed', (store: TurnStore) => store.deleteSession('s')],
    ['reset', (store: TurnStore) => store.resetSession('s', 2)],
  ] as const)
    t.test(`${name} of a session that is ${how} meanwhile end with an error, before their end`, async (t) => {
      const { store, session } = await openSession(t)
      let text = ''
      let isChanged = false
      const readAll = async () => {
        for await (const chunk of read(store, session)) {
          text += chunk
          if (isChanged || text.length < 100) continue
          isChanged = true
          await change(store)
        }
      }
      await t.rejects(readAll(), { code: 'session_not_found' })
      t.throws(() => JSON.parse(text))
    })

t.test('a session that was created or filled again meanwhile is detected', async (t) => {
  const { store, session } = await openSession(t, 3)
  await t.resolves(readRows(store, session, { side_calls: false }))
  await store.resetSession('s', 2)
  const sampled = { completionTokenIds: Int32Array.of(7), completionLogprobs: Float64Array.of(-1) }
  for (let index = 0; index < 3; index += 1) await recordTurn(store, 's', index, sampled)
  await t.rejects(readRows(store, session, { side_calls: false }), { code: 'session_not_found' })
  await store.deleteSession('s')
  await createSession(store, 2)
  await recordTurns(store, 3)
  await t.rejects(readRows(store, session, { side_calls: false }), { code: 'session_not_found' })
})

t.test('a session that receives turns, and one that does not exist, are read to the end', async (t) => {
  const { store, session } = await openSession(t, 2)
  for (const [name, read] of Object.entries(READS)) {
    let text = ''
    for await (const chunk of read(store, session)) text += chunk
    t.doesNotThrow(() => JSON.parse(text), name)
    await recordTurn(store, 's', (await store.getSession('s'))!.nextIndex)
  }
  t.same(await Array.fromAsync(readTraces(store, 'unknown', {})), [])
})
