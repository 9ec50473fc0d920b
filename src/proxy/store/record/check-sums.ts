/**
 * Check sums of rows, so that a byte that a disk has changed is found before anybody trains on it: SQLite has none of its own,
 * and a changed token id is a token id all the same. They are looked at whenever a row is read.
 */
import { crc32 } from 'node:zlib'
import { ProxyError } from '../../../base/errors.ts'

/** What a column holds, written or read. */
type SummedValue = string | number | Uint8Array | null

/** Of a turn, its tokens: the reader puts sequences together from these alone. */
export const IDS_SUMMED = ['prompt_base', 'prompt_shared', 'prompt_rest', 'completion_ids'] as const

/** Of a turn, all else that does not change once it has ended. */
export const TURN_SUMMED = [
  ...['call_index', 'turn_id', 'dialect', 'started_at_ms', 'retry_count', 'node', 'tools', 'params'],
  ...['prompt_node', 'ended_at_ms', 'first_token_at_ms', 'model', 'engine', 'finish_reason', 'stop_reason'],
  ...['exact', 'inexact_reason', 'weight_version_start', 'weight_version_end', 'usage'],
  ...['completion_text', 'reasoning', 'tool_calls', 'completion_logprobs'],
]

export const NODE_SUMMED = ['tree', 'parent', 'depth', 'texts'] as const

export const DETAIL_SUMMED = ['tree', 'turn', 'kind', 'body'] as const

const REWARD_SUMMED = ['session_id', 'reward', 'reward_components', 'reward_lines']

/** Rewards that are older than those of turns were summed without them, so without any the sum is still that one. */
export function rewardSummed({ reward_turns: turns }: { reward_turns: string | null }): readonly string[] {
  return turns === null ? REWARD_SUMMED : [...REWARD_SUMMED, 'reward_turns']
}

/** CRC-32 over the named columns of a row, by their names in the database. */
export function sumOf(row: object, columns: readonly string[]): number {
  const named = row as Readonly<Record<string, unknown>>
  const values = columns.map((column) => (named[column] ?? null) as SummedValue)
  const blobs = values.filter((value) => value instanceof Uint8Array)
  const head = values.map((value) => (value instanceof Uint8Array ? [value.length] : value))
  return blobs.reduce((sum, blob) => crc32(blob, sum), crc32(JSON.stringify(head)))
}

/**
 * @param sum as it is on record; null: the row is from before there were any
 * @param what it is, for the message
 * @throws ProxyError `data_damaged`
 */
export function checkSum(
  row: object,
  columns: readonly string[],
  { sum, what }: { sum: number | null; what: string },
): void {
  if (sum !== null && sum !== sumOf(row, columns)) throw damaged(what)
}

export function damaged(what: string): ProxyError {
  const message = `${what} is not what was written: the database file is damaged. Leave the session out, or restore a backup`
  return new ProxyError('data_damaged', message)
}
