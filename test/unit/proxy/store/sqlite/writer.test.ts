import t, { type Test } from 'tap'
import type { ThreadCommand } from '../../../../../src/proxy/store/common/calls.ts'
import { PendingCommands } from '../../../../../src/proxy/store/common/pending-commands.ts'
import type { TurnMessage } from '../../../../../src/proxy/store/common/turn-message.ts'
import { TurnSender } from '../../../../../src/proxy/store/common/turn-sender.ts'
import type { WriteMethods } from '../../../../../src/proxy/store/common/write-methods.ts'
import type { OpenTurn, TurnOutcome } from '../../../../../src/proxy/store/port/turn-store.ts'
import { anOutcome, aTurn } from '../../../../conformance/turn-store.ts'
import { toOutcomeMessage } from '../../../../helpers/prompt-ids.ts'
import { createSessionRow, openStoreWriter } from '../../../../helpers/store-writer.ts'

type Operation = [keyof WriteMethods, ...unknown[]]

function openWriter(t: Test) {
  const { db, writer, reader } = openStoreWriter(t)
  /**
   * Commits one group.
   * @returns the code of each operation's error, or null
   */
  const commit = (...operations: Operation[]) => {
    const group = operations.map(([method, ...args], id): ThreadCommand<WriteMethods> => {
      if (method === 'openTurn') return { id, method, args: [pack(args[0] as OpenTurn)] }
      return { id, method, args: method === 'closeTurn' ? [toOutcomeMessage(args[0] as TurnOutcome)] : args }
    })
    return writer.commit(group).map((reply) => ('error' in reply ? reply.error.code : null))
  }
  const count = (table: string) => db.prepare<[], number>(`SELECT count(*) FROM ${table}`).pluck().get()
  return { db, writer, reader, commit, count }
}

/** Packs a turn as the first one of its session. */
function pack(turn: OpenTurn): TurnMessage {
  return new TurnSender().pack(turn).sent
}

const CREATED: Operation = ['createSession', createSessionRow('s')]

t.test('an operation that fails does so alone in its group', async (t) => {
  const { commit, count } = openWriter(t)
  const codes = commit(
    CREATED,
    ['openTurn', aTurn('a')],
    ['openTurn', aTurn('b', { sessionId: 'none' })],
    ['openTurn', aTurn('a', { requestMessages: ['"left behind by nobody"'] })],
    ['closeTurn', anOutcome('a')],
  )
  t.strictSame(codes, [null, null, 'session_not_found', 'store_failed', null])
  t.equal(count('turns'), 1)
  t.equal(count('nodes'), 1, 'its writes before the failure are undone')
})

t.test('a full database fails the group without changes, and works again once there is space', async (t) => {
  const { db, commit, count } = openWriter(t)
  commit(CREATED, ['openTurn', aTurn('before')])
  db.pragma(`max_page_count = ${db.pragma('page_count', { simple: true })}`)
  const large = aTurn('large', { index: 1, params: 'p'.repeat(1_000_000) })
  t.ok(commit(['openTurn', large], ['closeTurn', anOutcome('before')]).includes('store_failed'))
  t.strictSame(commit(['openTurn', large]), ['store_failed'])
  t.equal(count('turns'), 1)
  t.equal(db.inTransaction, false)
  db.pragma('max_page_count = 1000000')
  t.strictSame(commit(['closeTurn', anOutcome('large')]), ['store_failed'], 'it was never recorded')
  t.strictSame(commit(['openTurn', large], ['closeTurn', anOutcome('large')]), [null, null])
})

t.test('a turn finds its recorded chunks, except for those that could not be recorded', async (t) => {
  const { db, writer, commit, count } = openWriter(t)
  commit(CREATED)
  const texts = Array.from({ length: 7_000 }, (_, index) =>
    JSON.stringify({ role: 'user', content: `${index}` }),
  )
  const turn = pack(aTurn('long', { requestMessages: texts, promptPieces: texts }))
  const waiting = new PendingCommands()
  waiting.push({ id: 1, method: 'recordTurn', args: [turn, toOutcomeMessage(anOutcome('long'))] })
  const failing = [1, 5]
  const errors: string[] = []
  let groups = 0
  for (let group = waiting.takeGroup(); group.length > 0; group = waiting.takeGroup()) {
    const pages = db.pragma('page_count', { simple: true })
    if (failing.includes(groups)) db.pragma(`max_page_count = ${pages}`)
    for (const reply of writer.commit(group)) if ('error' in reply) errors.push(reply.error.code)
    db.pragma('max_page_count = 1000000')
    groups += 1
  }
  t.ok(groups > 5, `${groups} groups`)
  t.ok(errors.length >= 2 && errors.every((code) => code === 'store_failed'), `${errors}`)
  t.equal(count('turns'), 1)
  t.equal(count('texts'), texts.length + 1, 'each once, and the parameters')
  const depths = db.prepare<[], number>('SELECT depth FROM nodes ORDER BY depth').pluck().all()
  t.equal(depths.at(-1), texts.length)
})

