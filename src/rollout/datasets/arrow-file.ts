/** Rows as an Arrow IPC file (`.arrow`, which pyarrow and pandas also call Feather), a record batch at a time. */
import { createWriteStream } from 'node:fs'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import {
  Bool,
  type DataType,
  Field,
  Float64,
  Int64,
  List,
  makeBuilder,
  makeData,
  RecordBatch,
  RecordBatchFileWriter,
  Schema,
  Struct,
  Utf8,
} from 'apache-arrow'
import type { Row } from './parquet-columns.ts'
import { fit, type Shape, storable } from './shape.ts'
import { writeWhole } from './whole-file.ts'

/**
 * Writes rows to a file, a record batch at a time, whole or not at all.
 * @param shape of every row, a struct; what is of another shape becomes JSON text where it says text
 * @throws ProxyError `start_failed` when it cannot be written; what `groups` throws
 */
export async function writeArrowGroups(
  path: string,
  shape: Shape,
  groups: AsyncIterable<readonly Row[]>,
): Promise<void> {
  await writeWhole(path, (partial) =>
    pipeline(Readable.from(arrowFile(shape, groups)), createWriteStream(partial, { flags: 'wx' })),
  )
}

/** The bytes of the file, no faster than they are taken. */
async function* arrowFile(shape: Shape, groups: AsyncIterable<readonly Row[]>): AsyncGenerator<Uint8Array> {
  const schema = new Schema(fieldsOf(shape))
  const writer = new RecordBatchFileWriter()
  const pieces = writer[Symbol.asyncIterator]()
  writer.reset(undefined, schema)
  let isWritten = false
  const written = (async () => {
    for await (const rows of groups) writer.write(batchOf(schema, shape, rows))
    writer.finish()
    isWritten = true
  })()
  // An error of the rows would otherwise leave the reader waiting for bytes that never come.
  written.catch((error) => writer.abort(error))
  for (let piece = await pieces.next(); !piece.done; piece = await pieces.next()) yield piece.value
  if (!isWritten) await written
}

function fieldsOf(shape: Shape): Field[] {
  return shape.kind === 'struct'
    ? [...shape.fields].map(([name, column]) => new Field(name, typeOf(column), true))
    : []
}

function typeOf(shape: Shape): DataType {
  const column = storable(shape)
  switch (column.kind) {
    case 'boolean':
      return new Bool()
    case 'integer':
      return new Int64()
    case 'number':
      return new Float64()
    case 'list':
      return new List(new Field('item', typeOf(column.of), true))
    case 'struct':
      return new Struct(fieldsOf(column))
    default:
      return new Utf8()
  }
}

function batchOf(schema: Schema, shape: Shape, rows: readonly Row[]): RecordBatch {
  const columns = shape.kind === 'struct' ? [...shape.fields] : []
  const children = columns.map(([name, column]) => {
    const builder = makeBuilder({ type: typeOf(column), nullValues: [null, undefined] })
    for (const row of rows) builder.append(fit(row[name], column))
    return builder.finish().flush()
  })
  const data = makeData({ type: new Struct(schema.fields), length: rows.length, nullCount: 0, children })
  return new RecordBatch(schema, data)
}
