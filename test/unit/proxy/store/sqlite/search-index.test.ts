import { copyFileSync, existsSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import type { TurnStore } from '../../../../../src/proxy/store/port/turn-store.ts'
import { openForReading } from '../../../../../src/proxy/store/sqlite/database.ts'
import { openSqliteStore } from '../../../../../src/proxy/store/sqlite/open.ts'
import { createReader } from '../../../../../src/proxy/store/sqlite/reader.ts'
import { SearchIndex } from '../../../../../src/proxy/store/sqlite/search-index.ts'
import { aTurn, createSession, record } from '../../../../conformance/turn-store.ts'
import { inProcess } from '../../../../helpers/store-in-process.ts'
import { until } from '../../../../helpers/until.ts'

const MEGABYTE = 1024 * 1024

const open = (path: string) => openSqliteStore({ path, durability: 'process', spawn: inProcess })

/** Opens a reader of a database, with its index or without. */
function openSearch(t: Test, path: string, isIndexed = true) {
  const db = openForReading(path)
  const index = isIndexed ? { path: `${path}-search`, mayWrite: true } : undefined
  const reader = createReader(db, MEGABYTE, index)
  let isOpen = true
  const close = () => {
    if (isOpen) reader.close()
    if (isOpen) db.close()
    isOpen = false
  }
  t.teardown(close)
  return {
    close,
    indexed: () => indexedTurns(path),
    indexAll: () => {
      while (reader.indexSome());
    },
    find: async (wanted: string) => {
      const part = { wanted, limit: 1_000, perSession: 1_000, before: Number.MAX_SAFE_INTEGER, full: [] }
      return (await reader.search(part)).hits.map(({ turnId }) => turnId)
    },
  }
}

function indexedTurns(path: string): number[] | undefined {
  const index = SearchIndex.openForReading(`${path}-search`)
  const turns = index?.listTurnsAfter(0, 1_000)
  index?.close()
  return turns
}

async function recordCompletions(store: TurnStore, texts: readonly string[], sessionId = 's'): Promise<void> {
  await store.createSession(createSession(sessionId))
  const { nextIndex } = (await store.getSession(sessionId))!
  for (const [position, completionText] of texts.entries()) {
    const index = nextIndex + position
    await record(store, aTurn(`${sessionId}${index}`, { sessionId, index }), { sessionId, completionText })
  }
}

t.test('searches have the same results with the index as without', async (t) => {
  const words = fc.constantFrom(
    'assert',
    'True',
    ' ',
    '\n',
    'ass',
    'ert',
    'é',
    'É',
    '海',
    '水',
    '"',
    '😀',
    '%',
    'x',
  )
  const text = fc.array(words, { minLength: 1, maxLength: 12 }).map((parts) => parts.join(''))
  let run = 0
  await fc.assert(
    fc.asyncProperty(
      fc.array(text, { maxLength: 12 }),
      fc.array(text, { minLength: 4 }),
      async (texts, wanted) => {
        const path = join(t.testdir(), `${run++}.db`)
        const store = await open(path)
        await recordCompletions(store, texts)
        const [indexed, plain] = [openSearch(t, path), openSearch(t, path, false)]
        indexed.indexAll()
        if (indexed.indexed()!.length !== texts.length) return false
        await recordCompletions(store, ['assert True, later'])
        for (const each of wanted)
          if (JSON.stringify(await indexed.find(each)) !== JSON.stringify(await plain.find(each)))
            return false
        for (const each of [indexed, plain]) each.close()
        await store.close()
        return true
      },
    ),
    { numRuns: 25 },
  )
})

t.test(
  'the first search starts the index, which is continued after a restart without a search',
  async (t) => {
    const path = join(t.testdir(), 'turns.db')
    const openIndexed = () => openSqliteStore({ path, durability: 'process', searchIndex: true })
    const first = await openIndexed()
    await recordCompletions(first, ['first text'])
    await first.close()
    const second = await openIndexed()
    await second.listSessions({ limit: 1 })
    t.notOk(existsSync(`${path}-search`), 'no search yet')
    const { hits } = await second.searchTurns({ wanted: 'first', limit: 1, perSession: 1 })
    t.equal(hits.length, 1)
    await until(() => indexedTurns(path)?.length === 1)
    await second.close()
    const third = await openIndexed()
    t.teardown(() => third.close())
    await recordCompletions(third, ['second text'])
    await until(() => indexedTurns(path)?.length === 2)
  },
)

t.test('the index covers the turns before the first open one, and continues after a restart', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const store = await open(path)
  t.teardown(() => store.close())
  await recordCompletions(store, ['first text'])
  await store.openTurn(aTurn('open', { index: 1 }))
  await recordCompletions(store, ['second text'])
  const before = openSearch(t, path)
  before.indexAll()
  t.strictSame(before.indexed(), [1])
  t.strictSame(await before.find('text'), ['s2', 's0'], 'turns outside of the index are searched directly')
  before.close()
  t.equal(statSync(`${path}-search`).mode & 0o077, 0, 'for its owner alone')
  await record(store, aTurn('late', { index: 3 }), { completionText: 'third text' })
  const { turnId, sessionId } = aTurn('open')
  await store.markUndelivered(sessionId, turnId, { code: 'agent_gone', message: '' })
  await store.deleteSession('s')
  await recordCompletions(store, ['fourth text'], 'later')
  const after = openSearch(t, path)
  t.strictSame(after.indexed(), [1], 'it is the earlier one')
  after.indexAll()
  t.strictSame(await after.find('text'), ['later0'], 'and a deleted session is in none')
})

