import { join } from 'node:path'
import t from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { checkStore, killAfter } from '../helpers/crash-child.ts'

const ACKNOWLEDGED_BEFORE_KILL = [1, 40, 300]

for (const durability of ['power', 'process'] as const) {
  t.test(`SIGKILL loses no acknowledged turn, with durability ${durability}`, async (t) => {
    const path = join(t.testdir(), 'turns.db')
    const everAcknowledged: string[] = []
    for (const [round, acknowledgements] of ACKNOWLEDGED_BEFORE_KILL.entries()) {
      const { acknowledged, signal } = await killAfter(acknowledgements, { db: path, durability, round })
      t.equal(signal, 'SIGKILL')
      t.ok(acknowledged.length >= acknowledgements)
      everAcknowledged.push(...acknowledged)
    }
    const store = await openSqliteStore({ path, durability })
    t.teardown(() => store.close())

    const { completed, halfWritten } = await checkStore(store)
    t.strictSame(
      everAcknowledged.filter((turn) => !completed.has(turn)),
      [],
      'every acknowledged turn is recorded',
    )
    t.strictSame(halfWritten, [], 'none is partial, and those in flight are interrupted')
  })
}
