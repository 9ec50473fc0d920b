/** Holds what is on record against what clients were told. */
import Database from 'better-sqlite3'
import { ask } from './actors/client.ts'
import type { Model, SimEngine } from './actors/engine.ts'
import type { Attempt, History, Operation } from './actors/history.ts'
import { type Call, type ChatMessage, callIn, contentOf, promptIds, type Served } from './actors/oracle.ts'
import type { Fault } from './faults.ts'
import type { World } from './world/world.ts'

export interface Checked {
  history: History
  engines: readonly SimEngine[]
  path: string
  /** What was struck. */
  faults: readonly Fault[]
  /** Of the engines. */
  model: Model
  isTokenMode: boolean
}

interface TurnOnRecord {
  turn_id: string
  index: number
  status: string
  dialect: string
  request_messages: ChatMessage[]
  params: { prompt?: string }
  prompt_token_ids: number[]
  completion_token_ids: number[]
  completion_logprobs: number[]
  completion_text: string
  tool_calls: Call[]
  exact: boolean
  weight_version_start: string | null
  weight_version_end: string | null
  retry_count: number
}

interface Row {
  prompt_ids: number[]
  response_ids: number[]
  response_mask: number[]
  response_logprobs: number[]
  exact: boolean
  turns: { turn_id: string; index: number; start: number; end: number; trained: boolean }[]
}

interface SessionOnRecord {
  status: string
  reward: number | null
  turns: TurnOnRecord[]
}

export async function checkRecord(world: World, checked: Checked): Promise<void> {
  const { history, engines, path, faults } = checked
  await checkHealth(world)
  const ids = [...new Set([...history.attempts, ...history.operations].map(({ sessionId }) => sessionId))]
  for (const sessionId of ids) {
    const session = await read<SessionOnRecord>(world, `/sessions/${sessionId}`)
    const rows = await read<{ trajectories: Row[] }>(world, `/sessions/${sessionId}/trajectories`)
    const said = new SessionHistory(sessionId, history)
    checkAttempts(world, said, session?.turns ?? [])
    checkOperations(world, said, session)
    if (session) checkTurns(world, said, session, checked)
    if (session && checked.isTokenMode) checkPrompts(world, said, session, checked.model)
    const mayBeInexact = faults.some(({ kind }) => kind === 'engine_bad_ids' || kind === 'engine_loses_ids')
    if (session && !mayBeInexact) checkExact(world, said, session)
    if (session && rows) checkRows(world, said, session.turns, rows.trajectories)
  }
  if (faults.length === 0) checkCalm(world, history, engines)
  checkFile(world, path)
}

/** At the end, with nothing under way. */
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

/** What was asked for in one session. */
class SessionHistory {
  readonly sessionId: string
  readonly attempts: readonly Attempt[]
  readonly operations: readonly Operation[]

  constructor(sessionId: string, { attempts, operations }: History) {
    this.sessionId = sessionId
    this.attempts = attempts.filter((attempt) => attempt.sessionId === sessionId)
    this.operations = operations.filter((operation) => operation.sessionId === sessionId)
  }

  /** Whether something may have removed what the attempt put on record. */
  mayBeGone({ sentAtMs }: Attempt): boolean {
    return this.#wipes().some((wipe) => !isDone(wipe) || wipe.endedAtMs! > sentAtMs)
  }

  /** Whether something has certainly removed it. */
  mustBeGone({ endedAtMs }: Attempt): boolean {
    return this.#wipes().some((wipe) => isDone(wipe) && wipe.sentAtMs > endedAtMs!)
  }

  /** Whether the session had certainly ended before the attempt was made. */
  hadEnded({ sentAtMs }: Attempt): boolean {
    const isEnd = ({ kind }: Operation) => kind === 'complete' || kind === 'abort'
    return (
      this.#wipes().length === 0 &&
      this.operations.some((end) => isEnd(end) && isDone(end) && end.endedAtMs! < sentAtMs && end.found)
    )
  }

