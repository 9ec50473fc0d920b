/** Compares what the proxy recorded of a session with what the session's agent received. */
import type { Ending } from './call.ts'

/** One attempt of a request. */
export interface SeenCall {
  /** The last message of the prompt, which is unique. */
  marker: string
  ending: Ending
  /** Whether the proxy was unavailable meanwhile. */
  wasAway: boolean
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
  seen: readonly SeenCall[],
): string[] {
  const byId = new Map(turns.map((turn) => [turn.turn_id, turn]))
  return [
    ...turns.flatMap(({ index }, i) => (index === i ? [] : [`turn ${i} has the index ${index}`])),
    ...seen.flatMap((call) => checkCall(call, byId, rows)),
    ...checkCounts(turns, seen),
    ...rows.flatMap((row) => checkRow(row, byId)),
  ].map((fault) => `${seen[0]?.marker}: ${fault}`)
}

function checkCall(
  { marker, ending, wasAway, weights }: SeenCall,
  byId: ReadonlyMap<string, RecordedTurn>,
  rows: readonly RecordedRow[],
): string[] {
  if (ending.kind === 'broken') return wasAway ? [] : [`${marker}: ${ending.how}`]
  if (ending.kind === 'refused') return ending.code === 'internal' ? [`${marker}: an internal error`] : []
  if (ending.kind === 'left') return []
  const turn = byId.get(ending.turnId)
  if (turn?.status !== 'completed') return [`${marker}: answered, but ${turn?.status ?? 'not recorded'}`]
  const faults: string[] = []
  if (turn.completion_text !== ending.text) faults.push(`${marker}: recorded with another text`)
  if (!isSame(turn.completion_token_ids, ending.tokenIds)) faults.push(`${marker}: recorded with other ids`)
  if (!turn.exact) faults.push(`${marker}: recorded as inexact`)
  // null: the engine was too busy to report it in time.
  if (turn.weight_version_start !== null && !weights.includes(turn.weight_version_start))
    faults.push(`${marker}: sampled by ${turn.weight_version_start}, while engines had ${weights}`)
  const trained = rows
    .flatMap((row) => row.turns)
    .filter((part) => part.turn_id === turn.turn_id && part.trained)
  if (trained.length !== 1) faults.push(`${marker}: trains ${trained.length} times`)
  return faults
}

/** Checks that every recorded turn was requested, and none is recorded twice. */
function checkCounts(turns: readonly RecordedTurn[], seen: readonly SeenCall[]): string[] {
  const tries = new Map<string, number>()
  const possible = new Map<string, number>()
  for (const { marker, ending } of seen) {
    tries.set(marker, (tries.get(marker) ?? 0) + 1)
    possible.set(marker, (possible.get(marker) ?? 0) + (ending.kind === 'refused' ? 0 : 1))
  }
  return turns.flatMap(({ request_messages: messages, status }) => {
    const marker = messages.at(-1)!.content
    const left = status === 'completed' ? possible : tries
    const count = left.get(marker) ?? 0
    left.set(marker, count - 1)
    return count > 0 ? [] : [`${marker}: a ${status} turn more than was asked for`]
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
