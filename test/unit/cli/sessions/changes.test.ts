/** The commands that change sessions directly in the database, without a proxy. */
import { existsSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import t, { type Test } from 'tap'
import { openSqliteStore } from '../../../../src/proxy/store/sqlite/open.ts'
import { aTurn, createSession, record } from '../../../conformance/turn-store.ts'
import { runCommands } from '../../../helpers/run-commands.ts'
import { inProcess } from '../../../helpers/store-in-process.ts'

const openStore = (path: string) => openSqliteStore({ path, durability: 'process', spawn: inProcess })

async function recordSessions(t: Test): Promise<string> {
  const path = join(t.testdir({}), 'turns.db')
  const store = await openStore(path)
  for (const sessionId of ['done', 'bad', 'runs/one/x']) {
    await store.createSession(createSession(sessionId))
    await record(store, aTurn(`${sessionId}-0`, { sessionId, index: 0 }))
  }
  await store.close()
  return path
}

t.test('sessions in a database are changed without a proxy in the same way as by a proxy', async (t) => {
  const db = await recordSessions(t)
  // The state after a crash: the pid of the process instead of the mark of an orderly shutdown.
  const lock = new Database(`${db}.lock`)
  lock.pragma('user_version = 1')
  lock.close()
  const reward = ['reward', 'done', '0.5', '--turns', '{"0":0.25}', '--components']
  const outputs = await runCommands(
    [
      ['complete', 'done', 'none'],
      [...reward, '{"tests":1}'],
      [...reward, '{"tests":"many"}'],
      ['abort', 'bad', '--json'],
      ['delete', 'runs/one/x', 'none'],
    ].map((command) => ['sessions', ...command, '--db', db]),
  )
  t.match(outputs, [
    { code: 1, stdout: 'done: completed\nnone: not found\n', stderr: '' },
    { code: 0, stdout: 'done: reward 0.5\n', stderr: '' },
    { code: 1, stdout: '', stderr: "llm-proxy: 'components.tests' must be number\n" },
    { code: 0, stderr: '' },
    { code: 1, stdout: 'runs/one/x: deleted\nnone: not found\n', stderr: '' },
  ])
  t.match(JSON.parse(outputs[3]!.stdout), { session_id: 'bad', status: 'aborted', turn_count: 1 })
  const store = await openStore(db)
  t.teardown(() => store.close())
  t.match(await store.getSession('done'), {
    status: 'completed',
    reward: { reward: 0.5, components: { tests: 1 }, turns: { 0: 0.25 } },
  })
  t.match(await store.getSession('bad'), { status: 'aborted' })
  t.equal(await store.getSession('runs/one/x'), undefined)
  t.equal(store.endedWell, false, 'the next proxy still detects that the last one crashed')
})

t.test('a change that is impossible is reported with its alternative', async (t) => {
  const db = await recordSessions(t)
  const store = await openStore(db)
  t.teardown(() => store.close())
  const missing = `${db}.misspelt`
  const nowhere = 'http://127.0.0.1:1'
  const remove = ['sessions', 'delete', 'done']
  const outputs = await runCommands([
    [...remove, '--db', db],
    [...remove, '--db', missing],
    [...remove, '--db', db, '--url', nowhere],
    [...remove, '--url', nowhere],
  ])
  t.match(outputs, [
    {
      code: 1,
      stderr: /turns\.db is in use by .* \(process \d+\): stop it, or name it with --url instead of --db\n$/,
    },
    { code: 1, stderr: `llm-proxy: there is no database ${missing}: name one with --db\n` },
    { code: 2, stderr: 'llm-proxy: --url and --db exclude each other: give one of them\n' },
    {
      code: 1,
      stderr: /no proxy answers at .*:1: start it, .* or name a database that no proxy has open with --db: /,
    },
  ])
  t.notOk(existsSync(missing))
  t.match(await store.getSession('done'), { status: 'active' })
})
