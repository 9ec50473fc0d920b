/** Compares rows with turns: rows train each turn exactly once. */
import type { World } from '../world/world.ts'
import {
  getRequestKey,
  getTokenIds,
  isSame,
  isSameText,
  type RecordedTurn,
  type Row,
  type SessionHistory,
} from './recorded-session.ts'

export function checkRows(
  world: World,
  expected: SessionHistory,
  turns: readonly RecordedTurn[],
  rows: readonly Row[],
): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const shown = new Set<string>()
  const trained = new Set<string>()
  for (const row of rows) {
    const mask = row.response_ids.map(() => 0)
    for (const { turn_id: id, start, end, trained: isTrained } of row.turns) {
      const turn = byId.get(id)
      if (turn?.status !== 'completed')
        world.reportViolation(`a row contains the turn ${id}, which is ${turn?.status}`)
      shown.add(id)
      if (!row.exact || turn === undefined) continue
      if (!isSame(row.response_ids.slice(start, end), turn.completion_token_ids))
        world.reportViolation(`a row has other tokens than its turn ${turn.index}`)
      const before = [...row.prompt_ids, ...row.response_ids.slice(0, start)]
      if (!isSame(before, turn.prompt_token_ids))
        world.reportViolation(`a row has another prompt than its turn ${turn.index}`)
      if (!isTrained) continue
      if (trained.has(id))
        world.reportViolation(`turn ${turn.index} of ${expected.sessionId} is trained twice`)
      trained.add(id)
      mask.fill(1, start, end)
      if (!isSame(row.response_logprobs.slice(start, end), turn.completion_logprobs))
        world.reportViolation(`a row has other logprobs than its turn ${turn.index}`)
    }
    if (row.exact && !isSame(mask, row.response_mask))
      world.reportViolation(`a row of ${expected.sessionId} masks other tokens than were sampled`)
  }
  checkTrained(world, expected, turns, { shown, trained })
  checkRetries(world, expected, turns, trained)
  checkContinuations(world, expected, byId, rows)
}

/** Checks attempts that SDKs declare as one request: rows must not train the unread responses beside the read one. */
function checkRetries(
  world: World,
  { attempts, sessionId }: SessionHistory,
  turns: readonly RecordedTurn[],
  trained: ReadonlySet<string>,
): void {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  const read = attempts.filter(({ outcome }) => outcome === 'read')
  const wasRead = new Set(read.map(({ turnId }) => turnId))
  for (const { turnId, retry, requestKey } of read) {
    const readTurn = byId.get(turnId ?? '')
    if (retry === 0 || readTurn === undefined || readTurn.retry_count === 0) continue
    const isEarlierAttempt = (turn: RecordedTurn) =>
      turn.index < readTurn.index &&
      turn.dialect === readTurn.dialect &&
      turn.params.prompt === readTurn.params.prompt &&
      isSameText(turn.request_messages, readTurn.request_messages)
    const unread = turns.find(
      (turn) => isEarlierAttempt(turn) && trained.has(turn.turn_id) && !wasRead.has(turn.turn_id),
    )
    if (unread)
      world.reportViolation(
        `turn ${unread.index} of ${sessionId} trains, and ${requestKey} was retried after it`,
      )
  }
}

/** Checks that a turn that continues a completion is in a row with it. */
function checkContinuations(
  world: World,
  { attempts }: SessionHistory,
  byId: ReadonlyMap<string, RecordedTurn>,
  rows: readonly Row[],
): void {
  for (const { turnId, continuedTurnId, requestKey } of attempts) {
    const turn = byId.get(turnId ?? '')
    const before = byId.get(continuedTurnId ?? '')
    if (turn?.status !== 'completed' || !turn.exact || !before?.exact) continue
    const past = getTokenIds(before)
    // A row with an equal sample is accepted, too.
    const equalTurns = [...byId.values()].filter((other) => isSame(getTokenIds(other), past))
    const isAlone = !rows.some(
      ({ turns }) =>
        turns.some((part) => part.turn_id === turn.turn_id) &&
        turns.some((part) => equalTurns.some(({ turn_id: id }) => id === part.turn_id)),
    )
    const shown = rows.some(({ turns }) => turns.some((part) => part.turn_id === turn.turn_id))
    if (shown && isAlone && isSame(past, turn.prompt_token_ids.slice(0, past.length)))
      world.reportViolation(`${requestKey} continues turn ${before.index}, but is in no row with it`)
  }
}

function checkTrained(
  world: World,
  expected: SessionHistory,
  turns: readonly RecordedTurn[],
  { shown, trained }: { shown: ReadonlySet<string>; trained: ReadonlySet<string> },
): void {
  const wasRead = new Set(
    expected.attempts.flatMap(({ outcome, turnId }) => (outcome === 'read' && turnId ? [turnId] : [])),
  )
  const retried = new Set(
    expected.attempts.filter(({ retry }) => retry > 0).map(({ requestKey }) => requestKey),
  )
  for (const turn of turns) {
    if (turn.status !== 'completed') continue
    const requestKey = getRequestKey(turn)
    // A client may not have received the response of a request that it retried.
    if (!shown.has(turn.turn_id) && (wasRead.has(turn.turn_id) || !retried.has(requestKey)))
      world.reportViolation(`turn ${turn.index} of ${expected.sessionId} is completed, but in no row`)
    if (shown.has(turn.turn_id) && turn.exact && !trained.has(turn.turn_id))
      world.reportViolation(`turn ${turn.index} of ${expected.sessionId} is in a row, but not trained`)
  }
}
