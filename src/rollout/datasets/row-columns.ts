/** Writes training rows as columns to Parquet and Arrow files. */
import Type, { type TSchema } from 'typebox'
import type { FieldTable } from '../../protocol/schema/field.ts'
import { writeArrowGroups } from './arrow-file.ts'
import type { DatasetRow } from './parquet-columns.ts'
import { writeParquetGroups } from './parquet-file.ts'
import type { ColumnShape } from './shape.ts'

const TEXT: ColumnShape = { kind: 'text' }

/** Returns the columns for a table of fields. */
export function toColumns(fields: FieldTable): Record<string, ColumnShape> {
  const stored = Object.entries(fields).filter(([, { column }]) => column !== 'none')
  return Object.fromEntries(
    stored.map(([name, { type, column }]) => [name, column === 'json' ? TEXT : toShape(type)]),
  )
}

/** Returns the shape of a column of this type. Every column can be null. */
function toShape(type: TSchema): ColumnShape {
  if (Type.IsUnion(type)) return toShape(type.anyOf.find((member) => !Type.IsNull(member))!)
  if (Type.IsInteger(type) || (Type.IsEnum(type) && typeof type.enum[0] === 'number'))
    return { kind: 'integer' }
  if (Type.IsNumber(type)) return { kind: 'number' }
  if (Type.IsBoolean(type)) return { kind: 'boolean' }
  if (Type.IsArray(type)) return listOf(toShape(type.items))
  if (Type.IsObject(type))
    return struct(Object.entries(type.properties).map(([name, of]) => [name, toShape(of)]))
  // The names of a record differ between rows, so it is stored as JSON text.
  return TEXT
}

export const listOf = (of: ColumnShape): ColumnShape => ({ kind: 'list', of })
export const struct = (fields: Iterable<readonly [string, ColumnShape]>): ColumnShape => ({
  kind: 'struct',
  fields: new Map(fields),
})

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

/** The number of tokens after which a row group ends, because a group is built in memory. */
const TOKENS_PER_GROUP = 1_000_000
/** The fields with token ids; a row has the first two or the last one. */
const TOKENS = ['prompt_ids', 'response_ids', 'input_ids']

/**
 * Writes rows to a file atomically, a row group at a time.
 * @param path a file name that {@link isColumns} accepts
 * @param lines the rows as JSON
 * @throws ProxyError `start_failed` when it cannot be written, and whatever `lines` throws
 */
export async function writeRowColumns(
  path: string,
  columns: Record<string, ColumnShape>,
  lines: AsyncIterable<string>,
): Promise<void> {
  const write = isArrow(path) ? writeArrowGroups : writeParquetGroups
  await write(path, new Map(Object.entries(columns)), groupRows(lines))
}

async function* groupRows(lines: AsyncIterable<string>): AsyncGenerator<DatasetRow[]> {
  let [group, tokens]: [DatasetRow[], number] = [[], 0]
  for await (const line of lines) {
    const row: DatasetRow = JSON.parse(line)
    group.push(row)
    for (const name of TOKENS) tokens += (row[name] as readonly unknown[] | undefined)?.length ?? 0
    if (tokens < TOKENS_PER_GROUP) continue
    yield group
    group = []
    tokens = 0
  }
  if (group.length > 0) yield group
}
