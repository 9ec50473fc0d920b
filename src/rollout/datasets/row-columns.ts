/** The columns that rows of tokens share in Parquet and Arrow files. */
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

export const TOKEN_COLUMNS = {
  prompt_ids: listOf(INTEGER),
  response_ids: listOf(INTEGER),
  response_mask: listOf(INTEGER),
  response_logprobs: listOf(NUMBER),
}

const perToken = (of: Shape): Shape => listOf(listOf(of))

/** The columns of token data. */
export const DETAIL_COLUMNS = {
  sampling_mask: perToken(INTEGER),
  sampling_mask_logprobs: perToken(NUMBER),
  sampling_logprobs: listOf(NUMBER),
  top_logprob_ids: perToken(INTEGER),
  top_logprobs: perToken(NUMBER),
  prompt_logprob_ids: perToken(INTEGER),
  prompt_logprobs: perToken(NUMBER),
  // The bytes are base64, as in JSON: the input lines have no binary values.
  routed_experts: struct({ dtype: TEXT, shape: listOf(INTEGER), known: perToken(INTEGER), data: TEXT }),
  weight_versions: listOf(struct({ version: TEXT, start: INTEGER, end: INTEGER })),
} satisfies Record<string, Shape>

/** Returns whether a file's name selects a columnar format. */
export function isColumns(path: string): boolean {
  return isParquet(path) || isArrow(path)
}

export function isParquet(path: string): boolean {
  return path.toLowerCase().endsWith('.parquet')
}

export function isArrow(path: string): boolean {
  return path.toLowerCase().endsWith('.arrow')
}

/** Limits a row group, which is kept in memory. */
const TOKENS_PER_GROUP = 1_000_000
/** The fields with lists of tokens; a row has the first two or the last one. */
const TOKENS = ['prompt_ids', 'response_ids', 'input_ids']

/**
 * Writes rows to a file atomically, a row group at a time.
 * @param path a file name that {@link isColumns} accepts
 * @param lines the rows as JSON
 * @throws ProxyError `start_failed` when it cannot be written, and whatever `lines` throws
 */
export async function writeRowColumns(
  path: string,
  columns: Record<string, Shape>,
  lines: AsyncIterable<string>,
): Promise<void> {
  const write = isArrow(path) ? writeArrowGroups : writeParquetGroups
  await write(path, new Map(Object.entries(columns)), inGroups(lines))
}

async function* inGroups(lines: AsyncIterable<string>): AsyncGenerator<Row[]> {
  let [group, tokens]: [Row[], number] = [[], 0]
  for await (const line of lines) {
    const row: Row = JSON.parse(line)
    group.push(row)
    for (const name of TOKENS) tokens += (row[name] as readonly unknown[] | undefined)?.length ?? 0
    if (tokens < TOKENS_PER_GROUP) continue
    yield group
    group = []
    tokens = 0
  }
  if (group.length > 0) yield group
}