  #wipes(): Operation[] {
    return this.operations.filter(({ kind }) => kind === 'reset' || kind === 'delete')
  }
}

function isDone({ status }: Operation): boolean {
  return status === 200
}

function checkAttempts(world: World, said: SessionHistory, turns: readonly TurnOnRecord[]): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const readTurns = new Map<string, Attempt>()
  for (const attempt of said.attempts) {
    const { turnId, call, outcome, text } = attempt
    const turn = turnId === undefined ? undefined : byId.get(turnId)
    if (attempt.code === 'internal') world.violated(`${call} failed with an internal error`)
    if (turn && said.mustBeGone(attempt))
      world.violated(`${call} is on record, and the session was reset after it`)
    if (outcome !== 'read') continue
    if (turnId === undefined) {
      world.violated(`the answer to ${call} names no turn`)
      continue
    }
    if (said.hadEnded(attempt)) world.violated(`${call} was answered after its session had ended`)
    const before = readTurns.get(turnId)
    if (before && before.call !== call)
      world.violated(`${call} and ${before.call} were answered with one turn`)
    if (before && attempt.retry === 0) world.violated(`${call} was answered twice with one turn`)
    readTurns.set(turnId, attempt)
    if (turn === undefined) {
      if (!said.mayBeGone(attempt)) world.violated(`the answer to ${call} was read, and is not on record`)
    } else if (turn.status !== 'completed')
      world.violated(`the answer to ${call} was read, and its turn is ${turn.status}`)
    else if (turn.completion_text !== text)
      world.violated(`${call} was answered with another text than the record has`)
    else if (!isSameText(turn.tool_calls.map(meaningOf), attempt.calls!.map(meaningOf)))
      world.violated(`${call} was answered with other calls than the record has`)
  }
  const ids = turns.flatMap(({ tool_calls: calls }) => calls.map(({ id }) => id))
  if (new Set(ids).size < ids.length) world.violated(`two calls of ${said.sessionId} have one id`)
}

/** Some dialects have arguments as values. */
function meaningOf({ id, function: { name, arguments: given } }: Call): unknown[] {
  return [id, name, JSON.parse(given)]
}

function checkOperations(world: World, said: SessionHistory, session: SessionOnRecord | undefined): void {
  const { operations, sessionId } = said
  const undo = operations.some(({ kind }) => kind === 'reset' || kind === 'delete')
  const done = operations.filter(isDone)
  if (undo) return
  const ends = operations.filter(({ kind }) => kind === 'complete' || kind === 'abort')
  if (ends.some((end) => isDone(end) && end.found) && session?.status === 'active')
    world.violated(`${sessionId} was ended, and is active`)
  if (ends.length === 0 && session && session.status !== 'active')
    world.violated(`nobody has ended ${sessionId}`)
  const rewards = operations.filter(({ kind }) => kind === 'reward')
  const last = rewards.at(-1)
  const isLastAlone =
    last && rewards.every((other) => other === last || (isDone(other) && other.endedAtMs! < last.sentAtMs))
  if (last && isDone(last) && isLastAlone && session?.reward !== last.reward)
    world.violated(`${sessionId} was given the reward ${last.reward}, and has ${session?.reward}`)
  if (done.some(({ kind }) => kind === 'create') && !session)
    world.violated(`${sessionId} was created, and is gone`)
}

function checkTurns(world: World, said: SessionHistory, { turns }: SessionOnRecord, checked: Checked): void {
  const { sessionId } = said
  const tries = new Map<string, number>()
  for (const { call } of said.attempts) tries.set(call, (tries.get(call) ?? 0) + 1)
  for (const [place, turn] of turns.entries()) {
    const call = callOf(turn)
    if (turn.index !== place) world.violated(`turn ${place} of ${sessionId} has the index ${turn.index}`)
    if (turn.status === 'open') world.violated(`the turn of ${call} is open, and nothing is under way`)
    const left = tries.get(call) ?? 0
    if (left === 0) world.violated(`${sessionId} has a turn more of ${call} than was asked for`)
    tries.set(call, left - 1)
    checkTokens(world, turn, call, checked)
  }
}

