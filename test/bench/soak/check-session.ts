/** Compares the record of a session with what its agent received. */
import type { Ending } from './attempt.ts'

/** One attempt of a request. */
export interface Attempt {
  /** The last message of the prompt, which is unique. */
  marker: string
  ending: Ending
  /** Whether the proxy was unavailable meanwhile. */
  wasUnavailable: boolean
  /** The weight versions of the engines during the request. */
  weights: readonly string[]
}

export interface RecordedTurn {
  turn_id: string
  index: number
  status: string
  exact: boolean
  request_messages: { content: string }[]
  completion_text: string
  completion_token_ids: number[]
  weight_version_start: string | null
}

export interface RecordedRow {
  exact: boolean
  response_ids: number[]
  response_mask: number[]
  turns: { turn_id: string; start: number; end: number; trained: boolean }[]
}

/**
 * Checks a session.
 * @returns descriptions of the faults; empty if there are none
 */
export function checkSession(
  turns: readonly RecordedTurn[],
  rows: readonly RecordedRow[],
  attempts: readonly Attempt[],
): string[] {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  return [
    ...turns.flatMap(({ index }, i) => (index === i ? [] : [`turn ${i} has the index ${index}`])),
    ...attempts.flatMap((attempt) => checkAttempt(attempt, byId, rows)),
    ...checkCounts(turns, attempts),
    ...rows.flatMap((row) => checkRow(row, byId)),
  ].map((fault) => `${attempts[0]?.marker}: ${fault}`)
}

function checkAttempt(
  { marker, ending, wasUnavailable, weights }: Attempt,
  byId: ReadonlyMap<string, RecordedTurn>,
  rows: readonly RecordedRow[],
): string[] {
  if (ending.kind === 'broken') return wasUnavailable ? [] : [`${marker}: ${ending.reason}`]
  if (ending.kind === 'refused') return ending.code === 'internal' ? [`${marker}: an internal error`] : []
  if (ending.kind === 'left') return []
  const turn = byId.get(ending.turnId)
  if (turn?.status !== 'completed')
    return [`${marker}: a complete response, but the turn is ${turn?.status ?? 'not recorded'}`]
  const faults: string[] = []
  if (turn.completion_text !== ending.text) faults.push(`${marker}: recorded with another text`)
  if (!isSame(turn.completion_token_ids, ending.tokenIds)) faults.push(`${marker}: recorded with other ids`)
  if (!turn.exact) faults.push(`${marker}: recorded as inexact`)
  // null: the engine was too busy to report it in time.
  if (turn.weight_version_start !== null && !weights.includes(turn.weight_version_start))
    faults.push(`${marker}: sampled by ${turn.weight_version_start}, while engines had ${weights}`)
  const trainedParts = rows
    .flatMap((row) => row.turns)
    .filter((part) => part.turn_id === turn.turn_id && part.trained)
  if (trainedParts.length !== 1) faults.push(`${marker}: trained ${trainedParts.length} times`)
  return faults
}

/** Checks that the proxy recorded no turn without an attempt, and none twice. */
function checkCounts(turns: readonly RecordedTurn[], attempts: readonly Attempt[]): string[] {
  const sentCounts = new Map<string, number>()
  const possibleCounts = new Map<string, number>()
  for (const { marker, ending } of attempts) {
    sentCounts.set(marker, (sentCounts.get(marker) ?? 0) + 1)
    possibleCounts.set(marker, (possibleCounts.get(marker) ?? 0) + (ending.kind === 'refused' ? 0 : 1))
  }
  return turns.flatMap(({ request_messages: messages, status }) => {
    const marker = messages.at(-1)!.content
    const counts = status === 'completed' ? possibleCounts : sentCounts
    const count = counts.get(marker) ?? 0
    counts.set(marker, count - 1)
    return count > 0 ? [] : [`${marker}: one ${status} turn more than attempts`]
  })
}

function checkRow(
  { exact, response_ids: ids, response_mask: mask, turns }: RecordedRow,
  byId: ReadonlyMap<string, RecordedTurn>,
): string[] {
  if (!exact) return ['a row is not exact']
  const sampled = mask.map(() => 0)
  const faults: string[] = []
  for (const { turn_id: id, start, end, trained } of turns) {
    if (trained) sampled.fill(1, start, end)
    if (!isSame(ids.slice(start, end), byId.get(id)?.completion_token_ids ?? []))
      faults.push(`a row has other tokens than its turn ${id}`)
  }
  if (!isSame(mask, sampled)) faults.push('a row masks other tokens than were sampled')
  return faults
}

function isSame(a: readonly number[], b: readonly number[]): boolean {
  return a.length === b.length && a.every((value, index) => value === b[index])
}
