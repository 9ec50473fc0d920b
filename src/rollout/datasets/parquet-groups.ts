/** Parquet files that are too large to be put together in memory. */
import { fileWriter, ParquetWriter } from 'hyparquet-writer'
import { columnsIn, type Row } from './parquet-columns.ts'
import type { Shape } from './shape.ts'
import { writeWhole } from './whole-file.ts'

/**
 * Writes rows to a file, a row group at a time, whole or not at all.
 * @param shape of every row; what is of another shape becomes JSON text where it says text
 * @throws ProxyError `start_failed` when it cannot be written; what `groups` throws
 */
export async function writeParquetGroups(
  path: string,
  shape: Shape,
  groups: AsyncIterable<readonly Row[]>,
): Promise<void> {
  await writeWhole(path, (partial) => writeGroups(partial, shape, groups))
}

async function writeGroups(path: string, shape: Shape, groups: AsyncIterable<readonly Row[]>): Promise<void> {
  const { schema } = columnsIn(shape, [])
  const writer = new ParquetWriter({ writer: fileWriter(path), schema, createdBy: 'llm-proxy' })
  for await (const rows of groups) {
    await writer.write({ columnData: columnsIn(shape, rows).columnData, rowGroupSize: rows.length })
  }
  await writer.finish()
}
