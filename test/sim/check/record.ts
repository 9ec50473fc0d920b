/** Compares what is recorded with what clients received. */
import Database from 'better-sqlite3'
import { ask } from '../actors/client.ts'
import type { SimEngine } from '../actors/engine.ts'
import type { Attempt } from '../actors/history.ts'
import type { Call } from '../actors/oracle.ts'
import type { World } from '../world/world.ts'
import {
  areCuts,
  type Checked,
  isDone,
  isSameText,
  type Row,
  SessionHistory,
  type SessionOnRecord,
  type TurnOnRecord,
} from './on-record.ts'
import { checkRows } from './rows.ts'
import { checkExact, checkPrompts, checkTurns } from './turns.ts'

export async function checkRecord(world: World, checked: Checked): Promise<void> {
  const { history, path, faults } = checked
  await checkHealth(world)
  const ids = [...new Set([...history.attempts, ...history.operations].map(({ sessionId }) => sessionId))]
  for (const sessionId of ids) {
    const session = await read<SessionOnRecord>(world, `/sessions/${sessionId}`)
    const rows = await read<{ trajectories: Row[] }>(world, `/sessions/${sessionId}/trajectories`)
    const expected = new SessionHistory(sessionId, history)
    checkAttempts(world, expected, session?.turns ?? [])
    checkOperations(world, expected, session)
    if (session) checkTurns(world, expected, session, checked)
    if (session && checked.isTokenMode) checkPrompts(world, expected, session, checked.model)
    const mayBeInexact = faults.some(({ kind }) => kind === 'engine_bad_ids' || kind === 'engine_loses_ids')
    if (session && !mayBeInexact) checkExact(world, expected, session)
    if (session && rows) checkRows(world, expected, session.turns, rows.trajectories)
  }
  if (areCuts(faults)) checkCalm(world, checked)
  checkFile(world, path)
}

/** Checks the proxy's health at the end, with nothing in flight. */
async function checkHealth(world: World): Promise<void> {
  interface Health {
    status: string
    queued: number
    workers?: { in_flight: number }[]
    engines?: { in_flight: number }[]
  }
  const health = await read<Health>(world, '/health')
  if (health === undefined) {
    world.violated('/health does not answer at the end')
    return
  }
  if (health.status !== 'ok') world.violated(`/health says ${health.status} at the end`)
  const inFlight = [...(health.workers ?? []), ...(health.engines ?? [])].reduce(
    (sum, { in_flight }) => sum + in_flight,
    0,
  )
  if (inFlight > 0) world.violated(`${inFlight} leases were not given back`)
  if (health.queued > 0) world.violated(`${health.queued} calls are still in the queue`)
  const workers = await read<{ load: number }[]>(world, '/admin/workers')
  const load = workers?.reduce((sum, worker) => sum + worker.load, 0)
  if (load) world.violated(`a worker still counts ${load} calls`)
}

function checkAttempts(world: World, expected: SessionHistory, turns: readonly TurnOnRecord[]): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const readTurns = new Map<string, Attempt>()
  for (const attempt of expected.attempts) {
    const { turnId, call, outcome, text } = attempt
    const turn = turnId === undefined ? undefined : byId.get(turnId)
    if (attempt.code === 'internal') world.violated(`${call} failed with an internal error`)
    if (turn && expected.mustBeGone(attempt))
      world.violated(`${call} is recorded, but the session was reset after it`)
    if (outcome !== 'read') continue
    if (turnId === undefined) {
      world.violated(`the answer to ${call} names no turn`)
      continue
    }
    if (expected.hadEnded(attempt)) world.violated(`${call} was answered after its session had ended`)
    const before = readTurns.get(turnId)
    if (before && before.call !== call)
      world.violated(`${call} and ${before.call} were answered with one turn`)
    if (before && attempt.retry === 0) world.violated(`${call} was answered twice with one turn`)
    readTurns.set(turnId, attempt)
    if (turn === undefined) {
      if (!expected.mayBeGone(attempt)) world.violated(`the answer to ${call} was read, but is not recorded`)
    } else if (turn.status !== 'completed')
      world.violated(`the answer to ${call} was read, and its turn is ${turn.status}`)
    else if (turn.completion_text !== text) world.violated(`${call} has another text than the recorded turn`)
    else if (!isSameText(turn.tool_calls.map(meaningOf), attempt.calls!.map(meaningOf)))
      world.violated(`${call} has other tool calls than the recorded turn`)
  }
  const ids = turns.flatMap(({ tool_calls: calls }) => calls.map(({ id }) => id))
  if (new Set(ids).size < ids.length) world.violated(`two calls of ${expected.sessionId} have one id`)
}

