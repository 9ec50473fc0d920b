/**
 * Writes the rows of a run as columns to a Parquet or Arrow file, from the file of lines after all samples are
 * complete.
 */
import { outputFields } from '../../protocol/schema/agent-loop-output.ts'
import { capturedFields } from '../../protocol/schema/row-details.ts'
import { readCompleteLines } from '../../rollout/datasets/complete-lines.ts'
import { toColumns, writeRowColumns } from '../../rollout/datasets/row-columns.ts'
import type { ColumnShape } from '../../rollout/datasets/shape.ts'
import { sampleFields } from './output-row.ts'

/** Writes the columns of a file of lines. @throws ProxyError `start_failed` */
export async function writeColumns(path: string, linesPath: string): Promise<void> {
  const columns = {
    ...toColumns({ ...sampleFields, ...outputFields }),
    ...(await findDetailColumns(linesPath)),
  }
  await writeRowColumns(path, columns, readCompleteLines(linesPath))
}

/** Finds the token data columns by their names in the text, which is far cheaper than parsing it twice. */
async function findDetailColumns(linesPath: string): Promise<Record<string, ColumnShape>> {
  const details = toColumns(capturedFields)
  const missing = new Set(Object.keys(details))
  for await (const line of readCompleteLines(linesPath)) {
    for (const name of missing) if (line.includes(`"${name}":`)) missing.delete(name)
  }
  return Object.fromEntries(Object.entries(details).filter(([name]) => !missing.has(name)))
}