t.test('a commit that fails fails every operation of its group', async (t) => {
  const { db, commit, count } = openWriter(t)
  commit(CREATED)
  // A constraint that is checked at the commit, and not before, represents the disk.
  db.exec(`
    CREATE TABLE allowed (id INTEGER PRIMARY KEY);
    CREATE TABLE broken (id INTEGER REFERENCES allowed DEFERRABLE INITIALLY DEFERRED);
    CREATE TRIGGER breaks AFTER INSERT ON turns WHEN new.turn_id = 'bad' BEGIN INSERT INTO broken VALUES (1); END;`)
  const group: Operation[] = [
    ['openTurn', aTurn('good')],
    ['closeTurn', anOutcome('good')],
    ['openTurn', aTurn('bad')],
  ]
  t.strictSame(commit(...group), ['store_failed', 'store_failed', 'store_failed'])
  t.equal(count('turns'), 0)
  t.strictSame(
    commit(['closeTurn', anOutcome('bad')]),
    ['store_failed'],
    'nor can the rejected turn be closed',
  )
  t.strictSame(commit(['openTurn', aTurn('good')], ['closeTurn', anOutcome('good')]), [null, null])
})

t.test('ids of a group that was rolled back are not confused with those of the next', async (t) => {
  const { db, reader, commit } = openWriter(t)
  commit(CREATED)
  const ids = (first: number) => Int32Array.from({ length: 100 }, (_, index) => first + index)
  db.exec(`
    CREATE TABLE allowed (id INTEGER PRIMARY KEY);
    CREATE TABLE broken (id INTEGER REFERENCES allowed DEFERRABLE INITIALLY DEFERRED);
    CREATE TRIGGER breaks AFTER INSERT ON turns WHEN new.turn_id = 'bad' BEGIN INSERT INTO broken VALUES (1); END;`)
  commit(
    ['openTurn', aTurn('a')],
    ['closeTurn', anOutcome('a', { promptTokenIds: ids(0) })],
    ['openTurn', aTurn('bad', { index: 1 })],
  )
  commit(['openTurn', aTurn('b')], ['closeTurn', anOutcome('b', { promptTokenIds: ids(500) })])
  commit(['openTurn', aTurn('c', { index: 1 })], ['closeTurn', anOutcome('c', { promptTokenIds: ids(0) })])
  const { turns } = reader.readPage(1, 's')
  t.strictSame(
    turns.map((turn) => turn.promptTokenIds),
    [ids(500), ids(0)],
  )
})

t.test('a deleted session is gone immediately, and its rows in small steps', async (t) => {
  const { writer, reader, commit, count } = openWriter(t)
  commit(CREATED)
  for (let index = 0; index < 300; index += 1) {
    const requestMessages = [`"message ${index}"`]
    commit(['openTurn', aTurn(`t${index}`, { index, requestMessages })])
  }
  commit(['deleteSession', 's'], CREATED, ['openTurn', aTurn('kept')])
  t.match(reader.readPage(1, 's').turns, { length: 1 })
  let steps = 0
  let most = 0
  let rows = count('turns')! + count('nodes')! + count('texts')!
  while (writer.purge()) {
    const left = count('turns')! + count('nodes')! + count('texts')!
    most = Math.max(most, rows - left)
    rows = left
    steps += 1
  }
  t.ok(steps > 10)
  t.ok(most <= 64, 'no step removes many')
  t.strictSame([count('turns'), count('trees')], [1, 1])
  t.match(reader.readPage(2, 's').turns, [{ turnId: 'kept' }])
})

t.test('the log is checkpointed when it has grown, and its size is limited', async (t) => {
  const { db, writer, commit } = openWriter(t)
  commit(CREATED)
  const logPages = () => (db.pragma('wal_checkpoint(NOOP)') as { log: number }[])[0]!.log
  let most = 0
  for (let index = 0; index < 60; index += 1) {
    commit(['openTurn', aTurn(`t${index}`, { index, params: `${index}`.repeat(400_000) })])
    most = Math.max(most, logPages())
    writer.checkpointIfDue()
  }
  t.ok((db.pragma('page_count', { simple: true }) as number) > 2 * most, 'much more was written')
  t.ok(most < 5000, `the log had ${most} pages at most`)
})

t.test('a session of 3,000 turns is read in order with little memory for ids', async (t) => {
  const { reader, commit } = openWriter(t)
  commit(CREATED)
  const turns = 3_000
  const operations: Operation[] = []
  for (let index = 0; index < turns; index += 1) {
    // The window moves, so that each turn shares most ids with the previous one and none contains all of
    // them.
    const promptTokenIds = Int32Array.from({ length: 50 }, (_, i) => (i < 40 ? i : index))
    operations.push(['openTurn', aTurn(`t${index}`, { index })])
    operations.push(['closeTurn', anOutcome(`t${index}`, { promptTokenIds })])
  }
  for (let index = 0; index < operations.length; index += 500) commit(...operations.slice(index, index + 500))
  let read = 0
  for (let done = false; !done; ) {
    const page = reader.readPage(1, 's')
    for (const turn of page.turns) if (turn.index === read && turn.promptTokenIds[49] === read) read += 1
    done = page.done
  }
  t.equal(read, turns)
})
