import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t from 'tap'
import { type Durability, openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { turnsOf } from '../conformance/turn-store.ts'
import { startChild } from '../helpers/children.ts'

const CHILD = join(import.meta.dirname, 'store-crash-child.ts')
const ACKNOWLEDGED_BEFORE_KILL = [1, 40, 300]

/** Lets a child put turns on record and kills it after so many. @returns every turn that it acknowledged */
async function killAfter(acknowledgements: number, path: string, durability: Durability, round: number) {
  const child = startChild(process.execPath, [CHILD, path, durability, String(round)])
  child.stderr.pipe(process.stderr)
  const exited = once(child, 'exit')
  const acknowledged: string[] = []
  for await (const line of createInterface(child.stdout)) {
    acknowledged.push(line)
    if (acknowledged.length === acknowledgements) child.kill('SIGKILL')
  }
  const [, signal] = await exited
  return { acknowledged, signal }
}

for (const durability of ['power', 'process'] as const) {
  t.test(`SIGKILL loses no acknowledged turn, with durability ${durability}`, async (t) => {
    const path = join(t.testdir(), 'turns.db')
    const everAcknowledged: string[] = []
    for (const [round, acknowledgements] of ACKNOWLEDGED_BEFORE_KILL.entries()) {
      const { acknowledged, signal } = await killAfter(acknowledgements, path, durability, round)
      t.equal(signal, 'SIGKILL')
      t.ok(acknowledged.length >= acknowledgements)
      everAcknowledged.push(...acknowledged)
    }
    const store = await openSqliteStore({ path, durability })
    t.teardown(() => store.close())

    const { sessions } = await store.listSessions({ limit: 1000 })
    const completed = new Set<string>()
    const halfWritten: unknown[] = []
    for (const { sessionId, turnCount } of sessions) {
      const turns = await turnsOf(store, sessionId)
      if (turns.length !== turnCount) halfWritten.push({ sessionId, turnCount })
      for (const turn of turns) {
        const interrupted = turn.status === 'interrupted' && turn.completionText === null
        const whole =
          turn.completionText === `answer ${turn.index}` &&
          turn.requestMessages.length === turn.index &&
          turn.completionTokenIds.length === 2
        if (turn.status === 'completed') completed.add(`${sessionId} ${turn.turnId}`)
        if (turn.turnId === 'never-closed' ? !interrupted : !interrupted && !whole) halfWritten.push(turn)
      }
    }
    t.strictSame(
      everAcknowledged.filter((turn) => !completed.has(turn)),
      [],
      'every acknowledged turn is there',
    )
    t.strictSame(halfWritten, [], 'none is half written, and those in flight are interrupted')
  })
}
