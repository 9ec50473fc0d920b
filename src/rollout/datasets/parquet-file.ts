/** Writes Parquet files, and reads them row by row. */
import { readFile, writeFile } from 'node:fs/promises'
import { brotliDecompressSync, gunzipSync, zstdDecompressSync } from 'node:zlib'
import { asyncBufferFromFile, type Compressors, parquetMetadataAsync, parquetReadObjects } from 'hyparquet'
import { fileWriter, ParquetWriter, parquetWriteBuffer } from 'hyparquet-writer'
import { writeFileAtomically } from '../../base/atomic-file.ts'
import { ProxyError } from '../../base/errors.ts'
import { type DatasetRow, inferColumns, type ParquetColumns, toColumns } from './parquet-columns.ts'
import type { ColumnShapes } from './shape.ts'

/** The decompressors that hyparquet lacks: it supports only Snappy and uncompressed files. */
const DECOMPRESSORS: Compressors = {
  GZIP: (input) => gunzipSync(input),
  BROTLI: (input) => brotliDecompressSync(input),
  ZSTD: (input) => zstdDecompressSync(input),
}

/**
 * Writes rows to a file atomically, unless the file has this content already.
 * @param all see {@link inferColumns}
 * @returns whether the file was written
 * @throws ProxyError `start_failed` when it cannot be written
 */
export async function writeParquet(
  path: string,
  rows: readonly DatasetRow[],
  all?: readonly DatasetRow[],
): Promise<boolean> {
  const bytes = encode(inferColumns(rows, all))
  const before = await readFile(path).catch(() => undefined)
  if (before?.equals(bytes)) return false
  await writeFileAtomically(path, (partial) => writeFile(partial, bytes, { flag: 'wx' }))
  return true
}

/**
 * Writes a file that is too large for memory atomically, a row group at a time.
 * @param columns the columns of every row; a value of another shape becomes JSON text in a text column
 * @throws ProxyError `start_failed` when it cannot be written, and whatever `groups` throws
 */
export async function writeParquetGroups(
  path: string,
  columns: ColumnShapes,
  groups: AsyncIterable<readonly DatasetRow[]>,
): Promise<void> {
  await writeFileAtomically(path, async (partial) => {
    const { schema } = toColumns(columns, [])
    const writer = new ParquetWriter({ writer: fileWriter(partial), schema, createdBy: 'llm-proxy' })
    for await (const rows of groups) {
      await writer.write({ columnData: toColumns(columns, rows).columnData, rowGroupSize: rows.length })
    }
    await writer.finish()
  })
}

/** Encodes rows deterministically. */
function encode({ schema, columnData }: ParquetColumns): Buffer {
  return Buffer.from(parquetWriteBuffer({ schema, columnData, createdBy: 'llm-proxy' }))
}

/**
 * Reads the rows of a file, a row group at a time. 64-bit integers are numbers if those represent them exactly,
 * otherwise text; times are text in ISO 8601; binary columns are bytes.
 * @throws ProxyError `start_failed` when the file does not exist or is not a readable Parquet file
 */
export async function* readParquet(path: string): AsyncGenerator<Record<string, unknown>> {
  try {
    const file = await asyncBufferFromFile(path)
    const metadata = await parquetMetadataAsync(file)
    let rowStart = 0
    for (const group of metadata.row_groups) {
      const rowEnd = rowStart + Number(group.num_rows)
      const rows = await parquetReadObjects({ file, metadata, rowStart, rowEnd, compressors: DECOMPRESSORS })
      for (const row of rows) yield toPlainValue(row) as Record<string, unknown>
      rowStart = rowEnd
    }
  } catch (cause) {
    throw new ProxyError('start_failed', `cannot read ${path} as Parquet`, { cause })
  }
}

function toPlainValue(value: unknown): unknown {
  // hyparquet returns undefined for a list or struct that is null in the file.
  if (value === undefined) return null
  if (typeof value === 'bigint') return Number.isSafeInteger(Number(value)) ? Number(value) : String(value)
  if (value instanceof Date) return value.toISOString()
  if (Array.isArray(value)) return value.map(toPlainValue)
  if (value === null || typeof value !== 'object' || ArrayBuffer.isView(value)) return value
  return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, toPlainValue(inner)]))
}
