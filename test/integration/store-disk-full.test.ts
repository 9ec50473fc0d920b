import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, rmdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { aTurn, createSession, getTurns, record } from '../conformance/turn-store.ts'

const folder = mkdtempSync(join(tmpdir(), 'small-disk-'))

function mountSmallDisk(): boolean {
  try {
    execFileSync('mount', ['-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', folder], { stdio: 'ignore' })
    return true
  } catch {
    return false
  }
}

const skip = mountSmallDisk()
  ? false
  : 'only root can mount a small disk; test/unit/proxy/store/sqlite/writer.test.ts fills a file'
t.teardown(() => {
  if (skip === false) execFileSync('umount', [folder])
  rmdirSync(folder)
})

t.test(
  'a full disk fails the requests on it, and the store continues once there is room',
  { skip },
  async (t) => {
    const ballast = join(folder, 'ballast')
    writeFileSync(ballast, Buffer.alloc(2 * 1024 * 1024))
    const store = await openSqliteStore({ path: join(folder, 'turns.db'), durability: 'power' })
    await store.createSession(createSession('s'))

    let index = 0
    const createLongTurn = () =>
      aTurn(`t${index}`, { index, params: JSON.stringify({ text: `${index}`.repeat(40_000) }) })
    const fill = async () => {
      for (; index < 200; index += 1) await record(store, createLongTurn())
    }
    await t.rejects(fill(), { code: 'store_failed', message: /full/ })
    const recorded = await getTurns(store)
    t.equal(recorded.length, index, 'turns acknowledged before are recorded')
    t.ok(recorded.every((turn) => turn.status === 'completed'))

    for (let probe = 0; probe < 3; probe += 1)
      await t.rejects(store.check(), { code: 'store_failed', message: /not enough disk space/ })
    t.notOk(existsSync(join(folder, 'turns.db.probe')))
    rmSync(ballast)
    await t.resolves(store.check(), 'a probe notices the recovery, without any other write')
    await record(store, aTurn('after', { index }))
    t.match((await getTurns(store)).at(-1), { turnId: 'after', status: 'completed' })
    await store.close()
  },
)
