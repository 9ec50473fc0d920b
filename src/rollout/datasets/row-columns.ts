/** What rows of tokens have in common as columns of a Parquet or an Arrow file. */
import { writeArrowGroups } from './arrow-file.ts'
import type { Row } from './parquet-columns.ts'
import { writeParquetGroups } from './parquet-file.ts'
import type { Shape } from './shape.ts'

export const INTEGER: Shape = { kind: 'integer' }
export const NUMBER: Shape = { kind: 'number' }
export const TEXT: Shape = { kind: 'text' }
export const BOOLEAN: Shape = { kind: 'boolean' }
export const listOf = (of: Shape): Shape => ({ kind: 'list', of })
export const struct = (fields: Record<string, Shape>): Shape => ({
  kind: 'struct',
  fields: new Map(Object.entries(fields)),
})

const perToken = (of: Shape): Shape => listOf(listOf(of))

/** Columns of rows that have such details. */
export const DETAIL_COLUMNS = {
  sampling_mask: perToken(INTEGER),
  sampling_mask_logprobs: perToken(NUMBER),
  sampling_logprobs: listOf(NUMBER),
  top_logprob_ids: perToken(INTEGER),
  top_logprobs: perToken(NUMBER),
  prompt_logprob_ids: perToken(INTEGER),
  prompt_logprobs: perToken(NUMBER),
  // The bytes are base64, as in JSON: there are no bytes in lines.
  routed_experts: struct({ dtype: TEXT, shape: listOf(INTEGER), known: perToken(INTEGER), data: TEXT }),
  weight_versions: listOf(struct({ version: TEXT, start: INTEGER, end: INTEGER })),
} satisfies Record<string, Shape>

/** Whether rows go to such a file, by its name. */
export function isColumns(path: string): boolean {
  return isParquet(path) || isArrow(path)
}

export function isParquet(path: string): boolean {
  return path.toLowerCase().endsWith('.parquet')
}

export function isArrow(path: string): boolean {
  return path.toLowerCase().endsWith('.arrow')
}

/** A row group is held in memory. */
const TOKENS_PER_GROUP = 1_000_000

/**
 * Writes rows to a file, a row group at a time, whole or not at all.
 * @param path that {@link isColumns}
 * @throws ProxyError `start_failed` when it cannot be written; what `rows` throws
 */
export async function writeRowColumns<T extends Row>(
  path: string,
  columns: Record<string, Shape>,
  rows: AsyncIterable<T>,
  tokensOf: (row: T) => number,
): Promise<void> {
  const write = isArrow(path) ? writeArrowGroups : writeParquetGroups
  await write(path, struct(columns), inGroups(rows, tokensOf))
}

async function* inGroups<T extends Row>(
  rows: AsyncIterable<T>,
  tokensOf: (row: T) => number,
): AsyncGenerator<Row[]> {
  let [group, tokens]: [Row[], number] = [[], 0]
  for await (const row of rows) {
    group.push(row)
    tokens += tokensOf(row)
    if (tokens < TOKENS_PER_GROUP) continue
    yield group
    group = []
    tokens = 0
  }
  if (group.length > 0) yield group
}
