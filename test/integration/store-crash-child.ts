/** Records turns until it is killed, and prints each one's id on stdout once it is acknowledged. */

import { isPostgresUrl } from '../../src/proxy/store/port/database-name.ts'
import type { Durability } from '../../src/proxy/store/port/turn-store.ts'
import { openPostgresStore } from '../../src/proxy/store/postgres/open.ts'
import { openSqliteStore } from '../../src/proxy/store/sqlite/open.ts'
import { anOutcome, aTurn, createSession } from '../conformance/turn-store.ts'

const CALLERS = 8
const [db, givenDurability, round] = process.argv.slice(2)
const durability = givenDurability as Durability
const store = isPostgresUrl(db!)
  ? await openPostgresStore({ url: db!, durability })
  : await openSqliteStore({ path: db!, durability })

await Promise.all(Array.from({ length: CALLERS }, (_, caller) => recordTurns(`s${round}-${caller}`)))

async function recordTurns(sessionId: string): Promise<void> {
  await store.createSession(createSession(sessionId))
  await store.openTurn(aTurn('never-closed', { sessionId }))
  const requestMessages: string[] = []
  for (let index = 1; ; index += 1) {
    const turnId = `t${index}`
    requestMessages.push(JSON.stringify({ role: 'user', content: `question ${index}` }))
    void store.openTurn(aTurn(turnId, { sessionId, index, requestMessages: [...requestMessages] }))
    await store.closeTurn(anOutcome(turnId, { sessionId, completionText: `answer ${index}` }))
    process.stdout.write(`${sessionId} ${turnId}\n`)
  }
}
