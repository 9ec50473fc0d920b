/** Turns that a child records until it is killed, and a check that all acknowledged ones are in the store. */
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import type { TurnStore } from '../../src/proxy/store/port/turn-store.ts'
import { getTurns } from '../conformance/turn-store.ts'
import { startChild } from './children.ts'

const CHILD = join(import.meta.dirname, '../integration/store-crash-child.ts')

/**
 * Lets a child record turns and kills it after `acknowledgements`.
 * @returns every turn that it acknowledged
 */
export async function killAfter(
  acknowledgements: number,
  { db, durability, round }: { db: string; durability: 'power' | 'process'; round: number },
) {
  const child = startChild(process.execPath, [CHILD, db, durability, String(round)])
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

/**
 * Checks a store after a crash.
 * @returns the completed turns, and those that violate an invariant
 */
export async function checkStore(store: TurnStore) {
  const { sessions } = await store.listSessions({ limit: 10_000 })
  const completed = new Set<string>()
  const halfWritten: unknown[] = []
  for (const { sessionId, turnCount } of sessions) {
    const turns = await getTurns(store, sessionId)
    if (turns.length !== turnCount) halfWritten.push({ sessionId, turnCount })
    for (const turn of turns) {
      const interrupted = turn.status === 'interrupted' && turn.completionText === null
      const isComplete =
        turn.completionText === `answer ${turn.index}` &&
        turn.requestMessages.length === turn.index &&
        turn.completionTokenIds.length === 2
      if (turn.status === 'completed') completed.add(`${sessionId} ${turn.turnId}`)
      if (turn.turnId === 'never-closed' ? !interrupted : !interrupted && !isComplete) halfWritten.push(turn)
    }
  }
  return { completed, halfWritten }
}
