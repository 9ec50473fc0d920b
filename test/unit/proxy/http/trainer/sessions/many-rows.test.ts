/** Sessions with many rows: other requests are served while their rows are assembled. */
import t, { type Test } from 'tap'
import { queryForest } from '../../../../../../src/proxy/http/trainer/sessions/forest.ts'
import { readRows, writeRowSummaries } from '../../../../../../src/proxy/http/trainer/sessions/rows.ts'
import { recordTurn } from '../../../../../helpers/sessions-api.ts'
import { openMemoryStore } from '../../../../../helpers/store-in-process.ts'

const ROWS = 50

async function openSession(t: Test) {
  const store = await openMemoryStore()
  t.teardown(() => store.close())
  const policies = { ttlMs: null, metadata: {}, samplingParams: {}, trustAgent: false }
  await store.createSession({ sessionId: 's', createdAtMs: 1, ...policies })
  for (let index = 0; index < ROWS; index += 1)
    await recordTurn(store, 's', index, { promptTokenIds: Int32Array.of(100 + index) })
  return { store, session: (await store.getSession('s'))! }
}

/** Counts the iterations of the event loop during a task. */
async function countIterations(task: () => Promise<unknown>): Promise<number> {
  let count = 0
  let next = setImmediate(function again() {
    count += 1
    next = setImmediate(again)
  })
  await task()
  clearImmediate(next)
  return count
}

t.test('summaries of rows are streamed, row by row', async (t) => {
  const { store, session } = await openSession(t)
  const { placed } = await readRows(store, session, { side_calls: false })
  const chunks: string[] = []
  const iterations = await countIterations(async () => {
    for await (const chunk of writeRowSummaries(placed)) chunks.push(chunk)
  })
  t.ok(iterations >= ROWS, `${iterations} iterations`)
  const { rows } = JSON.parse(chunks.join('')) as { rows: { row: number }[] }
  t.same(
    rows.map(({ row }) => row),
    [...Array(ROWS).keys()],
  )
  t.equal(chunks.length, ROWS + 2)
})

t.test('a forest is built row by row', async (t) => {
  const { store, session } = await openSession(t)
  const query = { side_calls: false, rejected: false }
  const iterations = await countIterations(() => queryForest(store, [session], query))
  t.ok(iterations >= ROWS, `${iterations} iterations`)
})
