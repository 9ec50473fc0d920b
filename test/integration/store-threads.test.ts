import { join } from 'node:path'
import type { Worker } from 'node:worker_threads'
import t from 'tap'
import { readTrajectories } from '../../src/proxy/http/trainer/sessions/trajectory-query.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { anOutcome, aTurn, createSession, getTurns, record } from '../conformance/turn-store.ts'
import { startSessionsApi } from '../helpers/sessions-api.ts'

const QUERY = {
  select: 'all',
  per_turn: false,
  mask_stale_tokens: false,
  images: false,
  side_calls: false,
  rejected: false,
  finished_only: true,
} as const

/** Opens a store with access to its threads, to break them. */
async function openWithThreads(path: string) {
  const threads: Worker[] = []
  const take = (thread: Worker) => threads.push(thread)
  process.on('worker', take)
  const store = await openSqliteStore({ path, durability: 'process' })
  process.off('worker', take)
  const [writer, reader] = threads as [Worker, Worker]
  return { store, writer, reader }
}

t.test('when the writer thread dies, pending and later requests are rejected', async (t) => {
  const { store, writer } = await openWithThreads(join(t.testdir(), 'turns.db'))
  await store.createSession(createSession('s'))
  const ended = writer.terminate()
  const pending = store.closeTurn(anOutcome('a'))
  void store.openTurn(aTurn('nobody awaits this'))
  await t.rejects(pending, { code: 'store_failed', message: /writer thread/ })
  await ended
  await t.rejects(store.endSession('s', 'completed', 1), { code: 'store_failed' })
  t.match(await store.getSession('s'), { sessionId: 's' }, 'reads continue')
  await store.close()
})

t.test('when the reader thread dies, reads are rejected and writes continue', async (t) => {
  const { store, reader } = await openWithThreads(join(t.testdir(), 'turns.db'))
  await store.createSession(createSession('s'))
  for (let index = 0; index < 100; index += 1) await record(store, aTurn(`t${index}`, { index }))
  const reading = store.readTurns('s')[Symbol.asyncIterator]()
  await reading.next()
  await reader.terminate()
  await t.rejects(getTurns(store), { code: 'store_failed', message: /reader thread/ })
  await t.resolves(async () => {
    await reading.return?.()
  }, 'a cancelled read is not a failure')
  await t.resolves(record(store, aTurn('after', { index: 100 })))
  await store.close()
})

for (const which of ['writer', 'reader'] as const) {
  t.test(`a store whose ${which} thread dies reports the loss`, async (t) => {
    const opened = await openWithThreads(join(t.testdir(), 'turns.db'))
    await opened[which].terminate()
    t.match(await opened.store.lost, { code: 'store_failed', message: new RegExp(`${which} thread`) })
    await opened.store.close()
  })
}

t.test('a store that is closed reports no loss', async (t) => {
  const { store } = await openWithThreads(join(t.testdir(), 'turns.db'))
  let isLost = false
  void store.lost.then(() => {
    isLost = true
  })
  await store.close()
  t.equal(isLost, false)
})

t.test('health fails while nothing can be recorded', async (t) => {
  const { store, writer } = await openWithThreads(join(t.testdir(), 'turns.db'))
  const { call } = await startSessionsApi(t, store)
  t.match(await call('GET', '/health'), { status: 200, body: { status: 'ok' } })
  await writer.terminate()
  t.match(await call('GET', '/health'), { status: 503, body: { status: 'store_failed' } })
})

t.test('a read after an awaited change sees it', async (t) => {
  const { store } = await openWithThreads(join(t.testdir(), 'turns.db'))
  t.teardown(() => store.close())
  await store.createSession(createSession('s'))
  for (let index = 0; index < 200; index += 1) {
    await record(store, aTurn(`t${index}`, { index }))
    const session = await store.getSession('s')
    if (session?.turnCount !== index + 1) t.fail(`turn ${index} is not seen`)
  }
  t.equal((await getTurns(store)).length, 200)
})

/** Creates enough ids to be worth a transfer. */
function longIds(): Int32Array {
  return Int32Array.from({ length: 2000 }, (_, index) => index)
}

t.test('long arrays are transferred to the writer and from the reader, not copied', async (t) => {
  const { store } = await openWithThreads(join(t.testdir(), 'turns.db'))
  t.teardown(() => store.close())
  await store.createSession(createSession('s'))
  const completionTokenIds = longIds()
  await record(store, aTurn('a'), { completionTokenIds })
  t.equal(completionTokenIds.length, 0, "the caller's array is detached")
  await t.rejects(store.closeTurn(anOutcome('b', { completionTokenIds })), { code: 'store_failed' })
  const view = longIds().subarray(10)
  await record(store, aTurn('b', { index: 1 }), { completionTokenIds: view })
  t.equal(view.length, 1990, 'a part of a larger array is copied: the rest may belong to another owner')
  const [, second] = await getTurns(store)
  t.strictSame(second?.completionTokenIds, view)
})

t.test('a turn that cannot be transferred blocks no other of the same group', async (t) => {
  const { store } = await openWithThreads(join(t.testdir(), 'turns.db'))
  t.teardown(() => store.close())
  await store.createSession(createSession('s'))
  const completionTokenIds = longIds()
  await record(store, aTurn('a'), { completionTokenIds })
  const closings = [
    record(store, aTurn('b', { index: 1 })),
    record(store, aTurn('c', { index: 2 }), { completionTokenIds }),
    record(store, aTurn('d', { index: 3 })),
  ]
  const outcomes = await Promise.allSettled(closings)
  t.strictSame(
    outcomes.map(({ status }) => status),
    ['fulfilled', 'rejected', 'fulfilled'],
  )
  t.match(await getTurns(store), [{ turnId: 'a' }, { turnId: 'b' }, { turnId: 'd' }])
})

t.test('the reset of a session ends a read in progress', async (t) => {
  const { store } = await openWithThreads(join(t.testdir(), 'turns.db'))
  t.teardown(() => store.close())
  await store.createSession(createSession('s'))
  for (let index = 0; index < 200; index += 1) void store.openTurn(aTurn(`t${index}`, { index }))
  await store.closeTurn(anOutcome('t0'))
  let count = 0
  for await (const turn of store.readTurns('s')) {
    count += 1
    if (turn.index === 0) await store.resetSession('s', 5000)
  }
  t.ok(count < 200, `${count} turns were read`)
})

for (const how of ['removed', 'reset'] as const)
  t.test(
    `a session that is ${how} while its rows are read has none, instead of those of its first turns`,
    async (t) => {
      const { store } = await openWithThreads(join(t.testdir(), 'turns.db'))
      t.teardown(() => store.close())
      await store.createSession(createSession('s'))
      for (let index = 0; index < 200; index += 1) void record(store, aTurn(`t${index}`, { index }))
      const session = (await store.endSession('s', 'completed', 5_000))!
      t.ok(await readTrajectories(store, session, QUERY), 'undisturbed it has rows')
      const change = {
        removed: () => store.deleteSession('s'),
        reset: async () => {
          await store.resetSession('s', 6_000)
          await store.endSession('s', 'completed', 7_000)
        },
      }
      const disturbed = {
        getSession: (sessionId: string) => store.getSession(sessionId),
        readDetails: store.readDetails.bind(store),
        async *readSteps(sessionId: string) {
          for await (const turn of store.readSteps(sessionId)) {
            if (turn.index === 0) await change[how]()
            yield turn
          }
        },
      }
      await t.rejects(readTrajectories(disturbed, session, QUERY), {
        code: 'session_not_found',
        message: /while it was read/,
      })
    },
  )
