/**
 * Checksums of rows, which detect bytes changed by a disk before they are trained on: SQLite has none, and a changed
 * token id is still a valid token id. They are verified whenever a row is read.
 */
import { crc32 } from 'node:zlib'
import { ProxyError } from '../../../base/errors.ts'

/** The value of a column, written or read. */
type ChecksumValue = string | number | Uint8Array | null

export const NODE_SUMMED = ['tree', 'parent', 'depth', 'texts'] as const

export const DETAIL_SUMMED = ['tree', 'turn', 'kind', 'body'] as const

const REWARD_SUMMED = ['session_id', 'reward', 'reward_components', 'reward_lines']

/**
 * Returns the columns that the checksum of a reward covers. `reward_turns` is omitted where it is NULL, so that
 * checksums from before this column remain valid.
 */
export function listRewardColumns({
  reward_turns: turns,
}: {
  reward_turns: string | null
}): readonly string[] {
  return turns === null ? REWARD_SUMMED : [...REWARD_SUMMED, 'reward_turns']
}

/** Computes the CRC-32 of the named columns of a row. */
export function computeSum(row: object, columns: readonly string[]): number {
  const named = row as Readonly<Record<string, unknown>>
  const values = columns.map((column) => (named[column] ?? null) as ChecksumValue)
  const blobs = values.filter((value) => value instanceof Uint8Array)
  const head = values.map((value) => (value instanceof Uint8Array ? [value.length] : value))
  return blobs.reduce((sum, blob) => crc32(blob, sum), crc32(JSON.stringify(head)))
}

/**
 * Verifies a checksum.
 * @param sum the stored sum; null: the row predates checksums
 * @param what the name of the row, for the message
 * @throws ProxyError `data_damaged`
 */
export function checkSum(
  row: object,
  columns: readonly string[],
  { sum, what }: { sum: number | null; what: string },
): void {
  if (sum !== null && sum !== computeSum(row, columns)) throw createDamagedError(what)
}

export function createDamagedError(what: string): ProxyError {
  const message = `${what} does not match its checksum: the database file is damaged. Exclude the session, or restore a backup`
  return new ProxyError('data_damaged', message)
}