/** Parses a tool call, because some dialects have arguments as values. */
function meaningOf({ id, function: { name, arguments: given } }: Call): unknown[] {
  return [id, name, JSON.parse(given)]
}

function checkOperations(world: World, expected: SessionHistory, session: SessionOnRecord | undefined): void {
  const { operations, sessionId } = expected
  const undo = operations.some(({ kind }) => kind === 'reset' || kind === 'delete')
  const done = operations.filter(isDone)
  if (undo) return
  const ends = operations.filter(({ kind }) => kind === 'complete' || kind === 'abort')
  if (ends.some((end) => isDone(end) && end.found) && session?.status === 'active')
    world.violated(`${sessionId} was ended, and is active`)
  if (ends.length === 0 && session && session.status !== 'active')
    world.violated(`${sessionId} has ended without an operation`)
  const rewards = operations.filter(({ kind }) => kind === 'reward')
  const last = rewards.at(-1)
  const isLastAlone =
    last && rewards.every((other) => other === last || (isDone(other) && other.endedAtMs! < last.sentAtMs))
  if (last && isDone(last) && isLastAlone && session?.reward !== last.reward)
    world.violated(`${sessionId} was given the reward ${last.reward}, and has ${session?.reward}`)
  if (done.some(({ kind }) => kind === 'create') && !session)
    world.violated(`${sessionId} was created, and is gone`)
}

/**
 * Checks that no response is lost and nothing is executed twice in a run in which nothing has gone wrong but cuts of
 * responses that continue.
 */
function checkCalm(world: World, { history, engines, faults, continues }: Checked): void {
  const { attempts } = history
  const counts = new Map<string, number>()
  for (const { call } of attempts) counts.set(call, (counts.get(call) ?? 0) + 1)
  for (const attempt of attempts) {
    const { sessionId, call, outcome, status, code } = attempt
    // The trainer ended, reset or deleted its session meanwhile.
    if (code === 'turn_cancelled') continue
    const wasCut = countBy(engines, ({ cuts }) => cuts.get(call)) > 0 || faults.length > 0
    if (wasCut && !new SessionHistory(sessionId, history).continues(attempt, continues)) continue
    if (outcome === 'broken' || (outcome === 'refused' && status! >= 500))
      world.violated(`${call} failed with ${status} ${code}, and nothing had gone wrong`)
  }
  // A request that is lost with its worker or engine is given to another one.
  if (!faults.every(({ kind }) => kind.startsWith('response_'))) return
  for (const [call, count] of counts) {
    const begun = countBy(engines, (engine) => engine.begun.get(call))
    const cut = countBy(engines, ({ cuts }) => cuts.get(call))
    if (begun > count + cut)
      world.violated(`${call} has ${count} attempts and ${cut} cuts, and engines received ${begun} requests`)
  }
}

function countBy(engines: readonly SimEngine[], count: (engine: SimEngine) => number | undefined): number {
  return engines.reduce((sum, engine) => sum + (count(engine) ?? 0), 0)
}

function checkFile(world: World, path: string): void {
  const db = new Database(path, { readonly: true })
  const found = db.pragma('integrity_check', { simple: true })
  db.close()
  if (found !== 'ok') world.violated(`the database is damaged: ${found}`)
}

async function read<T>(world: World, path: string): Promise<T | undefined> {
  const { status, text, isWhole, error } = await ask(world, { method: 'GET', path })
  if (status === 404) return undefined
  if (status === 200 && isWhole) return JSON.parse(text)
  world.violated(`GET ${path} is answered with ${status} ${error ?? text}`)
  return undefined
}
