/** Checks a completed run: compares the recorded sessions with the responses that clients received. */
import Database from 'better-sqlite3'
import { sendRequest } from '../actors/client.ts'
import type { SimEngine } from '../actors/engine.ts'
import type { Attempt } from '../actors/history.ts'
import type { ToolCall } from '../actors/oracle.ts'
import type { World } from '../world/world.ts'
import {
  isDone,
  isSameText,
  mustSurvive,
  type RecordedSession,
  type RecordedTurn,
  type Row,
  type RunFacts,
  SessionHistory,
} from './recorded-session.ts'
import { checkRows } from './rows.ts'
import { checkExact, checkPrompts, checkTurns } from './turns.ts'

export async function checkRun(world: World, facts: RunFacts): Promise<void> {
  const { history, path, faults } = facts
  await checkHealth(world)
  const ids = [...new Set([...history.attempts, ...history.operations].map(({ sessionId }) => sessionId))]
  for (const sessionId of ids) {
    const session = await getJson<RecordedSession>(world, `/sessions/${sessionId}`)
    const rows = await getJson<{ trajectories: Row[] }>(world, `/sessions/${sessionId}/trajectories`)
    const expected = new SessionHistory(sessionId, history)
    if (session && !rows) world.reportViolation(`the session ${sessionId} has no trajectories`)
    checkAttempts(world, expected, session?.turns ?? [])
    checkOperations(world, expected, session)
    if (session) checkTurns(world, expected, session, facts)
    if (session && facts.isTokenMode) checkPrompts(world, expected, session, facts.model)
    const mayBeInexact = faults.some(({ kind }) => kind === 'engine_bad_ids' || kind === 'engine_omits_ids')
    if (session && !mayBeInexact) checkExact(world, expected, session)
    if (session && rows) checkRows(world, expected, session.turns, rows.trajectories)
  }
  if (mustSurvive(faults)) checkNoFailures(world, facts)
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
  const health = await getJson<Health>(world, '/health')
  if (health === undefined) {
    world.reportViolation('/health has no usable response at the end')
    return
  }
  if (health.status !== 'ok') world.reportViolation(`/health reports ${health.status} at the end`)
  const inFlight = [...(health.workers ?? []), ...(health.engines ?? [])].reduce(
    (sum, { in_flight }) => sum + in_flight,
    0,
  )
  if (inFlight > 0) world.reportViolation(`${inFlight} leases were not released`)
  if (health.queued > 0) world.reportViolation(`${health.queued} requests are still in the queue`)
  const workers = await getJson<{ load: number }[]>(world, '/admin/workers')
  const load = workers?.reduce((sum, worker) => sum + worker.load, 0)
  if (load) world.reportViolation(`workers still report ${load} requests`)
}

function checkAttempts(world: World, expected: SessionHistory, turns: readonly RecordedTurn[]): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const readTurns = new Map<string, Attempt>()
  for (const attempt of expected.attempts) {
    const { turnId, requestKey, outcome, text } = attempt
    const turn = turnId === undefined ? undefined : byId.get(turnId)
    if (attempt.code === 'internal') world.reportViolation(`${requestKey} failed with an internal error`)
    if (turn && expected.mustBeRemoved(attempt))
      world.reportViolation(`${requestKey} is recorded, but the session was reset after it`)
    if (outcome !== 'read') continue
    if (turnId === undefined) {
      world.reportViolation(`the response to ${requestKey} has no turn id`)
      continue
    }
    if (expected.hadEnded(attempt))
      world.reportViolation(`${requestKey} was served after its session had ended`)
    const before = readTurns.get(turnId)
    if (before && before.requestKey !== requestKey)
      world.reportViolation(`${requestKey} and ${before.requestKey} received the response of one turn`)
    if (before && attempt.retry === 0)
      world.reportViolation(`${requestKey} received the response of one turn twice`)
    readTurns.set(turnId, attempt)
    if (turn === undefined) {
      if (!expected.mayBeRemoved(attempt))
        world.reportViolation(`the response to ${requestKey} was read, but is not recorded`)
    } else if (turn.status !== 'completed')
      world.reportViolation(`the response to ${requestKey} was read, but its turn is ${turn.status}`)
    else if (turn.completion_text !== text)
      world.reportViolation(`${requestKey} has another text than the recorded turn`)
    else if (!isSameText(turn.tool_calls.map(parseToolCall), attempt.toolCalls!.map(parseToolCall)))
      world.reportViolation(`${requestKey} has other tool calls than the recorded turn`)
  }
  const ids = turns.flatMap(({ tool_calls: toolCalls }) => toolCalls.map(({ id }) => id))
  if (new Set(ids).size < ids.length)
    world.reportViolation(`two tool calls of ${expected.sessionId} have one id`)
}

