/** A store survives the loss of power at any moment, and the failure of any one system call. */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { createSeededRandom } from '../../../src/embedded/engine/random.ts'
import type { Durability } from '../../../src/proxy/store/port/turn-store.ts'
import { openForWriting } from '../../../src/proxy/store/sqlite/database.ts'
import { IS_FULL } from '../../helpers/tier.ts'
import { type Noted, readLog } from './log.ts'
import { type KeptWrites, PowerCut } from './power-cut.ts'

/** What may be left after each call of what was not synced. */
const ALL_LEFT: readonly KeptWrites[] = ['all', 'none', 'some', 'some']
/** What is left after successive calls without `FULL=1`. */
const FEWER_LEFT: readonly (readonly KeptWrites[])[] = [['all'], ['some'], ['none']]

const folder = t.testdir({ log: {} })
const shim = join(folder, 'shim.so')
const here = import.meta.dirname
const skip = isBuilt() ? false : 'no C compiler here, or a system other than Linux'

function isBuilt(): boolean {
  const source = join(here, 'shim.c')
  const built = spawnSync('cc', ['-shared', '-fPIC', '-O1', '-o', shim, source, '-ldl', '-lpthread'])
  return process.platform === 'linux' && built.status === 0
}

function under(program: string, args: readonly string[], env: NodeJS.ProcessEnv): string {
  const all = { ...process.env, ...env, LD_PRELOAD: shim }
  return execFileSync(process.execPath, [join(here, program), ...args], { env: all, encoding: 'utf8' })
}

function getCalls(durability: Durability): Noted[] {
  const database = join(folder, durability)
  const log = join(folder, `log-${durability}`)
  mkdirSync(database)
  under('keeper.ts', [database, durability], { POWER_FOLDER: database, POWER_LOG: log })
  return readLog(log)
}

/** Returns what is wrong with the files after the power loss, or ''. */
function lookAt(cut: PowerCut, left: KeptWrites, reported: readonly string[], random: () => number): string {
  const place = join(folder, 'found')
  mkdirSync(place)
  try {
    cut.leave(place, left, random)
    const { db, close } = openForWriting(join(place, 'turns.db'), 'process')
    const sound = db.pragma('integrity_check', { simple: true })
    const completed = db
      .prepare<[], string>("SELECT turn_id FROM turns WHERE status = 'completed'")
      .pluck()
      .all()
    close()
    const lost = reported.filter((turnId) => !completed.includes(turnId))
    return sound === 'ok' ? lost.map((turnId) => `${turnId} is lost`).join(', ') : String(sound)
  } catch (error) {
    return String(error)
  } finally {
    rmSync(place, { recursive: true })
  }
}

for (const durability of ['power', 'process'] as const) {
  t.test(`${durability}: power loss after each call that changes a file`, { skip }, async (t) => {
    const calls = getCalls(durability)
    const random = createSeededRandom(20_260_101)
    const cut = new PowerCut()
    const reported: string[] = []
    const found: string[] = []
    let losses = 0
    for (const [index, noted] of calls.entries()) {
      if (noted.file === 'acknowledged') {
        reported.push(noted.data.toString().trim())
        continue
      }
      cut.add(noted)
      for (const left of IS_FULL ? ALL_LEFT : FEWER_LEFT[index % FEWER_LEFT.length]!) {
        const wrong = lookAt(cut, left, reported, random)
        // With `process` a turn must survive the end of the process, which loses no written data.
        const mayLose = durability === 'process' && left !== 'all'
        if (mayLose && wrong.endsWith('is lost')) losses += 1
        else if (wrong !== '') found.push(`after call ${index}, ${left} of what was not synced: ${wrong}`)
      }
    }
    t.equal(reported.length, 8, 'all turns were acknowledged')
    // Otherwise the test could not detect a missing sync.
    if (durability === 'process') t.ok(losses > 0, `${losses} cuts lost turns that were not synced`)
    t.ok(calls.length > 50, `${calls.length} calls`)
    t.strictSame(found.slice(0, 5), [])
  })
}

for (const [name, errno] of [
  ['EIO', 5],
  ['ENOSPC', 28],
] as const) {
  t.test(`${name} at each system call of a store loses no acknowledged turn`, { skip }, async (t) => {
    const lives = join(folder, name)
    mkdirSync(lives)
    const output = under('lives.ts', [lives, String(errno), String(IS_FULL ? 1 : 3)], { POWER_FOLDER: lives })
    t.match(output, /^\d\d+ calls failed, one in each life; [1-9]\d* changes were refused$/m, output)
  })
}