/** Engines told everything. */
function checkExact(world: World, { sessionId }: SessionHistory, { turns }: SessionOnRecord): void {
  for (const { status, exact, index } of turns) {
    if (status === 'completed' && !exact) world.violated(`turn ${index} of ${sessionId} is not exact`)
  }
}

function callOf({ request_messages: messages, params }: TurnOnRecord): string {
  return callIn(messages.length > 0 ? contentOf(messages.at(-1)!) : (params.prompt ?? ''))
}

/** What an engine that renders itself makes of the request. */
function renderedPrompt(
  { request_messages: messages, params }: TurnOnRecord,
  { vocabulary }: Model,
): number[] {
  return params.prompt === undefined ? promptIds(messages) : vocabulary.encode(params.prompt)
}

function checkTokens(
  world: World,
  turn: TurnOnRecord,
  call: string,
  { model, isTokenMode, engines }: Checked,
): void {
  const { prompt_token_ids: recorded, completion_token_ids: ids, completion_logprobs: logprobs } = turn
  const isWhole = turn.status === 'completed'
  if (isWhole ? !turn.exact : ids.length === 0) return
  const isRendered = !isTokenMode || turn.params.prompt !== undefined
  if (isRendered && isWhole && !isSame(recorded, renderedPrompt(turn, model)))
    world.violated(`the turn of ${call} has another prompt's ids`)
  const asked = engines
    .flatMap(({ served }) => served)
    .filter((served) => served.call === call && (!isWhole || isSame(served.prompt, recorded)))
  const sampled = asked.filter(({ tokens, length }) => {
    if (isWhole && tokens.length < length) return false
    const kept = isWhole ? tokens : tokens.slice(0, ids.length)
    return (
      isSame(
        ids,
        kept.map(({ id }) => id),
      ) &&
      isSame(
        logprobs,
        kept.map(({ logprob }) => logprob),
      )
    )
  })
  const wrong = sampled.map((served) => wrongWeights(turn, served))
  // Several samples may be equal. One that broke off may lack an id that its engine did not tell; nobody trains on it.
  if (wrong.length > 0 && wrong.every(Boolean)) world.violated(`the turn of ${call} ${wrong[0]}`)
  if (wrong.length === 0 && isWhole)
    world.violated(`the turn of ${call} has other ids or logprobs than any engine sampled for it`)
}

/** What an answer tells is on record; what it does not tell is known, or unknown, but never later than it was. */
function wrongWeights(
  { status, weight_version_start: start, weight_version_end: end }: TurnOnRecord,
  { weights, versions, tells }: Served,
): string | undefined {
  const first = weights[0]!
  const last = weights.at(-1)
  const mayBegin = start === null || versions.indexOf(start) <= versions.indexOf(first)
  if (tells.start ? start !== first : !mayBegin)
    return `began with weights ${first}, and its record says ${start}`
  if (status === 'completed' && tells.end && end !== last)
    return `ended with weights ${last}, and its record says ${end}`
  return undefined
}

/**
 * A prompt that the proxy has made goes on from the answer that the agent has read: with the ids that this was sampled from and
 * as, whatever the agent made of it, and then what the new messages say. Where the agent has cut something, it does not.
 */
