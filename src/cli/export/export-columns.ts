/** Writes training rows of sessions as columns to a Parquet or Arrow file. */
import Type from 'typebox'
import { ProxyError } from '../../base/errors.ts'
import { splitLines } from '../../base/split-lines.ts'
import { ids, pickFields } from '../../protocol/schema/field.ts'
import { optionalRowFields, rowFields, rowTurnFields } from '../../protocol/schema/row.ts'
import type { SessionsExportConfig } from '../../proxy/config/options/sessions.ts'
import { listOf, struct, toColumns, writeRowColumns } from '../../rollout/datasets/row-columns.ts'

const TRAJECTORY = {
  ...toColumns(rowFields),
  // Some fields of a turn have their own column type, so its columns are derived from the table of its fields.
  turns: listOf(struct(Object.entries(toColumns(rowTurnFields)))),
}

const SFT = toColumns({
  ...pickFields(rowFields, ['agent_role', 'line', 'num_turns', 'reward']),
  input_ids: { type: ids() },
  labels: { type: ids() },
})

/**
 * Writes the rows.
 * @param chunks text in chunks, with a row as JSON on each line
 * @throws ProxyError `config_invalid` for a format that has no rows, `start_failed` if the file cannot be written
 */
export async function writeExportColumns(
  path: string,
  { format, details }: Pick<SessionsExportConfig, 'format' | 'details'>,
  chunks: AsyncIterable<string>,
): Promise<void> {
  if (format !== 'trajectories' && format !== 'sft')
    throw new ProxyError(
      'config_invalid',
      `--format ${format} has no rows: name an --output that ends in .jsonl`,
    )
  const columns =
    format === 'sft' ? SFT : { ...TRAJECTORY, ...(details.length > 0 && toColumns(optionalRowFields)) }
  await writeRowColumns(
    path,
    { ...toColumns({ session_id: { type: Type.String() } }), ...columns },
    splitLines(chunks, { completeOnly: true }),
  )
}
