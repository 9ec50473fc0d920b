/** A store survives the loss of power at any moment, and the failure of any one system call. */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import { createSeededRandom } from '../../../src/embedded/engine/random.ts'
import type { Durability } from '../../../src/proxy/store/port/turn-store.ts'
import { openForWriting } from '../../../src/proxy/store/sqlite/database.ts'
import { IS_FULL } from '../../helpers/tier.ts'
import { readLog, type SystemCall } from './call-log.ts'
import { PowerCut, type UnsyncedWrites } from './power-cut.ts'

/** The states of unsynced writes that are tested after each call. */
const ALL_STATES: readonly UnsyncedWrites[] = ['all', 'none', 'some', 'some']
/** The states after successive calls without `FULL=1`. */
const FEWER_STATES: readonly (readonly UnsyncedWrites[])[] = [['all'], ['some'], ['none']]

const folder = t.testdir({ log: {} })
const shim = join(folder, 'shim.so')
const here = import.meta.dirname
const skip = isBuilt() ? false : 'no C compiler here, or a system other than Linux'

function isBuilt(): boolean {
  const source = join(here, 'shim.c')
  const built = spawnSync('cc', ['-shared', '-fPIC', '-O1', '-o', shim, source, '-ldl', '-lpthread'])
  return process.platform === 'linux' && built.status === 0
}

function runUnderShim(program: string, args: readonly string[], env: NodeJS.ProcessEnv): string {
  const all = { ...process.env, ...env, LD_PRELOAD: shim }
  return execFileSync(process.execPath, [join(here, program), ...args], { env: all, encoding: 'utf8' })
}

function recordCalls(durability: Durability): SystemCall[] {
  const database = join(folder, durability)
  const log = join(folder, `log-${durability}`)
  mkdirSync(database)
  runUnderShim('write-turns.ts', [database, durability], { POWER_FOLDER: database, POWER_LOG: log })
  return readLog(log)
}

/** Returns the fault of the files after the power loss, or ''. */
function findFault(
  cut: PowerCut,
  unsynced: UnsyncedWrites,
  reported: readonly string[],
  random: () => number,
): string {
  const found = join(folder, 'found')
  mkdirSync(found)
  try {
    cut.writeFiles(found, unsynced, random)
    const { db, close } = openForWriting(join(found, 'turns.db'), 'process')
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
    rmSync(found, { recursive: true })
  }
}

for (const durability of ['power', 'process'] as const) {
  t.test(`${durability}: power loss after each call that changes a file`, { skip }, async (t) => {
    const calls = recordCalls(durability)
    const random = createSeededRandom(20_260_101)
    const cut = new PowerCut()
    const reported: string[] = []
    const found: string[] = []
    let losses = 0
    for (const [index, call] of calls.entries()) {
      if (call.file === 'acknowledged') {
        reported.push(call.data.toString().trim())
        continue
      }
      cut.add(call)
      for (const unsynced of IS_FULL ? ALL_STATES : FEWER_STATES[index % FEWER_STATES.length]!) {
        const wrong = findFault(cut, unsynced, reported, random)
        // With `process` a turn must survive the end of the process, which loses no written data.
        const mayLose = durability === 'process' && unsynced !== 'all'
        if (mayLose && wrong.endsWith('is lost')) losses += 1
        else if (wrong !== '') found.push(`after call ${index}, ${unsynced} of the unsynced writes: ${wrong}`)
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
    const runs = join(folder, name)
    mkdirSync(runs)
    const output = runUnderShim('fail-calls.ts', [runs, String(errno), String(IS_FULL ? 1 : 3)], {
      POWER_FOLDER: runs,
    })
    t.match(output, /^\d\d+ calls failed, one in each run; [1-9]\d* changes were rejected$/m, output)
  })
}
