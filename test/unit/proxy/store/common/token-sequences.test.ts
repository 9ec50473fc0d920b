import { join } from 'node:path'
import t, { type Test } from 'tap'
import { packIds } from '../../../../../src/proxy/store/common/packing.ts'
import { TokenSequences } from '../../../../../src/proxy/store/common/token-sequences.ts'
import { openForWriting } from '../../../../../src/proxy/store/sqlite/database.ts'
import { prepareReaderTables } from '../../../../../src/proxy/store/sqlite/tables.ts'

/** So small that only the newest sequence is cached. */
const NO_CACHE = 1

function openSequences(t: Test) {
  const { db, close } = openForWriting(join(t.testdir(), 'turns.db'), 'process')
  t.teardown(close)
  const insert = db.prepare(`
    INSERT INTO turns (id, tree, call_index, turn_id, status, dialect, started_at_ms, retry_count, node, params,
      prompt_base, prompt_shared, prompt_rest)
    VALUES (@id, 1, @id, @id, 'completed', 'chat', 0, 0, 0, 0, @base, @shared, @rest)`)
  const sequences = new TokenSequences(prepareReaderTables(db), NO_CACHE)
  const store = (id: number, promptIds: Int32Array) => {
    const stored = sequences.pack({ id, tree: 1, node: 0 }, promptIds)
    insert.run({ id, ...stored })
    return stored
  }
  return { db, sequences, store }
}

/** Opens sequences that cache an earlier state of a turn. Its recorded prompt has one id, 7. */
function openOutdated(t: Test): TokenSequences {
  const { db, store } = openSequences(t)
  store(1, upTo(100))
  const sequences = new TokenSequences(prepareReaderTables(db), 1_000_000)
  t.strictSame(sequences.read(1).promptIds, upTo(100))
  db.prepare('UPDATE turns SET prompt_rest = ? WHERE id = 1').run(packIds(Int32Array.of(7)))
  return sequences
}

const upTo = (length: number) => Int32Array.from({ length }, (_, index) => index)

t.test('a prompt is stored as its difference from the turn that shares most with it', async (t) => {
  const { store } = openSequences(t)
  t.match(store(1, upTo(5000)), { base: null, shared: null })
  t.match(store(2, upTo(5003)), { base: 1, shared: 5000, rest: { length: 1 + 3 * 2 } })
  t.match(store(3, Int32Array.of(...upTo(2000), 7)), { shared: 2000 })
})

t.test('a prompt that shares almost nothing is stored completely', async (t) => {
  const { store } = openSequences(t)
  store(1, upTo(100))
  t.match(store(2, Int32Array.of(0, 1, 2, 99, 98)), { base: null, shared: null })
})

t.test('a prompt is stored as a difference from an intact one, if the nearest one is damaged', async (t) => {
  const { db, store } = openSequences(t)
  store(1, upTo(100))
  store(2, upTo(200))
  db.prepare('UPDATE turns SET ids_sum = 0 WHERE id = 2').run()
  t.match(store(3, upTo(300)), { base: 1, shared: 100 })
  db.prepare('UPDATE turns SET ids_sum = 0 WHERE id = 1').run()
  const fresh = new TokenSequences(prepareReaderTables(db), NO_CACHE)
  t.match(fresh.pack({ id: 4, tree: 1, node: 0 }, upTo(50)), { base: null }, 'all of them depend on it')
})

t.test('a chain of 10,000 turns is assembled from its first turn on', async (t) => {
  const { db, store } = openSequences(t)
  // Short prompts, each of which extends the previous one or is a part of it.
  const getPrompt = (id: number) => upTo(60 + (id % 50))
  db.transaction(() => {
    for (let id = 1; id <= 10_000; id += 1) store(id, getPrompt(id))
  })()
  const links = db.prepare('SELECT count(*) FROM turns WHERE prompt_base = id - 1').pluck()
  t.equal(links.get(), 9_999)
  const fresh = new TokenSequences(prepareReaderTables(db), NO_CACHE)
  t.strictSame(fresh.read(10_000).promptIds, getPrompt(10_000))
})

t.test('the cache of a deleted tree is removed with it, and no other', async (t) => {
  const sequences = openOutdated(t)
  sequences.forgetTree(2)
  t.strictSame(sequences.read(1).promptIds, upTo(100))
  sequences.forgetTree(1)
  t.strictSame(sequences.read(1).promptIds, Int32Array.of(7), 'the recorded state')
})

t.test('after a rollback no cached state is taken for recorded', async (t) => {
  const sequences = openOutdated(t)
  sequences.forget()
  t.strictSame(sequences.read(1).promptIds, Int32Array.of(7))
})