function checkPrompts(
  world: World,
  { attempts }: SessionHistory,
  { turns }: SessionOnRecord,
  { decode }: Model,
): void {
  const attemptOf = new Map(attempts.map((attempt) => [attempt.turnId, attempt]))
  for (const turn of turns) {
    const { request_messages: messages, prompt_token_ids: prompt, index } = turn
    if (turn.status !== 'completed' || !turn.exact || messages.length === 0) continue
    // Clients trim what they echo; the tokens stay those that were sampled.
    if (!messages.some(({ tool_calls: calls }) => calls) && saidIn(decode(prompt)) !== chatText(messages))
      world.violated(`the prompt of turn ${index} does not say what its messages say`)
    const { goesOnFrom, isEdited } = attemptOf.get(turn.turn_id) ?? {}
    const before = turns.find(({ turn_id: id }) => id === goesOnFrom)
    if (before?.status !== 'completed' || !before.exact) continue
    const past = pastAfter(before)
    const goesOn = isSame(past, prompt.slice(0, past.length))
    if (goesOn === isEdited)
      world.violated(
        `the prompt of turn ${index} ${goesOn ? 'goes on from' : 'has not the tokens of'} turn ${before.index}, ` +
          `of which its agent has cut ${isEdited ? 'something' : 'nothing'}`,
      )
    const news = messages.slice(messages.findLastIndex(({ role }) => role === 'assistant') + 1)
    const isNew = saidIn(decode(prompt.slice(past.length))).replace(/^<\|im_end\|>/, '') === chatText(news)
    if (goesOn && !isNew) world.violated(`the prompt of turn ${index} does not say what is new in it`)
  }
}

/** The embedded engine's template, as ChatML has it. Results of calls stand as those were sampled. */
function chatText(messages: readonly ChatMessage[]): string {
  const results = messages.filter(({ role }) => role === 'tool').map((message) => contentOf(message))
  const response = results
    .toSorted()
    .map((result) => `<tool_response>\n${result}\n</tool_response>\n`)
    .join('')
  const turns = messages
    .filter(({ role }) => role !== 'tool')
    .map((message) => `<|im_start|>${message.role}\n${contentOf(message)}<|im_end|>\n`)
  const first = response && `<|im_start|>user\n${response}<|im_end|>\n`
  return squeezed(`${first}${turns.join('')}<|im_start|>assistant\n`)
}

/** Without the words on tools. */
function saidIn(prompt: string): string {
  return squeezed(prompt).replace(/#Tools.*?<\/tool_call>(?=<\|im_end\|>)/, '')
}

function squeezed(text: string): string {
  return text.replace(/\s+/g, '')
}

function checkRows(
  world: World,
  said: SessionHistory,
  turns: readonly TurnOnRecord[],
  rows: readonly Row[],
): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const shown = new Set<string>()
  const trained = new Set<string>()
  for (const row of rows) {
    const mask = row.response_ids.map(() => 0)
    for (const { turn_id: id, start, end, trained: isTrained } of row.turns) {
      const turn = byId.get(id)
      if (turn?.status !== 'completed') world.violated(`a row has the turn ${id}, which is ${turn?.status}`)
      shown.add(id)
      if (!row.exact || turn === undefined) continue
      if (!isSame(row.response_ids.slice(start, end), turn.completion_token_ids))
        world.violated(`a row has other tokens than its turn ${turn.index}`)
      const before = [...row.prompt_ids, ...row.response_ids.slice(0, start)]
      if (!isSame(before, turn.prompt_token_ids))
        world.violated(`a row has another prompt than its turn ${turn.index}`)
      if (!isTrained) continue
      if (trained.has(id)) world.violated(`turn ${turn.index} of ${said.sessionId} trains twice`)
      trained.add(id)
      mask.fill(1, start, end)
      if (!isSame(row.response_logprobs.slice(start, end), turn.completion_logprobs))
        world.violated(`a row has other logprobs than its turn ${turn.index}`)
    }
    if (row.exact && !isSame(mask, row.response_mask))
      world.violated(`a row of ${said.sessionId} masks other tokens than were sampled`)
  }
  checkTrained(world, said, turns, { shown, trained })
  checkTries(world, said, turns, trained)
  checkJoined(world, said, byId, rows)
}

