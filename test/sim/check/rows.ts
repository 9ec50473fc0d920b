/** Compares rows with turns: each is trained, and only once. */
import type { World } from '../world/world.ts'
import {
  callOf,
  isSame,
  isSameText,
  pastAfter,
  type Row,
  type SessionHistory,
  type TurnOnRecord,
} from './on-record.ts'

export function checkRows(
  world: World,
  expected: SessionHistory,
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
      if (trained.has(id)) world.violated(`turn ${turn.index} of ${expected.sessionId} trains twice`)
      trained.add(id)
      mask.fill(1, start, end)
      if (!isSame(row.response_logprobs.slice(start, end), turn.completion_logprobs))
        world.violated(`a row has other logprobs than its turn ${turn.index}`)
    }
    if (row.exact && !isSame(mask, row.response_mask))
      world.violated(`a row of ${expected.sessionId} masks other tokens than were sampled`)
  }
  checkTrained(world, expected, turns, { shown, trained })
  checkTries(world, expected, turns, trained)
  checkJoined(world, expected, byId, rows)
}

/** Checks attempts that SDKs declare as one request: unread responses must not train beside the one that was read. */
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

/** Checks that a request that continues a completion is in a row with it. */
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
    // An equal sample also satisfies this.
    const equals = [...byId.values()].filter((other) => isSame(pastAfter(other), past))
    const isAlone = !rows.some(
      ({ turns }) =>
        turns.some((part) => part.turn_id === turn.turn_id) &&
        turns.some((part) => equals.some(({ turn_id: id }) => id === part.turn_id)),
    )
    const shown = rows.some(({ turns }) => turns.some((part) => part.turn_id === turn.turn_id))
    if (shown && isAlone && isSame(past, turn.prompt_token_ids.slice(0, past.length)))
      world.violated(`${call} continues turn ${before.index}, and is in no row with it`)
  }
}

function checkTrained(
  world: World,
  expected: SessionHistory,
  turns: readonly TurnOnRecord[],
  { shown, trained }: { shown: ReadonlySet<string>; trained: ReadonlySet<string> },
): void {
  const wasRead = new Set(
    expected.attempts.flatMap(({ outcome, turnId }) => (outcome === 'read' && turnId ? [turnId] : [])),
  )
  const retried = new Set(expected.attempts.filter(({ retry }) => retry > 0).map(({ call }) => call))
  for (const turn of turns) {
    if (turn.status !== 'completed') continue
    const call = callOf(turn)
    // A client may not have received a response that it retried; it has received what it read.
    if (!shown.has(turn.turn_id) && (wasRead.has(turn.turn_id) || !retried.has(call)))
      world.violated(`turn ${turn.index} of ${expected.sessionId} is completed, and is in no row`)
    if (shown.has(turn.turn_id) && turn.exact && !trained.has(turn.turn_id))
      world.violated(`turn ${turn.index} of ${expected.sessionId} is in a row, and does not train`)
  }
}