/** Returns a comparable tool call with parsed arguments, because some dialects send them as objects. */
function parseToolCall({ id, function: { name, arguments: input } }: ToolCall): unknown[] {
  return [id, name, JSON.parse(input)]
}

function checkOperations(world: World, expected: SessionHistory, session: RecordedSession | undefined): void {
  const { operations, sessionId } = expected
  const wasRemoved = operations.some(({ kind }) => kind === 'reset' || kind === 'delete')
  const done = operations.filter(isDone)
  if (wasRemoved) return
  const ends = operations.filter(({ kind }) => kind === 'complete' || kind === 'abort')
  if (ends.some((end) => isDone(end) && end.found) && session?.status === 'active')
    world.reportViolation(`${sessionId} was ended, but is active`)
  if (ends.length === 0 && session && session.status !== 'active')
    world.reportViolation(`${sessionId} has ended without an operation`)
  const rewards = operations.filter(({ kind }) => kind === 'reward')
  const last = rewards.at(-1)
  const isLastKnown =
    last && rewards.every((other) => other === last || (isDone(other) && other.endedAtMs! < last.sentAtMs))
  if (last && isDone(last) && isLastKnown && session?.reward !== last.reward)
    world.reportViolation(`${sessionId} was given the reward ${last.reward}, but has ${session?.reward}`)
  if (done.some(({ kind }) => kind === 'create') && !session)
    world.reportViolation(`${sessionId} was created, but does not exist`)
}

/**
 * Checks a run whose only faults are cuts of responses that continue: no response fails, and no request runs more often
 * than clients sent it and cuts continued it.
 */
function checkNoFailures(world: World, { history, engines, faults, continues }: RunFacts): void {
  const { attempts } = history
  const counts = new Map<string, number>()
  for (const { requestKey } of attempts) counts.set(requestKey, (counts.get(requestKey) ?? 0) + 1)
  for (const attempt of attempts) {
    const { sessionId, requestKey, outcome, status, code } = attempt
    // The trainer ended, reset or deleted the session meanwhile.
    if (code === 'turn_cancelled') continue
    const wasCut = countAll(engines, ({ cuts }) => cuts.get(requestKey)) > 0 || faults.length > 0
    if (wasCut && !new SessionHistory(sessionId, history).mustContinue(attempt, continues)) continue
    if (outcome === 'broken' || (outcome === 'rejected' && status! >= 500))
      world.reportViolation(`${requestKey} failed with ${status} ${code}, and no fault explains it`)
  }
  // Other faults move a request to another engine.
  if (!faults.every(({ kind }) => kind.startsWith('response_'))) return
  for (const [requestKey, count] of counts) {
    const started = countAll(engines, (engine) => engine.startedCounts.get(requestKey))
    const cut = countAll(engines, ({ cuts }) => cuts.get(requestKey))
    if (started > count + cut)
      world.reportViolation(
        `${requestKey} has ${count} attempts and ${cut} cuts, and engines received ${started} requests`,
      )
  }
}

function countAll(engines: readonly SimEngine[], count: (engine: SimEngine) => number | undefined): number {
  return engines.reduce((sum, engine) => sum + (count(engine) ?? 0), 0)
}

function checkFile(world: World, path: string): void {
  const db = new Database(path, { readonly: true })
  const found = db.pragma('integrity_check', { simple: true })
  db.close()
  if (found !== 'ok') world.reportViolation(`the database is damaged: ${found}`)
}

async function getJson<T>(world: World, path: string): Promise<T | undefined> {
  const { status, text, isComplete, error } = await sendRequest(world, { method: 'GET', path })
  if (status === 404) return undefined
  if (status === 200 && isComplete) return JSON.parse(text)
  world.reportViolation(`GET ${path} responds with ${status} ${error ?? text}`)
  return undefined
}