/** Of the tries of one call that SDK's know as one, the answers that it has not read do not train beside the one that it has. */
function checkTries(
  world: World,
  { attempts, sessionId }: SessionHistory,
  turns: readonly TurnOnRecord[],
  trained: ReadonlySet<string>,
): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const read = attempts.filter(({ outcome }) => outcome === 'read')
  const wasRead = new Set(read.map(({ turnId }) => turnId))
  for (const { turnId, retry, call } of read) {
    const answered = byId.get(turnId ?? '')
    if (retry === 0 || answered === undefined || answered.retry_count === 0) continue
    const isEarlierTry = (turn: TurnOnRecord) =>
      turn.index < answered.index &&
      turn.dialect === answered.dialect &&
      turn.params.prompt === answered.params.prompt &&
      isSameText(turn.request_messages, answered.request_messages)
    const lost = turns.find(
      (turn) => isEarlierTry(turn) && trained.has(turn.turn_id) && !wasRead.has(turn.turn_id),
    )
    if (lost)
      world.violated(`turn ${lost.index} of ${sessionId} trains, and ${call} was tried again after it`)
  }
}

/** A call that goes on from an answer stands in a row with it. */
function checkJoined(
  world: World,
  { attempts }: SessionHistory,
  byId: ReadonlyMap<string, TurnOnRecord>,
  rows: readonly Row[],
): void {
  for (const { turnId, goesOnFrom, call } of attempts) {
    const turn = byId.get(turnId ?? '')
    const before = byId.get(goesOnFrom ?? '')
    if (turn?.status !== 'completed' || !turn.exact || !before?.exact) continue
    const past = pastAfter(before)
    // An equal sample is as good.
    const equals = [...byId.values()].filter((other) => isSame(pastAfter(other), past))
    const isAlone = !rows.some(
      ({ turns }) =>
        turns.some((part) => part.turn_id === turn.turn_id) &&
        turns.some((part) => equals.some(({ turn_id: id }) => id === part.turn_id)),
    )
    const shown = rows.some(({ turns }) => turns.some((part) => part.turn_id === turn.turn_id))
    if (shown && isAlone && isSame(past, turn.prompt_token_ids.slice(0, past.length)))
      world.violated(`${call} goes on from turn ${before.index}, and is in no row with it`)
  }
}

function pastAfter({ prompt_token_ids: asked, completion_token_ids: said }: TurnOnRecord): number[] {
  return [...asked, ...said]
}

function isSameText(a: unknown, b: unknown): boolean {
  return JSON.stringify(a) === JSON.stringify(b)
}

function checkTrained(
  world: World,
  said: SessionHistory,
  turns: readonly TurnOnRecord[],
  { shown, trained }: { shown: ReadonlySet<string>; trained: ReadonlySet<string> },
): void {
  const wasRead = new Set(
    said.attempts.flatMap(({ outcome, turnId }) => (outcome === 'read' && turnId ? [turnId] : [])),
  )
  const retried = new Set(said.attempts.filter(({ retry }) => retry > 0).map(({ call }) => call))
  for (const turn of turns) {
    if (turn.status !== 'completed') continue
    const call = callOf(turn)
    // What a client has tried again it may not have got; what it has read it has got.
    if (!shown.has(turn.turn_id) && (wasRead.has(turn.turn_id) || !retried.has(call)))
      world.violated(`turn ${turn.index} of ${said.sessionId} is completed, and is in no row`)
    if (shown.has(turn.turn_id) && turn.exact && !trained.has(turn.turn_id))
      world.violated(`turn ${turn.index} of ${said.sessionId} is in a row, and does not train`)
  }
}

/** Where nothing went wrong, nothing is done twice. */
function checkCalm(world: World, { attempts }: History, engines: readonly SimEngine[]): void {
  const asked = new Map<string, number>()
  for (const { call } of attempts) asked.set(call, (asked.get(call) ?? 0) + 1)
  for (const { call, outcome, status, code } of attempts) {
    // Its session was ended, reset or removed under it.
    if (code === 'turn_cancelled') continue
    if (outcome === 'broken' || (outcome === 'refused' && status! >= 500))
      world.violated(`${call} failed with ${status} ${code}, and nothing had gone wrong`)
  }
  for (const [call, count] of asked) {
    const begun = engines.reduce((sum, engine) => sum + (engine.begun.get(call) ?? 0), 0)
    if (begun > count) world.violated(`${call} was asked ${count} times, and given to engines ${begun} times`)
  }
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

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((value, at) => value === b[at])
}
