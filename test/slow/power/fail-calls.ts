/**
 * Runs a store once for each STEPth system call that it makes; in each run another call fails. Prints the number of
 * failed calls, or fails with the lost turns. Runs under the shim: `fail-calls.ts FOLDER ERRNO STEP`.
 */
import { mkdirSync, rmSync } from 'node:fs'
import { join } from 'node:path'
import Database from 'better-sqlite3'
import { ProxyError } from '../../../src/base/errors.ts'
import type { TurnStore } from '../../../src/proxy/store/port/turn-store.ts'
import { openSqliteStore } from '../../../src/proxy/store/sqlite/open.ts'
import { anOutcome, aTurn, createSession } from '../../conformance/turn-store.ts'
import { Disk, type Timeline } from '../../sim/world/disk.ts'
import { Machine } from '../../sim/world/machine.ts'
import { readLog } from './call-log.ts'

const TURNS = 3
const KNOWN = ['store_failed', 'start_failed', 'session_not_found']

const [root, errno, step] = process.argv.slice(2)
/** Runs the store's threads within this one, so that a run takes milliseconds. */
const atOnce: Timeline = { nowMs: 0, after: (_ms, task, owner) => setImmediate(() => owner.run(task)) }

process.env.POWER_ERRNO = errno
process.env.POWER_LOG = join(root!, 'log')
await runAndCheck(0)
const calls = readLog(process.env.POWER_LOG).filter(({ kind }) => kind !== 'unlink').length
delete process.env.POWER_LOG
let rejected = 0
let failed = 0
// Each errno begins at another call.
for (let call = 1 + (Number(errno) % Number(step)); call <= calls; call += Number(step)) {
  rejected += await runAndCheck(call)
  failed += 1
}
console.log(`${failed} calls failed, one in each run; ${rejected} changes were rejected`)

/** @returns the number of rejected changes */
async function runAndCheck(call: number): Promise<number> {
  const folder = join(root!, `run-${call}`)
  mkdirSync(folder)
  const path = join(folder, 'turns.db')
  process.env.POWER_FOLDER = folder
  process.env.POWER_FAIL_AT = String(call)
  const run = await runStore(path)
  process.env.POWER_FAIL_AT = '0'
  const log = process.env.POWER_LOG
  delete process.env.POWER_LOG
  await (await open(path)).close()
  if (log !== undefined) process.env.POWER_LOG = log
  const db = new Database(path, { readonly: true })
  const found = db.pragma('integrity_check', { simple: true })
  const completed = db
    .prepare<[], string>("SELECT turn_id FROM turns WHERE status = 'completed'")
    .pluck()
    .all()
  db.close()
  const lost = run.acknowledged.filter((turnId) => !completed.includes(turnId))
  if (found !== 'ok' || lost.length > 0)
    throw new Error(`call ${call} failed: the file is ${found}, lost: ${lost.join(' ')}`)
  rmSync(folder, { recursive: true })
  return run.rejected
}

async function runStore(path: string): Promise<{ rejected: number; acknowledged: string[] }> {
  const acknowledged: string[] = []
  let rejections = 0
  /** Returns whether the change succeeded; unexpected errors are thrown. */
  const isDone = async (change: () => Promise<unknown>) => {
    try {
      await change()
      return true
    } catch (error) {
      if (!(error instanceof ProxyError) || !KNOWN.includes(error.code)) throw error
      rejections += 1
      return false
    }
  }
  let store: TurnStore | undefined
  await isDone(async () => {
    store = await open(path)
  })
  if (store === undefined) return { rejected: rejections, acknowledged }
  const opened = store
  await isDone(() => opened.createSession(createSession('s')))
  for (let index = 0; index < TURNS; index += 1) {
    const turnId = `t${index}`
    void opened.openTurn(aTurn(turnId, { sessionId: 's', index })).catch(() => {})
    const closed = await isDone(() => opened.closeTurn(anOutcome(turnId, { sessionId: 's' })))
    if (closed && (await opened.getTurn('s', turnId))) acknowledged.push(turnId)
  }
  await isDone(() => opened.close())
  return { rejected: rejections, acknowledged }
}

function open(path: string): Promise<TurnStore> {
  const { spawn } = new Disk(atOnce, () => 0)
  return new Machine('store').run(() => openSqliteStore({ path, durability: 'power', spawn }))
}