t.test('turns that were deleted from the database are removed from the index', async (t) => {
  const path = join(t.testdir(), 'turns.db')
  const store = await open(path)
  await recordCompletions(store, ['some text', 'more text'], 'gone')
  await recordCompletions(store, ['other text'], 'stays')
  const first = openSearch(t, path)
  first.indexAll()
  t.strictSame(first.indexed(), [1, 2, 3])
  first.close()
  await store.deleteSession('gone')
  // Its rows are removed in small steps, while the writer is idle.
  await store.close()
  const second = await open(path)
  t.teardown(() => second.close())
  const search = openSearch(t, path)
  for (let attempts = 0; attempts < 100 && search.indexed()!.length > 1; attempts++) {
    await second.check()
    await new Promise((resolve) => setTimeout(resolve, 10))
    const later = openSearch(t, path)
    later.indexAll()
    later.close()
  }
  t.strictSame(search.indexed(), [3])
})

t.test('an index that is damaged, or of another database, is rebuilt', async (t) => {
  const folder = t.testdir()
  const path = join(folder, 'turns.db')
  const index = `${path}-search`
  const store = await open(path)
  await recordCompletions(store, ['first text'])
  await store.close()
  copyFileSync(path, join(folder, 'older.db'))
  const later = await open(path)
  await recordCompletions(later, ['second text'])
  await later.close()
  const full = openSearch(t, path)
  full.indexAll()
  t.strictSame(full.indexed(), [1, 2])
  full.close()

  for (const file of [path, `${path}-wal`, `${path}-shm`]) rmSync(file, { force: true })
  copyFileSync(join(folder, 'older.db'), path)
  const restored = openSearch(t, path)
  t.strictSame(restored.indexed(), [], 'a backup has other turns under the same numbers')
  restored.indexAll()
  restored.close()

  writeFileSync(index, 'no database '.repeat(1_000))
  const damaged = openSearch(t, path)
  t.strictSame(damaged.indexed(), [])
  damaged.indexAll()
  t.strictSame(await damaged.find('first'), ['s0'])
  damaged.close()
  rmSync(index)
  t.strictSame(await openSearch(t, path, false).find('first'), ['s0'])
  t.notOk(existsSync(index), 'a read-only process creates none')
})
