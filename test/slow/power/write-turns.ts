/**
 * Writes a database, and appends the id of each turn to a file once the turn is acknowledged. Exits without closing the
 * store.
 */
import { openSync, writeSync } from 'node:fs'
import { join } from 'node:path'
import { ProxyError } from '../../../src/base/errors.ts'
import type { Durability, TurnStore } from '../../../src/proxy/store/port/turn-store.ts'
import { openSqliteStore } from '../../../src/proxy/store/sqlite/open.ts'
import { anOutcome, aTurn, createSession } from '../../conformance/turn-store.ts'

const TURNS = 4
const [folder, durability] = process.argv.slice(2)
const acknowledged = openSync(join(folder!, 'acknowledged'), 'w')
let bytes = 0

// Twice, because closing moves the log into the database and removes it.
await writeSession('before', true)
await writeSession('after', false)
process.exit(0)

async function writeSession(sessionId: string, closes: boolean): Promise<void> {
  const store = await openStore()
  await isAcknowledged(() => store.createSession(createSession(sessionId)))
  for (let index = 0; index < TURNS; index += 1) await record(store, sessionId, index)
  if (closes) await isAcknowledged(() => store.close())
}

async function record(store: TurnStore, sessionId: string, index: number): Promise<void> {
  const turnId = `${sessionId}-${index}`
  void store.openTurn(aTurn(turnId, { sessionId, index })).catch(() => {})
  if (!(await isAcknowledged(() => store.closeTurn(anOutcome(turnId, { sessionId }))))) return
  // With a position: a single system call, which the shim records.
  bytes += writeSync(acknowledged, `${turnId}\n`, bytes)
}

/** Opens the store. A failed start reports its reason; the next one continues from its files. */
async function openStore(): Promise<TurnStore> {
  const options = { path: join(folder!, 'turns.db'), durability: durability as Durability }
  try {
    return await openSqliteStore(options)
  } catch (error) {
    if (!(error instanceof ProxyError)) throw error
    return await openSqliteStore(options)
  }
}

/** @returns whether the change succeeded; unexpected errors end the process */
async function isAcknowledged(change: () => Promise<unknown>): Promise<boolean> {
  try {
    await change()
    return true
  } catch (error) {
    if (error instanceof ProxyError && ['store_failed', 'session_not_found'].includes(error.code))
      return false
    throw error
  }
}
