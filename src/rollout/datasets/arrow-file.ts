/**
 * Writes rows as an Arrow IPC file (`.arrow`, which pyarrow and pandas also call Feather), a record batch at a time.
 */
import { createWriteStream } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setImmediate } from 'node:timers/promises'
import type { DataType, Field, RecordBatch, Schema } from 'apache-arrow'
import { writeFileAtomically } from '../../base/atomic-file.ts'
import { importOptionalPackage } from '../../base/optional-package.ts'
import type { DatasetRow } from './parquet-columns.ts'
import { type ColumnShape, type ColumnShapes, fit, toStorable } from './shape.ts'

type Arrow = typeof import('apache-arrow')

/** Imports the package. @throws ProxyError `start_failed` if it is not installed */
export function openArrow(): Promise<Arrow> {
  return importOptionalPackage('apache-arrow', 'A file that ends in .arrow', () => import('apache-arrow'))
}

/**
 * Writes rows to a file atomically, a record batch at a time.
 * @param columns the columns of every row; a value of another shape becomes JSON text in a text column
 * @throws ProxyError `start_failed` when it cannot be written, and whatever `groups` throws
 */
export async function writeArrowGroups(
  path: string,
  columns: ColumnShapes,
  groups: AsyncIterable<readonly DatasetRow[]>,
): Promise<void> {
  const arrow = await openArrow()
  await writeFileAtomically(path, (partial) =>
    pipeline(
      Readable.from(writeArrowFile(arrow, columns, groups)),
      createWriteStream(partial, { flags: 'wx' }),
    ),
  )
}

/** Yields the bytes of the file. A group is read only after the bytes of the previous one have been consumed. */
async function* writeArrowFile(
  arrow: Arrow,
  columns: ColumnShapes,
  groups: AsyncIterable<readonly DatasetRow[]>,
): AsyncGenerator<Uint8Array> {
  const schema = new arrow.Schema(toFields(arrow, columns))
  const writer = new arrow.RecordBatchFileWriter()
  const chunks = writer[Symbol.asyncIterator]()
  writer.reset(undefined, schema)
  let next = chunks.next()
  for await (const rows of groups) {
    writer.write(toRecordBatch(arrow, schema, columns, rows))
    // The writer cannot be asked whether it has more bytes; its iterator resolves before the next tick if it has.
    for (;;) {
      const chunk = await Promise.race([next, setImmediate()])
      if (chunk === undefined || chunk.done) break
      yield chunk.value
      next = chunks.next()
    }
  }
  writer.finish()
  for (let chunk = await next; !chunk.done; chunk = await chunks.next()) yield chunk.value
}

function toFields(arrow: Arrow, columns: ColumnShapes): Field[] {
  return [...columns].map(([name, column]) => new arrow.Field(name, toDataType(arrow, column), true))
}

function toDataType(arrow: Arrow, shape: ColumnShape): DataType {
  const column = toStorable(shape)
  switch (column.kind) {
    case 'boolean':
      return new arrow.Bool()
    case 'integer':
      return new arrow.Int64()
    case 'number':
      return new arrow.Float64()
    case 'list':
      return new arrow.List(new arrow.Field('item', toDataType(arrow, column.of), true))
    case 'struct':
      return new arrow.Struct(toFields(arrow, column.fields))
    default:
      return new arrow.Utf8()
  }
}

function toRecordBatch(
  arrow: Arrow,
  schema: Schema,
  columns: ColumnShapes,
  rows: readonly DatasetRow[],
): RecordBatch {
  const children = [...columns].map(([name, column]) => {
    const builder = arrow.makeBuilder({ type: toDataType(arrow, column), nullValues: [null, undefined] })
    for (const row of rows) builder.append(fit(row[name], column))
    return builder.finish().flush()
  })
  const data = arrow.makeData({
    type: new arrow.Struct(schema.fields),
    length: rows.length,
    nullCount: 0,
    children,
  })
  return new arrow.RecordBatch(schema, data)
}
